"""Remove music and noise (section B.1): the vocals that audio-separator finds with MDX23C-8KFFT-InstVoc_HQ."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.files import replace_atomically

from .media import read_media
from .settings import AudioSeparatorSettings, ComponentError


class AudioSeparatorEnhancer:
    """Separates the vocals of a recording chunk by chunk, so that memory does not grow with its length.

    It works on the decoded recording at 16 kHz, which is all that later stages use; the package resamples it to the
    44.1 kHz of its models.

    Raises:
        ComponentError: The model cannot be loaded or downloaded.
    """

    def __init__(self, settings: AudioSeparatorSettings):
        from audio_separator.separator import Separator

        self._settings = settings
        # The package joins file names to the folder it was given once; each chunk is moved away before the next.
        self._folder = tempfile.TemporaryDirectory(prefix="sdiareward-separator-")
        options = {} if settings.model_dir is None else {"model_file_dir": settings.model_dir}
        self._separator = Separator(
            log_level=logging.WARNING,
            output_dir=self._folder.name,
            output_format="WAV",
            output_single_stem="Vocals",
            # Scaling each chunk to its own peak would make steps between chunks.
            normalization_threshold=1.0,
            **options,
        )
        try:
            self._separator.load_model(model_filename=settings.model)
        except Exception as error:  # Network, missing model, damaged file: each means that it cannot be loaded.
            raise ComponentError(
                f"enhancement: model {settings.model!r} cannot be loaded ({error}); put its files into model_dir or "
                "choose 'none'."
            ) from error

    def enhance(self, wav: Path, target_wav: Path) -> None:
        """Write the vocals of a 16 kHz mono WAV to another of the same length; it appears when it is complete."""
        import soundfile

        margin = round(self._settings.margin_s * SAMPLING_RATE)
        chunk = round(self._settings.chunk_s * SAMPLING_RATE)
        with (
            replace_atomically(target_wav) as temporary,
            soundfile.SoundFile(wav) as source,
            soundfile.SoundFile(temporary, "w", SAMPLING_RATE, 1, "PCM_16", format="WAV") as target,
        ):
            for start in range(0, source.frames, chunk):
                end = min(start + chunk, source.frames)
                first = max(0, start - margin)
                source.seek(first)
                array = source.read(min(end + margin, source.frames) - first, dtype="int16")
                vocals = self._separate(array)
                kept = vocals[start - first : end - first]
                target.write(np.clip(np.rint(kept * 32768), -32768, 32767).astype(np.int16))

    def _separate(self, array: np.ndarray) -> np.ndarray:
        """Return the vocals of a chunk, of the same length."""
        import soundfile

        folder = Path(self._folder.name)
        soundfile.write(folder / "chunk.wav", array, SAMPLING_RATE)
        names = self._separator.separate(str(folder / "chunk.wav"), {"Vocals": "vocals"})
        # Some versions give whole paths, some names.
        vocals = read_media(folder / Path(names[0]).name)[: array.size]
        return np.pad(vocals, (0, array.size - vocals.size))
