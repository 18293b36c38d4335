"""Remove music and noise (section B.1): the vocals that audio-separator finds with MDX23C-8KFFT-InstVoc_HQ.

The model is given the recording as it was published, at its own rate and channels up to 44.1 kHz stereo; its vocals
are reduced to the 16 kHz mono of the later stages. Chunks do not depend on one another: versions of the package before
0.47 keep settings that a short input changed, and write no file for a stem that is almost silent.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.files import replace_atomically

from .media import decode_stereo, round_to_16_bits
from .settings import AudioSeparatorSettings, ComponentError


# What the package's models are trained on.
_MODEL_RATE = 44_100
_STEM = "Vocals"


class AudioSeparatorEnhancer:
    """Separates the vocals of a recording chunk by chunk, so that memory does not grow with its length."""

    def __init__(self, settings: AudioSeparatorSettings):
        from audio_separator.separator import Separator

        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="sdiareward-separator-")
        options: dict[str, Any] = {} if settings.model_dir is None else {"model_file_dir": settings.model_dir}
        options |= {"output_dir": self._folder.name, "output_format": "WAV", "output_single_stem": _STEM}
        # It warns of every file that it writes. Scaling each chunk to its own peak would make steps between chunks.
        # `use_soundfile` writes the floats of the model; the default rounds them to 16 bits.
        options |= {"log_level": logging.ERROR, "normalization_threshold": 1.0, "use_soundfile": True}
        self._separator = Separator(sample_rate=_MODEL_RATE, **options)
        try:
            self._separator.load_model(model_filename=settings.model)
        except Exception as error:  # Network, missing model, damaged file: each means that it cannot be loaded.
            remedy = "put its files into model_dir or choose 'none'"
            raise ComponentError(f"enhancement: {settings.model!r} cannot be loaded ({error}); {remedy}.") from error

    def enhance(self, recording: Path, target_wav: Path, num_samples: int) -> None:
        """Write the vocals as a 16 kHz mono 16-bit WAV of `num_samples`, which appears when it is complete."""
        import soundfile

        with (
            replace_atomically(target_wav) as temporary,
            soundfile.SoundFile(temporary, "w", SAMPLING_RATE, 1, "PCM_16", format="WAV") as target,
        ):
            for block in self._separate_all(recording):
                target.write(round_to_16_bits(block[: num_samples - target.frames]))
            # The resampler rounds the length.
            target.write(np.zeros(num_samples - target.frames, np.int16))

    def _separate_all(self, recording: Path) -> Iterator[np.ndarray]:
        """Yield the vocals of a recording as mono blocks at 16 kHz."""
        import soxr

        chunk, margin = (round(s * _MODEL_RATE) for s in (self._settings.chunk_s, self._settings.margin_s))
        stream = soxr.ResampleStream(_MODEL_RATE, SAMPLING_RATE, 1, dtype="float32", quality="HQ")
        for window, start, end in cut_windows(decode_stereo(recording, _MODEL_RATE), chunk, margin):
            yield stream.resample_chunk(self._separate(window)[start:end].mean(axis=1))
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)

    def _separate(self, window: np.ndarray) -> np.ndarray:
        import soundfile

        # The package refuses digital silence.
        if not window.any():
            return window
        model = self._separator.model_instance
        before = dict(vars(model))
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            model.output_dir = folder
            mixture, vocals = Path(folder, "mixture.wav"), np.zeros_like(window)
            soundfile.write(mixture, np.clip(window, -1, 1), _MODEL_RATE, subtype="FLOAT")
            try:
                names = self._separator.separate(str(mixture), {_STEM: "vocals"})
            finally:
                # A short input changes the attributes of some versions' models.
                vars(model).clear()
                vars(model).update(before)
            if not names:
                raise ComponentError(f"enhancement: {self._settings.model!r} has no stem {_STEM!r}; name another.")
            # Some versions give whole paths, some names; a stem below 1e-6 may have no file.
            path = Path(folder, Path(names[0]).name)
            if path.is_file():
                found = soundfile.read(path, dtype="float32", always_2d=True)[0][: len(window)]
                vocals[: len(found)] = found
        return vocals


def cut_windows(blocks: Iterable[np.ndarray], chunk: int, margin: int) -> Iterator[tuple[np.ndarray, int, int]]:
    """Cut blocks `(num_frames, num_channels)` into chunks; yield each with its context and its bounds there."""
    held: list[np.ndarray] = []
    size = start = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        while size >= start + chunk + margin:
            window, end = np.concatenate(held), start + chunk
            yield window[: end + margin], start, end
            start = min(margin, end)
            held = [window[end - start :]]
            size = len(held[0])
    if size > start:
        yield np.concatenate(held), start, size
