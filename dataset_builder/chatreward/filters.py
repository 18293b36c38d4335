"""Filters of ChatReward (section 3.2.3, step 3): words by speech recognition, emotions by a classifier.

The paper's models are Whisper large-v3 and Emotion2Vec, which runs in FunASR. Offline the words are checked by the
tiny English Whisper of a package, which makes more errors itself, and the emotions are not checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.dataset_builder.episodes import SkipError

from ..pipeline.asr import FasterWhisperTranscriber
from ..pipeline.settings import ComponentError, FasterWhisperSettings
from .schema import CATEGORIES


# Languages without spaces: the errors of characters are counted.
_BY_CHARACTER = ("zh", "ja", "th")


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
    if code in _BY_CHARACTER:
        return float(jiwer.cer(said.replace(" ", ""), heard.replace(" ", "")))
    return float(jiwer.wer(said, heard))


@dataclass(frozen=True)
class EmotionSettings:
    model: str
    # Label of the model -> emotion of Table 4; other labels do not count. Of `生气/angry` the second part counts.
    labels: Mapping[str, str] = field(default_factory=lambda: {name: name for name in CATEGORIES["emotion"]})
    threshold: float = 0.5  # Least score of the emotion that a voice should have.
    device: str = "cpu"
    backend: str = "transformers"
    hub: str = "hf"  # For FunASR: Hugging Face, or "ms" for ModelScope.

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.labels.values()) - set(CATEGORIES["emotion"])):
            raise ValueError(f"labels name {unknown}; Table 4 has {list(CATEGORIES['emotion'])}.")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold}; it must be from 0 to 1.")
        for name, known in (("backend", tuple(_CLASSIFIERS)), ("hub", ("hf", "ms"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {list(known)}.")


class EmotionClassifier:
    """Returns scores from 0 to 1 by emotion of Table 4 for mono 16 kHz speech, without unlabelled emotions."""

    def __init__(self, settings: EmotionSettings):
        self._settings = settings

    def score_emotions(self, array: np.ndarray) -> dict[str, float]:
        scores: dict[str, float] = {}
        for label, score in self._score_labels(array):
            if emotion := self._settings.labels.get(label):
                scores[emotion] = scores.get(emotion, 0.0) + float(score)
        return scores

    def _score_labels(self, array: np.ndarray) -> Iterable[tuple[str, float]]:
        raise NotImplementedError

    def _require_labels(self, known: Iterable[str]) -> None:
        if not set(known) & set(self._settings.labels):
            raise ValueError(
                f"{self._settings.model}: has the labels {sorted(known)}, and 'labels' names "
                f"{sorted(self._settings.labels)}; say which emotion each label of the model is."
            )


class TransformersClassifier(EmotionClassifier):
    """An audio classifier of `transformers`, such as a fine-tuned wav2vec 2.0."""

    def __init__(self, settings: EmotionSettings):
        super().__init__(settings)
        from transformers import pipeline

        self._pipeline: Any = pipeline("audio-classification", model=settings.model, device=settings.device)
        self._require_labels(self._pipeline.model.config.label2id or ())

    def _score_labels(self, array: np.ndarray) -> Iterable[tuple[str, float]]:
        # The pipeline takes the mapping apart.
        found = self._pipeline({"raw": array, "sampling_rate": SAMPLING_RATE}, top_k=None)
        return [(entry["label"], entry["score"]) for entry in found]


class FunasrClassifier(EmotionClassifier):
    """Emotion2Vec (Ma et al. 2023) in FunASR: the paper's classifier. A checkpoint without a head has no labels."""

    def __init__(self, settings: EmotionSettings):
        super().__init__(settings)
        try:
            from funasr import AutoModel
        except ImportError as error:
            raise ComponentError(
                f"the emotion classifier {settings.model} runs in FunASR, which cannot be imported ({error}); pip "
                "install funasr."
            ) from error
        options = {"device": settings.device, "hub": settings.hub, "disable_update": True, "disable_pbar": True}
        self._model: Any = AutoModel(model=settings.model, **options)

    def _score_labels(self, array: np.ndarray) -> Iterable[tuple[str, float]]:
        (found,) = self._model.generate(array, fs=SAMPLING_RATE, granularity="utterance", extract_embedding=False)
        labels = [str(label).rpartition("/")[2] for label in found["labels"]]
        self._require_labels(labels if found["scores"] else ())
        return zip(labels, found["scores"], strict=True)


_CLASSIFIERS: dict[str, Any] = {"transformers": TransformersClassifier, "funasr": FunasrClassifier}


def load_classifier(settings: EmotionSettings) -> EmotionClassifier:
    classifier: EmotionClassifier = _CLASSIFIERS[settings.backend](settings)
    return classifier
