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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
    names, judged = (np.asarray(list(labels), dtype=np.str_) for labels in (subsets, criteria))
    fitted: dict[str, Any] = {}
    for name in np.unique(names).tolist():
        of_subset = array[names == name]
        offset, temperature = _round_values(fit_offset_and_temperature(of_subset[:, 0], of_subset[:, 1]))
        fitted[name] = {"offset": offset, "temperature": temperature, "num_pairs": len(of_subset)}
    tables = {
        name: _compute_quantiles(array[judged == name], names[judged == name]) for name in np.unique(judged).tolist()
    }
    return {
        "subsets": fitted,
        "quantiles": _compute_quantiles(array, names),
        "quantiles_by_criterion": tables,
        "num_pairs": len(array),
        "prompt_version": prompt_version,
        "data": dict(data or {}),
    }


def fit_offset_and_temperature(chosen: ArrayLike, rejected: ArrayLike) -> tuple[float, float]:
    """Fit `P(chosen side | reward) = sigmoid((reward - offset) / temperature)` by penalised maximum likelihood.

    In units of the rewards' standard deviation, counted from their mean, offset and log temperature get a standard
    normal prior each. It weighs little beside more than a few pairs. It keeps the temperature away from zero where
    rewards separate the sides perfectly, and finite where they do not separate them.
    """
    from scipy.optimize import minimize

    both = np.concatenate([np.asarray(chosen, dtype=np.float64), np.asarray(rejected, dtype=np.float64)])
    centre, spread = both.mean(), both.std() or 1.0
    signs, scaled = np.repeat([1.0, -1.0], len(both) // 2), (both - centre) / spread

    def compute_loss(parameters: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of an offset and a log temperature, and its gradient."""
        steepness = np.exp(-parameters[1])
        logits = signs * (scaled - parameters[0]) * steepness
        # -sigmoid(-logits), the derivative of log(1 + exp(-logits)), without overflow.
        slopes = -np.exp(-np.logaddexp(0.0, logits))
        loss = np.logaddexp(0.0, -logits).sum() + (parameters**2).sum() / 2
        gradient = np.array([-(slopes * signs).sum() * steepness, -(slopes * logits).sum()]) + parameters
        return float(loss), gradient

    bounds = [(None, None), (-_MAX_LOG_TEMPERATURE, _MAX_LOG_TEMPERATURE)]
    tolerances = {"ftol": 1e-15, "gtol": 1e-9}
    found = minimize(compute_loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=bounds, options=tolerances)
    offset, log_temperature = found.x
    return float(centre + spread * offset), float(spread * np.exp(log_temperature))


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


@dataclass(frozen=True)
class Calibration:
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, config: SDiaRewardConfig) -> Calibration:
        if config.calibration is None:
            raise ValueError("the model has no calibration; fit one with sdiareward eval --calibrate FOLDER.")
        fitted = config.calibration["prompt_version"]
        if fitted != config.prompt_version:
            found = f"is of rewards under the prompts {fitted!r}, the model has {config.prompt_version!r}"
            raise ValueError(f"the calibration {found}; evaluate it again with sdiareward eval --calibrate FOLDER.")
        return cls(config.calibration)

    def by_subset(self, reward: float, subset: str) -> float:
        """Return log-odds: 0 is as likely the better as the worse side of a pair of its subset."""
        fitted = self._find(subset)
        return float((reward - fitted["offset"]) / fitted["temperature"])

    def compute_probability(self, margin: float, subset: str) -> float:
        """Return how probably the side of a pair that is ahead by `margin` is the better one."""
        return sigmoid(margin / self._find(subset)["temperature"])

    def by_quantile(self, reward: float, criterion: str) -> float:
        """Return the share, in 0-1, of the reference rewards below a reward."""
        table = self.parameters["quantiles_by_criterion"].get(criterion, self.parameters["quantiles"])
        # Of equal quantiles, where the distribution jumps, the middle counts.
        quantiles, indices, counts = np.unique(np.asarray(table), return_inverse=True, return_counts=True)
        levels = np.bincount(indices, np.linspace(0.0, 1.0, len(table))) / counts
        return float(np.interp(reward, quantiles, levels, left=0.0, right=1.0))

    def for_each(self, criteria: Sequence[str], subsets: str | Sequence[str] | None) -> Callable[[int, float], float]:
        """Return a function from a dialogue's index and reward to its calibrated value."""
        if subsets is None:
            return lambda index, reward: self.by_quantile(reward, criteria[index])
        names = [subsets] * len(criteria) if isinstance(subsets, str) else list(subsets)
        if len(names) != len(criteria):
            raise ValueError(f"got {len(names)} subsets for {len(criteria)} dialogues; give one for all or for each.")
        for name in names:
            self._find(name)
        return lambda index, reward: self.by_subset(reward, names[index])

    def _find(self, subset: str) -> Mapping[str, Any]:
        fitted: Mapping[str, Mapping[str, Any]] = self.parameters["subsets"]
        if subset not in fitted:
            raise ValueError(f"the calibration has the subsets {', '.join(sorted(fitted))}, not {subset}; name one.")
        return fitted[subset]


def sigmoid(value: float) -> float:
    """Return `1 / (1 + exp(-value))` without overflow."""
    return float(1 + np.tanh(value / 2)) / 2
