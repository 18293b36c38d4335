"""Filters of ChatReward (section 3.2.3, step 3): words by speech recognition, emotions by a classifier.

The paper's models are Whisper large-v3 and Emotion2Vec, which runs in FunASR. Offline the words are checked by the
tiny English Whisper of a package, which makes more errors itself, and the emotions are not checked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pydantic.dataclasses

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.dataset_builder.episodes import SkipError

from ..pipeline.components import FasterWhisperTranscriber
from ..pipeline.settings import ComponentError, FasterWhisperSettings
from .schema import CATEGORIES


class WordErrors:
    def __init__(self, settings: FasterWhisperSettings):
        self._settings = settings

    @cached_property
    def _transcriber(self) -> FasterWhisperTranscriber:
        logging.getLogger("faster_whisper").setLevel(logging.WARNING)
        return FasterWhisperTranscriber(self._settings)

    def rate(self, text: str, array: np.ndarray, language: str) -> float | None:
        """Return the word error rate of 16 kHz mono speech; None for other languages, and for fillers alone."""
        try:
            return word_error_rate(text, self._transcriber.transcribe(array, language), language)
        except SkipError:
            return None


def word_error_rate(reference: str, hypothesis: str, language: str = "en") -> float:
    """Return the word error rate, of characters in a language without spaces; spellings are unified as by Whisper."""
    import jiwer
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    code = language.lower().split("-")[0]
    normalize = EnglishTextNormalizer({}) if code == "en" else BasicTextNormalizer()
    said, heard = normalize(reference).strip(), normalize(hypothesis).strip()
    if not any(character.isalnum() for character in said):
        raise SkipError("no_words", f"{reference!r} holds no word; a word error rate needs one.")
    if code in ("zh", "ja", "th"):
        return float(jiwer.cer(said.replace(" ", ""), heard.replace(" ", "")))
    return float(jiwer.wer(said, heard))


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class EmotionSettings:
    model: str
    # Label of the model -> emotion of Table 4; other labels do not count. Of `生气/angry` the second part counts.
    labels: Mapping[str, str] = field(default_factory=lambda: {name: name for name in CATEGORIES["emotion"]})
    threshold: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.5  # Least score of the emotion asked for.
    device: str = "cpu"
    backend: Literal["transformers", "funasr"] = "transformers"
    hub: Literal["hf", "ms"] = "hf"  # For FunASR: Hugging Face or ModelScope.

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.labels.values()) - set(CATEGORIES["emotion"])):
            raise ValueError(f"labels name {unknown}; Table 4 has {list(CATEGORIES['emotion'])}.")


Labels = Iterable[tuple[str, float]]


def load_classifier(settings: EmotionSettings) -> Callable[[np.ndarray], dict[str, float]]:
    """Return what scores mono 16 kHz speech, from 0 to 1 by emotion of Table 4, without unlabelled emotions."""
    score_labels = (_load_funasr if settings.backend == "funasr" else _load_transformers)(settings)

    def score_emotions(array: np.ndarray) -> dict[str, float]:
        found = dict(score_labels(array))
        if not found.keys() & settings.labels.keys():
            named = f"'labels' names {sorted(settings.labels)}; name the emotion of each label of the model"
            raise ValueError(f"{settings.model}: has the labels {sorted(found)}, and {named}.")
        scores: dict[str, float] = {}
        for label, emotion in settings.labels.items():
            if label in found:
                scores[emotion] = scores.get(emotion, 0.0) + float(found[label])
        return scores

    return score_emotions


def _load_transformers(settings: EmotionSettings) -> Callable[[np.ndarray], Labels]:
    """Load an audio classifier of `transformers`, such as a fine-tuned wav2vec 2.0."""
    from transformers import pipeline

    classify: Any = pipeline("audio-classification", model=settings.model, device=settings.device)

    def score(array: np.ndarray) -> Labels:
        # The pipeline takes the mapping apart.
        found = classify({"raw": array, "sampling_rate": SAMPLING_RATE}, top_k=None)
        return [(entry["label"], entry["score"]) for entry in found]

    return score


def _load_funasr(settings: EmotionSettings) -> Callable[[np.ndarray], Labels]:
    """Load Emotion2Vec (Ma et al. 2023), the paper's classifier. A checkpoint without a head has no labels."""
    try:
        from funasr import AutoModel
    except ImportError as error:
        reason = f"{settings.model} runs in FunASR, which cannot be imported ({error}); pip install funasr."
        raise ComponentError(f"the emotion classifier {reason}") from error
    options = {"device": settings.device, "hub": settings.hub, "disable_update": True, "disable_pbar": True}
    model: Any = AutoModel(model=settings.model, **options)

    def score(array: np.ndarray) -> Labels:
        (found,) = model.generate(array, fs=SAMPLING_RATE, granularity="utterance", extract_embedding=False)
        return zip((str(label).rpartition("/")[2] for label in found["labels"]), found["scores"], strict=False)

    return score
