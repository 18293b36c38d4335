"""Three simple baselines that a judge must beat before its accuracy means anything.

- `most_frequent`: always the most frequent score of the training split.
- `text`: words and word pairs of question and answer, and the overlap of their words. If it separates 5 from 3 without
  audio, the words reveal the style of speech.
- `acoustic`: mean and standard deviation over time of the log-mel bands of question and answer. If it predicts score 1
  without words, wrong answers sound different.
The last two are multinomial logistic regressions on the training split, and need neither torch nor a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.evaluation.baselines import compute_acoustic_features

from .judge import vote


if TYPE_CHECKING:
    from .score_samples import Samples

Kind = Literal["most_frequent", "text", "acoustic"]
KINDS: tuple[Kind, ...] = ("most_frequent", "text", "acoustic")
_NUM_THREADS = 2
_MAX_ITERATIONS = 2000
# Inverse strength of the penalty: text features have norm 1, acoustic features are 320 values of variance 1.
_TEXT_C, _ACOUSTIC_C = 10.0, 0.1

logger = logging.getLogger(__name__)


def predict_scores(kind: Kind, train: Samples, evaluated: Samples) -> list[int | None]:
    """Fit a baseline and return scores 1-5; None without a readable recording. Such training samples are skipped."""
    scores = [label["score"] for label in train.labels]
    if len(set(scores)) < 2:
        raise ValueError(f"the training split has {len(scores)} samples of score {set(scores)}; baselines need two.")
    if kind == "most_frequent":
        return [vote(scores)] * len(evaluated)
    predict: Callable[..., list[int | None]] = _predict_from_text if kind == "text" else _predict_from_sound
    return predict(train, scores, evaluated)


def _predict_from_text(train: Samples, scores: Sequence[int], evaluated: Samples) -> list[int | None]:
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    sides = ("question", "response")
    fitted_on, asked = (
        {side: [text or "" for text in each.rows[side]] for side in sides} for each in (train, evaluated)
    )
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", sublinear_tf=True)
    vectorizer.fit([*fitted_on["question"], *fitted_on["response"]])

    def features(texts: Mapping[str, list[str]]) -> Any:
        question, response = (vectorizer.transform(texts[side]) for side in sides)
        overlap = sparse.csr_matrix(question.multiply(response).sum(axis=1))
        return sparse.hstack([question, response, overlap]).tocsr()

    model = LogisticRegression(max_iter=_MAX_ITERATIONS, C=_TEXT_C).fit(features(fitted_on), scores)
    return [int(score) for score in model.predict(features(asked))]


def _predict_from_sound(train: Samples, scores: Sequence[int], evaluated: Samples) -> list[int | None]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known, asked = (
        _compute_acoustic_rows(train, "training samples"),
        _compute_acoustic_rows(evaluated, "evaluated samples"),
    )
    pairs = [(row, score) for row, score in zip(known, scores, strict=True) if row is not None]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=_MAX_ITERATIONS, C=_ACOUSTIC_C))
    model.fit(np.stack([row for row, _ in pairs]), [score for _, score in pairs])
    return [None if row is None else int(model.predict(row[None])[0]) for row in asked]


def _compute_acoustic_rows(samples: Samples, title: str) -> list[np.ndarray | None]:
    from tqdm.auto import tqdm

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        results = pool.map(lambda index: _compute_acoustic_row(samples[index]), range(len(samples)))
        return list(tqdm(results, title, len(samples), unit="sample", leave=False))


def _compute_acoustic_row(row: Mapping[str, Any]) -> np.ndarray | None:
    """Return the features of question and answer, shape `(320,)`; None without a readable recording."""
    name = f"sample {row['sample_id']}"
    try:
        array = read_audio(row["audio"], name=name)
        end, start = (round(row[field] * SAMPLING_RATE) for field in ("question_s", "response_s"))
        parts = (array[:end], array[max(len(array) - start, 0) :])
        return np.concatenate([compute_acoustic_features([_make_turn(part)], name) for part in parts])
    except (AudioError, FileNotFoundError) as error:
        logger.warning("acoustic baseline: %s", error)
        return None


def _make_turn(array: np.ndarray) -> dict[str, Any]:
    return {"role": "user", "audio": {"array": array, "sampling_rate": SAMPLING_RATE}}
