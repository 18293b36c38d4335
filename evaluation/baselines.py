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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.chat_sdiareward import list_items, turns_to_messages
from sdiareward.common.errors import PairsError, UserError
from sdiareward.common.files import format_line, read_json_object, write_file
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import WRITTEN_ID, describe_pairs, require_other_recordings
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import SIDES

from .summary import Labels, Record


if TYPE_CHECKING:
    import datasets

Kind = Literal["acoustic", "text"]
KINDS: tuple[Kind, ...] = ("acoustic", "text")
LabelledPairs = tuple["datasets.Dataset", list[Record]]
NUM_MELS = 80
_WINDOW_SAMPLES = 400
_HOP_SAMPLES = 160
_FLOOR = 1e-10
_NUM_WORD_BUCKETS = 2**18
_NUM_THREADS = 2
_TRAIN_SPLIT = "train"
_REMEDY = "--baseline_data names pairs to fit them on"

logger = logging.getLogger(__name__)


class BaselineScores(NamedTuple):
    """Scores of a baseline on the evaluated pairs, and the size of its training data."""

    chosen: np.ndarray
    rejected: np.ndarray
    num_train: dict[str, int]
    skipped_train: list[str]
    # Why evaluated pairs tie: their audio cannot be read.
    unread: list[str]


class SideFeatures(NamedTuple):
    """Features of pairs, one row each: arrays `(num_pairs, 160)` or sparse matrices; `failures` has errors by row."""

    chosen: Any
    rejected: Any
    failures: dict[int, str]


def load_baseline_pairs(
    labels: Labels,
    dataset: str,
    split: str | None,
    train_split: str = _TRAIN_SPLIT,
    *,
    baseline_data: str | None = None,
    name: str | None = None,
    audio_root: str | None = None,
) -> tuple[LabelledPairs | None, str | None]:
    """Load the pairs to fit the baselines on, or None with the reason; raise if they share recordings."""
    if baseline_data is None and Path(dataset).is_file():
        return None, f"without baselines: {dataset} is one split; {_REMEDY}"
    try:
        own_name = None if baseline_data else name
        pairs = load_pairs(baseline_data or dataset, train_split, name=own_name, audio_root=audio_root)
    except PairsError as error:
        if baseline_data is None and train_split == _TRAIN_SPLIT:
            return None, f"without baselines: {str(error).rstrip('.')}; {_REMEDY}"
        remedy = "name another split with --train_split, or turn the baselines off with --no_baselines"
        raise UserError(f"there are no pairs to fit the baselines on ({error}); {remedy}.") from error
    train_labels = describe_pairs(pairs)
    absent = {label["criterion"] for label in labels} - {label["criterion"] for label in train_labels}
    if baseline_data is None and absent:
        return None, f"without baselines: {dataset} has no training pairs under {', '.join(sorted(absent))}; {_REMEDY}"
    compared = train_labels
    if baseline_data and WRITTEN_ID in pairs.column_names and Path(baseline_data).parent != Path(dataset).parent:
        # Ids made of relative paths: two folders may have recordings of the same names.
        compared = [{**label, "pair_id": None} for label in train_labels]
    fitted_on = f"{baseline_data} {train_split}" if baseline_data else train_split
    require_other_recordings(labels, compared, split or dataset, fitted_on)
    return (pairs, train_labels), None


def score_with_baselines(
    train: datasets.Dataset, train_labels: Labels, pairs: datasets.Dataset, labels: Labels, folder: Path
) -> dict[Kind, tuple[dict[str, Record], Record]]:
    """Score pairs with each baseline, or read its scores of the same pairs; also return its training counts."""
    identity = {"train": fingerprint_pairs(train_labels, train), "pairs": fingerprint_pairs(labels, pairs)}
    criteria = [[label["criterion"] for label in each] for each in (train_labels, labels)]
    found: dict[Kind, tuple[dict[str, Record], Record]] = {}
    for kind in KINDS:
        path = folder / f"{kind}.json"
        kept = read_json_object(path, "delete it") if path.exists() else {}
        if kept.get("identity") != identity:
            result = score_baseline(kind, train, criteria[0], pairs, criteria[1])
            fitted = {name: getattr(result, name) for name in ("num_train", "skipped_train", "unread")}
            sides = zip(labels, result.chosen.tolist(), result.rejected.tolist(), strict=True)
            scores = {label["pair_id"]: {"chosen": chosen, "rejected": rejected} for label, chosen, rejected in sides}
            kept = {"identity": identity, "fitted": fitted, "scores": scores}
            write_file(path, format_line(kept))
        found[kind] = kept["scores"], kept["fitted"]
    return found


def score_baseline(
    kind: Kind,
    train: datasets.Dataset,
    train_criteria: Sequence[str],
    evaluated: datasets.Dataset,
    criteria: Sequence[str],
) -> BaselineScores:
    """Fit a baseline by criterion and score the evaluated pairs; one with unreadable audio is a tie, and reported."""
    if absent := sorted(set(criteria) - set(train_criteria)):
        raise ValueError(f"the training pairs have no criterion {absent}; give a training split that has, or none.")
    fitted_on, scored = _read_features(kind, train), _read_features(kind, evaluated)
    chosen, rejected = np.empty(len(criteria)), np.empty(len(criteria))
    num_train = {}
    for criterion in sorted(set(criteria)):
        rows = [row for row in _find_rows(train_criteria, criterion) if row not in fitted_on.failures]
        if not rows:
            raise ValueError(
                f"no training pair of {criterion} can be read, {next(iter(fitted_on.failures.values()))} Mend them, "
                "or leave the baselines out."
            )
        targets = _find_rows(criteria, criterion)
        num_train[criterion] = len(rows)
        weigh = fit_score(fitted_on.chosen[rows], fitted_on.rejected[rows])
        chosen[targets], rejected[targets] = weigh(scored.chosen[targets]), weigh(scored.rejected[targets])
    unread = [list(each.failures.values()) for each in (fitted_on, scored)]
    return BaselineScores(chosen, rejected, num_train, *unread)


def _find_rows(values: Sequence[str], wanted: str) -> list[int]:
    return [row for row, value in enumerate(values) if value == wanted]


def _read_features(kind: Kind, pairs: datasets.Dataset) -> SideFeatures:
    """Compute the features of pairs; a pair that cannot be read has zeros and is among the `failures`."""
    from tqdm import tqdm

    is_text = kind == "text"
    read, absent = (_read_texts, ["", ""]) if is_text else (_compute_acoustic_pair, np.zeros((2, 2 * NUM_MELS)))
    with ThreadPoolExecutor(1 if is_text else _NUM_THREADS) as pool:
        found = pool.map(lambda row: read(pairs, row), range(len(pairs)))
        rows = list(tqdm(found, f"{kind} features", len(pairs), unit="pair", disable=is_text))
    failures = {row: reason for row, reason in enumerate(rows) if isinstance(reason, str)}
    for reason in failures.values():
        logger.warning("%s baseline: %s", kind, reason)
    sides = zip(*(absent if row in failures else found for row, found in enumerate(rows)), strict=True)
    chosen, rejected = map(_count_words if is_text else np.array, sides)
    return SideFeatures(chosen, rejected, failures)


def _compute_acoustic_pair(pairs: datasets.Dataset, row: int) -> list[np.ndarray] | str:
    """Return the features of both sides, or why there are none."""
    found = pairs[row]
    name = found.get("pair_id") or f"row {row}"
    try:
        return [compute_acoustic_features(found[side], f"{name}, {side}") for side in SIDES]
    except (AudioError, OSError, TypeError) as error:
        return str(error)


def _read_texts(pairs: datasets.Dataset, row: int) -> list[str] | str:
    """Return the words of both sides, or why there are none."""
    try:
        return [" ".join(_list_contents(pairs[row][side], "text")) for side in SIDES]
    except (TypeError, ValueError) as error:
        return f"row {row}: its sides cannot be read ({error})."


def _count_words(texts: Sequence[str]) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    # Hashing has no vocabulary to fit, so neither empty transcripts nor unseen words need a rule.
    return HashingVectorizer(
        n_features=_NUM_WORD_BUCKETS, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", norm=None, alternate_sign=False
    ).transform(texts)


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


def _list_contents(turns: Iterable[Mapping[str, Any]], kind: str) -> list[Any]:
    messages = turns_to_messages(list(turns))
    return [item[kind] for message in messages for item in list_items(message) if item["type"] == kind]


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
