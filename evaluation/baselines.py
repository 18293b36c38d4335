"""Score pairs with two baselines that a reward model must beat before its accuracy means anything.

`acoustic` ignores words: its features are the mean and standard deviation over time of 80 log-mel bands per side. If
it does well, chosen and rejected differ by channel or synthesizer, and a model may have learned only that. `text`
ignores audio: its features are bags of words of the transcripts. If both sides say the same, its scores tie.

Both are logistic regressions on chosen-minus-rejected features, without intercept, fitted per criterion on the
training split. They need neither torch nor a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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

KINDS = ("acoustic", "text")
LabelledPairs = tuple["datasets.Dataset", list[Record]]
NUM_MELS = 80
_WINDOW_SAMPLES = 400
_HOP_SAMPLES = 160
_FLOOR = 1e-10
_NUM_WORD_BUCKETS = 2**18
_NUM_THREADS = 2
_TRAIN_SPLIT = "train"

logger = logging.getLogger(__name__)


def load_baseline_pairs(
    labels: Labels,
    dataset: str,
    split: str | None,
    train_split: str = _TRAIN_SPLIT,
    *,
    baseline_data: str | None = None,
    name: str | None = None,
    audio_root: str | None = None,
    criterion: str | None = None,
) -> tuple[LabelledPairs | None, str | None]:
    """Load the pairs for fitting the baselines, or return None and the reason; raise if recordings are shared."""
    remedy = "give pairs to fit them on with the key baseline_data of --config"
    if baseline_data is None and Path(dataset).is_file():
        return None, f"no baselines: {dataset} has one split; {remedy}"
    try:
        own_name = None if baseline_data else name
        options: Record = {"name": own_name, "audio_root": audio_root, "criterion": criterion}
        pairs = load_pairs(baseline_data or dataset, train_split, **options)
    except PairsError as error:
        if baseline_data is None and train_split == _TRAIN_SPLIT:
            return None, f"no baselines: {str(error).rstrip('.')}; {remedy}"
        remedy = "choose another split with the key train_split of --config, or omit the baselines with --no_baselines"
        raise UserError(f"no pairs to fit the baselines on ({error}); {remedy}.") from error
    train_labels = describe_pairs(pairs)
    absent = {label["criterion"] for label in labels} - {label["criterion"] for label in train_labels}
    if baseline_data is None and absent:
        return None, f"no baselines: {dataset} has no training pairs under {', '.join(sorted(absent))}; {remedy}"
    compared = train_labels
    if baseline_data and WRITTEN_ID in pairs.column_names and Path(baseline_data).parent != Path(dataset).parent:
        # Ids from relative paths: recordings in two folders may have the same name.
        compared = [{**label, "pair_id": None} for label in train_labels]
    fitted_on = f"{baseline_data} {train_split}" if baseline_data else train_split
    require_other_recordings(labels, compared, split or dataset, fitted_on)
    return (pairs, train_labels), None


def score_with_baselines(
    train: datasets.Dataset, train_labels: Labels, pairs: datasets.Dataset, labels: Labels, folder: Path
) -> dict[str, tuple[dict[str, Record], Record]]:
    """Score pairs with each baseline, or read its earlier scores of them; also return its training counts."""
    identity = {"train": fingerprint_pairs(train_labels, train), "pairs": fingerprint_pairs(labels, pairs)}
    criteria = [[label["criterion"] for label in each] for each in (train_labels, labels)]
    found = {}
    for kind in KINDS:
        path = folder / f"{kind}.json"
        kept = read_json_object(path, "delete it") if path.exists() else {}
        if kept.get("identity") != identity:
            sides, fitted = score_baseline(kind, train, criteria[0], pairs, criteria[1])
            rows = zip(labels, sides.T.tolist(), strict=True)
            scores = {label["pair_id"]: dict(zip(SIDES, row, strict=True)) for label, row in rows}
            kept = {"identity": identity, "fitted": fitted, "scores": scores}
            write_file(path, format_line(kept))
        found[kind] = kept["scores"], kept["fitted"]
    return found


def score_baseline(
    kind: str, train: datasets.Dataset, train_criteria: Sequence[str], pairs: datasets.Dataset, criteria: Sequence[str]
) -> tuple[NDArray[np.float64], Record]:
    """Fit a baseline per criterion; return the scores of both sides, `(2, num_pairs)`, and training counts.

    A training pair with unreadable audio is skipped; an evaluated one counts as a tie and is listed in `unread`.
    """
    if absent := sorted(set(criteria) - set(train_criteria)):
        raise ValueError(f"the training pairs have no criterion {absent}; give a training split that has it, or none.")
    (fitted_on, skipped), (scored, unread) = _read_features(kind, train), _read_features(kind, pairs)
    scores, num_train = np.empty((len(SIDES), len(criteria))), {}
    for criterion in sorted(set(criteria)):
        rows = [row for row, each in enumerate(train_criteria) if each == criterion and row not in skipped]
        if not rows:
            first = next(iter(skipped.values()))
            raise ValueError(f"no training pair of {criterion} can be read: {first} Fix them, or omit the baselines.")
        num_train[criterion] = len(rows)
        weigh = fit_score(*(side[rows] for side in fitted_on))
        targets = [row for row, each in enumerate(criteria) if each == criterion]
        scores[:, targets] = [weigh(side[targets]) for side in scored]
    return scores, {"num_train": num_train, "skipped_train": [*skipped.values()], "unread": [*unread.values()]}


def cross_fit_baseline(
    kind: str, pairs: datasets.Dataset, criteria: Sequence[str], folds: NDArray[np.int64]
) -> tuple[NDArray[np.float64], int]:
    """Score the pairs of each fold with a baseline fitted per criterion on the other folds.

    Returns:
        The scores of both sides, of shape `(num_pairs, 2)`, and the smallest number of training pairs. A pair ties if
        its audio is unreadable or its criterion is in no other fold.
    """
    sides, skipped = _read_features(kind, pairs)
    scores, named = np.zeros((len(criteria), len(SIDES))), np.array(criteria)
    is_read = ~np.isin(np.arange(len(criteria)), list(skipped))
    num_train = []
    for fold, criterion in sorted(set(zip(folds.tolist(), criteria, strict=True))):
        is_of = named == criterion
        fitted_on, targets = (np.flatnonzero(is_of & is_in) for is_in in ((folds != fold) & is_read, folds == fold))
        num_train.append(len(fitted_on))
        if len(fitted_on):
            weigh = fit_score(*(side[fitted_on] for side in sides))
            scores[targets] = np.stack([weigh(side[targets]) for side in sides], axis=1)
    return scores, min(num_train)


def _read_features(kind: str, pairs: datasets.Dataset) -> tuple[list[Any], dict[int, str]]:
    """Return the features of each side, one row per pair, and errors by row; an unreadable pair gets zeros."""
    from tqdm import tqdm

    is_text = kind == "text"

    def read(row: int) -> list[Any] | str:
        pair = pairs[row]
        name = pair.get("pair_id") or f"row {row}"
        try:
            if is_text:
                return [" ".join(_list_contents(pair[side], "text")) for side in SIDES]
            return [compute_acoustic_features(pair[side], f"{name}, {side}") for side in SIDES]
        except (AudioError, OSError) as error:
            return str(error)
        except (TypeError, ValueError) as error:
            return f"{name}: its sides cannot be read ({error})."

    with ThreadPoolExecutor(1 if is_text else _NUM_THREADS) as pool:
        rows = pool.map(read, range(len(pairs)))
        found = list(tqdm(rows, f"{kind} features", len(pairs), unit="pair", disable=is_text))
    failures = {row: reason for row, reason in enumerate(found) if isinstance(reason, str)}
    for reason in failures.values():
        logger.warning("%s baseline: %s", kind, reason)
    absent = ["", ""] if is_text else np.zeros((2, 2 * NUM_MELS))
    sides = zip(*(absent if row in failures else each for row, each in enumerate(found)), strict=True)
    return [_count_words(side) if is_text else np.array(side) for side in sides], failures


def _count_words(texts: Sequence[str]) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    # Hashing needs no vocabulary and therefore no rule for empty transcripts or unseen words.
    options: dict[str, Any] = {"ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b", "norm": None}
    return HashingVectorizer(n_features=_NUM_WORD_BUCKETS, alternate_sign=False, **options).transform(texts)


def compute_acoustic_features(turns: Iterable[Mapping[str, Any]], name: str | None = None) -> np.ndarray:
    """Return the mean and standard deviation over time of a side's log-mel bands, shape `(160,)`."""
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
    """Return log-mel energies `(num_frames, 80)` of unpadded 16 kHz mono: 25 ms windows every 10 ms."""
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

    num_bins, nyquist_hz = _WINDOW_SAMPLES // 2 + 1, SAMPLING_RATE / 2
    filters = mel_filter_bank(num_bins, NUM_MELS, 0.0, nyquist_hz, SAMPLING_RATE, norm="slaney", mel_scale="slaney")
    return np.hanning(_WINDOW_SAMPLES + 1)[:-1].astype(np.float32), filters.astype(np.float32)


def _list_contents(turns: Iterable[Mapping[str, Any]], kind: str) -> list[Any]:
    messages = turns_to_messages(list(turns))
    return [item[kind] for message in messages for item in list_items(message) if item["type"] == kind]


def fit_score(chosen: Any, rejected: Any) -> Callable[[Any], np.ndarray]:
    """Fit weights that score chosen sides above rejected ones; return the function from features to scores."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    is_sparse = sparse.issparse(chosen)
    stack, scale = (sparse.vstack, 1.0) if is_sparse else (np.concatenate, np.concatenate([chosen, rejected]).std(0))
    scale = scale if is_sparse else np.where(scale == 0, 1.0, scale)
    difference = (chosen - rejected) / scale
    labels = np.repeat([1, 0], difference.shape[0])
    model = LogisticRegression(fit_intercept=False, max_iter=2000).fit(stack([difference, -difference]), labels)
    weights = model.coef_[0] / scale

    # Rows are summed separately and in the same order, so equal features get exactly equal scores.
    def weigh(features: Any) -> np.ndarray:
        return features @ weights if is_sparse else (features * weights).sum(axis=1)

    return weigh
