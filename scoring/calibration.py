"""Make rewards of different domains comparable: per-subset offset and temperature, or quantiles of a reference set.

A reward ranks dialogues within a domain, but domains have different ranges of rewards: in the paper the median
reward of the preferred scripted dialogues is negative (section 5.3, Figure 4d), so that a threshold found on one
domain fails on another. Two calibrations are fitted on preference pairs:

- By subset, `(reward - offset) / temperature`: the log-odds that a dialogue is the preferred side of a pair of its
  subset. It needs the domain of each dialogue.
- By quantile, the share of a reference set's rewards that are lower, without a domain. The reference holds both sides
  of every pair, each subset with the same weight. A criterion without a table of its own uses the table of all pairs.

Both are monotone: neither changes the order of dialogues within a subset, or under a criterion. One table of quantiles
therefore cannot change how a threshold transfers; it gives rewards a scale with a meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdiareward.configuration_sdiareward import validate_calibration


if TYPE_CHECKING:
    from sdiareward.configuration_sdiareward import SDiaRewardConfig

Floats = NDArray[np.float64]
NUM_QUANTILES = 101
# Bounds on the logarithm of a temperature, in units of the rewards' spread: never reached but by the line search.
_MAX_LOG_TEMPERATURE = 10.0
_NUM_DIGITS = 8


def fit(
    rewards: ArrayLike,
    subsets: Sequence[str],
    criteria: Sequence[str] = (),
    *,
    prompt_version: str = "",
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fit both calibrations on pairs; the result is the value of the configuration's field `calibration`."""
    array = np.asarray(rewards, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        raise ValueError(f"rewards have shape {array.shape}; give at least one pair, shape (num_pairs, 2).")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise ValueError(f"the rewards of pair {row} are {array[row].tolist()}; they must be finite: leave it out.")
    for kind, labels in (("subsets", subsets), ("criteria", criteria)):
        if len(labels) != len(array) and (len(labels) or kind == "subsets"):
            raise ValueError(f"got {len(labels)} {kind} for {len(array)} pairs; give one for each.")
    names, judged = (np.asarray(list(labels), dtype=np.str_) for labels in (subsets, criteria))
    fitted: dict[str, Any] = {}
    for name in np.unique(names).tolist():
        of_subset = array[names == name]
        offset, temperature = _round_values(fit_offset_and_temperature(of_subset[:, 0], of_subset[:, 1]))
        fitted[name] = {"offset": offset, "temperature": temperature, "num_pairs": len(of_subset)}
    tables = {
        name: _compute_quantiles(array[judged == name], names[judged == name]) for name in np.unique(judged).tolist()
    }
    calibration = {
        "subsets": fitted,
        "quantiles": _compute_quantiles(array, names),
        "quantiles_by_criterion": tables,
        "num_pairs": len(array),
        "prompt_version": prompt_version,
        "data": dict(data or {}),
    }
    validate_calibration(calibration)
    return calibration


def fit_offset_and_temperature(chosen: ArrayLike, rejected: ArrayLike) -> tuple[float, float]:
    """Fit `P(chosen side | reward) = sigmoid((reward - offset) / temperature)` by penalised maximum likelihood.

    In units of the rewards' standard deviation, counted from their mean, offset and log temperature get a standard
    normal prior each. It weighs little beside more than a few pairs. It keeps the temperature away from zero where
    rewards separate the sides perfectly, and finite where they do not separate them.
    """
    from scipy.optimize import minimize

    both = np.concatenate([np.asarray(chosen, dtype=np.float64), np.asarray(rejected, dtype=np.float64)])
    centre, spread = both.mean(), both.std() or 1.0
    signs = np.repeat([1.0, -1.0], len(both) // 2)
    found = minimize(
        _penalised_loss,
        np.zeros(2),
        args=((both - centre) / spread, signs),
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None), (-_MAX_LOG_TEMPERATURE, _MAX_LOG_TEMPERATURE)],
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    offset, log_temperature = found.x
    return float(centre + spread * offset), float(spread * np.exp(log_temperature))


def _penalised_loss(parameters: Floats, rewards: Floats, signs: Floats) -> tuple[float, Floats]:
    """Return the negative log posterior of an offset and a log temperature, and its gradient."""
    offset, log_temperature = parameters
    steepness = np.exp(-log_temperature)
    logits = signs * (rewards - offset) * steepness
    # -sigmoid(-logits), the derivative of log(1 + exp(-logits)), without overflow.
    slopes = -np.exp(-np.logaddexp(0.0, logits))
    loss = np.logaddexp(0.0, -logits).sum() + (parameters**2).sum() / 2
    gradient = np.array([-(slopes * signs).sum() * steepness, -(slopes * logits).sum()]) + parameters
    return float(loss), gradient


def _compute_quantiles(rewards: Floats, subsets: NDArray[np.str_]) -> list[float]:
    """Return quantiles of both sides of the pairs, each subset weighing the same."""
    _, indices, counts = np.unique(subsets, return_inverse=True, return_counts=True)
    weights = np.repeat(1.0 / counts[indices], 2)
    order = np.argsort(rewards, axis=None, kind="stable")
    # A reward stands for the middle of its share.
    shares = np.cumsum(weights[order]) - weights[order] / 2
    levels = np.linspace(0.0, 1.0, NUM_QUANTILES) * weights.sum()
    return _round_values(np.interp(levels, shares, rewards.ravel()[order]))


def _round_values(values: Iterable[float]) -> list[float]:
    """Return values with as many digits as a float32 reward has, for a readable file."""
    return [float(f"{value:.{_NUM_DIGITS}g}") for value in values]


class Calibration:
    def __init__(self, parameters: Mapping[str, Any]):
        validate_calibration(parameters)
        self.parameters = parameters

    @classmethod
    def of(cls, config: SDiaRewardConfig) -> Calibration:
        if config.calibration is None:
            raise ValueError(
                "the model has no calibration; fit one with sdiareward calibrate CHECKPOINT EVAL_DIR and load what it "
                "writes, or leave calibrated=False."
            )
        fitted = config.calibration["prompt_version"]
        if fitted != config.prompt_version:
            raise ValueError(
                f"the calibration was fitted on rewards under the prompts {fitted!r}, the model has the prompts "
                f"{config.prompt_version!r}; evaluate it again and repeat sdiareward calibrate."
            )
        return cls(config.calibration)

    def by_subset(self, rewards: ArrayLike, subsets: Sequence[str]) -> Floats:
        """Return log-odds: 0 is as likely the better as the worse side of a pair of its subset."""
        fitted = self.parameters["subsets"]
        self._require_subsets(subsets)
        offsets = np.array([fitted[name]["offset"] for name in subsets])
        temperatures = np.array([fitted[name]["temperature"] for name in subsets])
        return (np.asarray(rewards, dtype=np.float64) - offsets) / temperatures

    def compute_probability(self, margin: float, subset: str) -> float:
        """Return how probably the side of a pair that is ahead by `margin` is the better one."""
        self._require_subsets([subset])
        return sigmoid(margin / self.parameters["subsets"][subset]["temperature"])

    def by_quantile(self, rewards: ArrayLike, criteria: Sequence[str]) -> Floats:
        """Return the share, in 0-1, of the reference rewards below each reward."""
        array, names = np.asarray(rewards, dtype=np.float64), np.asarray(list(criteria), dtype=np.str_)
        tables, values = self.parameters["quantiles_by_criterion"], np.empty(len(array))
        for name in np.unique(names):
            is_of = names == name
            values[is_of] = _share_below(array[is_of], tables.get(str(name), self.parameters["quantiles"]))
        return values

    def for_each(self, criteria: Sequence[str], subsets: str | Sequence[str] | None) -> Callable[[int, float], float]:
        """Return a function from a dialogue's index and reward to its calibrated value."""
        if subsets is None:
            return lambda index, reward: float(self.by_quantile([reward], [criteria[index]])[0])
        names = [subsets] * len(criteria) if isinstance(subsets, str) else list(subsets)
        if len(names) != len(criteria):
            raise ValueError(
                f"got {len(names)} subsets for {len(criteria)} dialogues; give one for all or one for each."
            )
        self._require_subsets(names)
        return lambda index, reward: float(self.by_subset([reward], [names[index]])[0])

    def _require_subsets(self, names: Sequence[str]) -> None:
        fitted = self.parameters["subsets"]
        unknown = sorted(set(names) - set(fitted))
        if unknown:
            raise ValueError(
                f"the calibration knows the subsets {', '.join(sorted(fitted))}, not {', '.join(unknown)}; name one "
                "of these, or leave subsets out for the calibration that needs none."
            )


def sigmoid(value: float) -> float:
    """Return `1 / (1 + exp(-value))` without overflow."""
    return float(1 + np.tanh(value / 2)) / 2


def _share_below(rewards: Floats, table: Sequence[float]) -> Floats:
    """Interpolate in a table of quantiles; of equal ones, where the distribution jumps, the middle counts."""
    levels = np.linspace(0.0, 1.0, len(table))
    quantiles, indices, counts = np.unique(np.asarray(table), return_inverse=True, return_counts=True)
    return np.interp(rewards, quantiles, np.bincount(indices, levels) / counts, left=0.0, right=1.0)
