"""Score pairs with two baselines that a reward model has to beat before its accuracy means anything.

`acoustic` hears no words: each side is the mean and standard deviation over time of 80 log-mel bands. Where it does
well, chosen and rejected differ by recording channel or synthesizer, and a model may have learned no more than that.
`text` hears nothing: each side is the bag of words of its transcripts. Where both sides say the same, its scores tie.

Both are logistic regressions on chosen-minus-rejected features, without intercept, fitted by criterion on the training
split. They need neither torch nor a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.chat_sdiareward import list_items, turns_to_messages
from sdiareward.pairs.schema import SIDES


if TYPE_CHECKING:
    import datasets

Kind = Literal["acoustic", "text"]
KINDS: tuple[Kind, ...] = ("acoustic", "text")
NUM_MELS = 80
_WINDOW_SAMPLES = 400
_HOP_SAMPLES = 160
_FLOOR = 1e-10
_NUM_WORD_BUCKETS = 2**18

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaselineScores:
    """Scores of a baseline on the evaluated pairs, and the size of its training data."""

    chosen: np.ndarray
    rejected: np.ndarray
    num_train: dict[str, int]
    skipped_train: list[str] = field(default_factory=list)
    # Why evaluated pairs tie: their audio cannot be read.
    unread: list[str] = field(default_factory=list)


def score_baseline(
    kind: Kind,
    train: datasets.Dataset,
    train_criteria: Sequence[str],
    evaluated: datasets.Dataset,
    criteria: Sequence[str],
    *,
    num_threads: int = 2,
    progress: bool = False,
) -> BaselineScores:
    """Fit a baseline by criterion and score the evaluated pairs; one with unreadable audio is a tie, and reported."""
    _require_criteria(criteria, train_criteria)
    fitted_on = read_features(kind, train, num_threads=num_threads, progress=progress)
    scored = read_features(kind, evaluated, num_threads=num_threads, progress=progress)
    chosen, rejected = np.empty(len(criteria)), np.empty(len(criteria))
    num_train = {}
    for criterion in sorted(set(criteria)):
        rows = [row for row in _find_indices(train_criteria, criterion) if row not in fitted_on.failures]
        if not rows:
            raise ValueError(
                f"no training pair of {criterion} can be read, {next(iter(fitted_on.failures.values()))} Mend them, "
                "or leave the baselines out."
            )
        targets = _find_indices(criteria, criterion)
        num_train[criterion] = len(rows)
        weigh = fit_score(fitted_on.chosen[rows], fitted_on.rejected[rows])
        chosen[targets], rejected[targets] = weigh(scored.chosen[targets]), weigh(scored.rejected[targets])
    return BaselineScores(
        chosen, rejected, num_train, list(fitted_on.failures.values()), list(scored.failures.values())
    )


def _require_criteria(criteria: Sequence[str], train_criteria: Sequence[str]) -> None:
    absent = sorted(set(criteria) - set(train_criteria))
    if absent:
        raise ValueError(f"the training pairs have no criterion {absent}; give a training split that has, or none.")


def compute_acoustic_features(turns: Iterable[Mapping[str, Any]], name: str | None = None) -> np.ndarray:
    """Return mean and standard deviation over time of a side's log-mel bands, shape `(160,)`."""
    total, squares, num_frames = np.zeros(NUM_MELS), np.zeros(NUM_MELS), 0
    for content in _list_contents(turns, "audio"):
        mel = log_mel(read_audio(content, name=name))
        total += mel.sum(axis=0, dtype=np.float64)
        squares += np.square(mel, dtype=np.float64).sum(axis=0)
        num_frames += len(mel)
    if num_frames == 0:
        raise AudioError(f"{name or 'dialogue'}: no turn has audio.")
    mean = total / num_frames
    return np.concatenate([mean, np.sqrt(np.maximum(squares / num_frames - mean**2, 0.0))])


def log_mel(array: np.ndarray) -> np.ndarray:
    """Return log-mel energies `(num_frames, 80)` of 16 kHz mono at its true length: 25 ms windows every 10 ms."""
    from scipy.fft import rfft

    window, filters = _make_window_and_filters()
    padded = np.pad(array, (0, max(0, _WINDOW_SAMPLES - len(array))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW_SAMPLES)[::_HOP_SAMPLES]
    spectrum = rfft(frames * window, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    return np.log(np.maximum(power @ filters, _FLOOR))


@cache
def _make_window_and_filters() -> tuple[np.ndarray, np.ndarray]:
    """Return the window `(400,)` and the mel filters `(201, 80)`, float32."""
    from transformers.audio_utils import mel_filter_bank

    filters = mel_filter_bank(
        num_frequency_bins=_WINDOW_SAMPLES // 2 + 1,
        num_mel_filters=NUM_MELS,
        min_frequency=0.0,
        max_frequency=SAMPLING_RATE / 2,
        sampling_rate=SAMPLING_RATE,
        norm="slaney",
        mel_scale="slaney",
    )
    return np.hanning(_WINDOW_SAMPLES + 1)[:-1].astype(np.float32), filters.astype(np.float32)


@dataclass(frozen=True)
class SideFeatures:
    """Features of pairs, one row each: arrays `(num_pairs, 160)` or sparse matrices; `failures` has errors by row."""

    chosen: Any
    rejected: Any
    failures: dict[int, str]


def read_features(
    kind: Kind, pairs: datasets.Dataset, *, num_threads: int = 2, progress: bool = False
) -> SideFeatures:
    """Compute the features of pairs; a pair with unreadable audio has zeros and is among the `failures`."""
    if kind == "text":
        return _compute_text_features(pairs)
    from tqdm import tqdm

    with ThreadPoolExecutor(num_threads) as pool:
        results = pool.map(lambda index: _compute_acoustic_pair(pairs, index), range(len(pairs)))
        rows = list(tqdm(results, "acoustic features", len(pairs), unit="pair", disable=not progress))
    failures = {index: row for index, row in enumerate(rows) if isinstance(row, str)}
    for reason in failures.values():
        logger.warning("acoustic baseline: %s", reason)
    features = np.array([np.zeros((2, 2 * NUM_MELS)) if isinstance(row, str) else row for row in rows])
    return SideFeatures(features[:, 0], features[:, 1], failures)


def _compute_acoustic_pair(pairs: datasets.Dataset, index: int) -> np.ndarray | str:
    """Return the features of both sides, shape `(2, 160)`, or why there are none."""
    row = pairs[index]
    name = row.get("pair_id") or f"row {index}"
    try:
        return np.stack([compute_acoustic_features(row[side], f"{name}, {side}") for side in SIDES])
    except (AudioError, OSError, TypeError) as error:
        return str(error)


def _compute_text_features(pairs: datasets.Dataset) -> SideFeatures:
    from sklearn.feature_extraction.text import HashingVectorizer

    # Hashing has no vocabulary to fit, so neither empty transcripts nor unseen words need a rule.
    vectorizer = HashingVectorizer(
        n_features=_NUM_WORD_BUCKETS, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", norm=None, alternate_sign=False
    )
    words: dict[str, list[str]] = {side: [] for side in SIDES}
    failures: dict[int, str] = {}
    for index, row in enumerate(pairs.select_columns(list(SIDES))):
        try:
            texts = [" ".join(_list_contents(row[side], "text")) for side in SIDES]
        except (TypeError, ValueError) as error:
            failures[index] = f"row {index}: its sides cannot be read ({error})."
            logger.warning("text baseline: %s", failures[index])
            texts = ["", ""]
        for side, text in zip(SIDES, texts, strict=True):
            words[side].append(text)
    return SideFeatures(vectorizer.transform(words["chosen"]), vectorizer.transform(words["rejected"]), failures)


def _list_contents(turns: Iterable[Mapping[str, Any]], kind: str) -> list[Any]:
    messages = turns_to_messages(list(turns))
    return [item[kind] for message in messages for item in list_items(message) if item["type"] == kind]


def _find_indices(values: Sequence[str], wanted: str) -> list[int]:
    return [index for index, value in enumerate(values) if value == wanted]


def fit_score(chosen: Any, rejected: Any) -> Callable[[Any], np.ndarray]:
    """Fit weights by which the chosen sides score above the rejected ones; return what maps features to scores."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    if sparse.issparse(chosen):
        scale, stack = None, sparse.vstack
    else:
        scale, stack = np.concatenate([chosen, rejected]).std(axis=0), np.concatenate
        scale[scale == 0] = 1.0
    difference = chosen - rejected if scale is None else (chosen - rejected) / scale
    labels = np.repeat([1, 0], difference.shape[0])
    model = LogisticRegression(fit_intercept=False, max_iter=2000).fit(stack([difference, -difference]), labels)
    weights = model.coef_[0] if scale is None else model.coef_[0] / scale

    # Each row is summed by itself and in the same order, so equal features have exactly equal scores.
    def weigh(features: Any) -> np.ndarray:
        return features @ weights if scale is None else (features * weights).sum(axis=1)

    return weigh
