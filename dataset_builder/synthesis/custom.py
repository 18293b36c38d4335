"""Synthesizers of the user's own: a command, a Python class, an endpoint, a server that clones voices."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import AudioError, read_audio, resample
from sdiareward.common.files import split_lines
from sdiareward.pairs.path_sandbox import resolve_inside

from . import DialogueSynthesizer, Engine, SynthesisError, Synthesizer


_PLACEHOLDER = re.compile(r"\{(text|voice|output)\}")
# Length of an answer in an error message.
_MAX_QUOTED_CHARS = 300
# Sent if no key is configured; otherwise the client would send the one in OPENAI_API_KEY to any server.
_NO_KEY = "no-key"


class Command(Engine):
    """Any command that speaks a text into a WAV file.

    `command` is a list of arguments in which `{text}`, `{voice}` and `{output}` are replaced. Without `{text}` the
    command reads the text from standard input; without `{output}` it writes the recording to standard output. No shell
    is involved: a text cannot become a command.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        voices: Sequence[str] = (),
        languages: Sequence[str] | None = None,
        version: str | None = None,
        is_deterministic: bool = False,
        timeout_s: float = 120.0,
    ) -> None:
        if isinstance(command, str) or not command:
            raise ValueError(f"command is {command!r}; give a list of the program and its arguments.")
        used = set(_PLACEHOLDER.findall(" ".join(command)))
        if ("voice" in used) != bool(voices) or isinstance(voices, str):
            raise ValueError(f"voices is {voices!r}; give a list of names if, and only if, command has {{voice}}.")
        if which(command[0]) is None:
            raise SynthesisError(f"command {command[0]!r} is not found; install it, or give its path.")
        self._command, self._voices, self._used, self._timeout_s = command, voices, used, timeout_s
        self.languages, self.is_deterministic = languages, is_deterministic
        self.version = version or f"command {Path(command[0]).name}"

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        words = " ".join(text.replace("\0", " ").split())
        stdin = b"" if "text" in self._used else words.encode()
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "speech.wav"
            # A text that begins with a dash must not be read as an option.
            values = {"text": f" {words}" if words.startswith("-") else words, "output": str(output)}
            if self._voices:
                values["voice"] = self._voices[voice % len(self._voices)]
            arguments = [_PLACEHOLDER.sub(lambda found: values[found[1]], part) for part in self._command]
            try:
                done = subprocess.run(arguments, input=stdin, capture_output=True, timeout=self._timeout_s)
                if done.returncode:
                    reason = " ".join(done.stderr.decode("utf-8", errors="replace").split())[-_MAX_QUOTED_CHARS:]
                    raise SynthesisError(f"{self.version!r} ended with {done.returncode} for {words!r}: {reason}")
                spoken = output.read_bytes() if "output" in self._used else done.stdout
                return read_audio(spoken, name=f"what {self.version!r} wrote")
            except (AudioError, OSError, subprocess.TimeoutExpired) as error:
                raise SynthesisError(f"{self.version!r} gives no speech for {words!r}: {error}") from error


class EntryPoint(Engine):
    """A Python class, `entry: package.module:Class`, called with `options`; a mistake in it costs pairs, no build.

    Its code runs with the rights of the build: name only code that you trust.
    """

    def __new__(cls, *, entry: str, options: dict[str, Any] | None = None) -> Any:
        """Return an instance of the class itself if it speaks whole dialogues."""
        module, _, name = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        if not (module and name):
            raise ValueError(f"entry is {entry!r}; give package.module:Class.")
        try:
            found: Any = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SynthesisError(
                f"entry {entry!r} cannot be imported ({error}); install it, or set PYTHONPATH."
            ) from error
        engine = found(**(options or {}))
        if isinstance(engine, DialogueSynthesizer):
            return engine
        if not isinstance(engine, Synthesizer):
            raise ValueError(
                f"entry {entry!r} gives a {type(engine).__name__}, no synthesizer; it needs speak (or "
                "speak_dialogue), uses_reference, is_deterministic and version."
            )
        checked = super().__new__(cls)
        checked._engine, checked._entry = engine, entry
        checked.uses_reference, checked.is_deterministic = engine.uses_reference, engine.is_deterministic
        checked.version, checked.languages = engine.version, getattr(engine, "languages", None)
        return checked

    _engine: Synthesizer
    _entry: str

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        speech = np.asarray(self._engine.speak(text, voice=voice, reference=reference))
        if not (speech.ndim == 1 and speech.size and speech.dtype.kind == "f" and np.isfinite(speech).all()):
            raise SynthesisError(
                f"{self._entry} gives {speech.dtype} of shape {speech.shape} for {text!r}; mono floats at 16 kHz, of "
                "shape (num_samples,), are needed."
            )
        return speech.astype(np.float32)


class OpenAISpeech(Engine):
    """Any endpoint with OpenAI's `/v1/audio/speech`: OpenAI's server, or a local server of an open model.

    The client retries transient errors (429, 5xx, timeouts, lost connections) with growing pauses.
    """

    needs, remedy = ("openai",), "pip install openai"

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        voices: Sequence[str],
        languages: Sequence[str] | None = None,
        api_key_env: str | None = None,
        timeout_s: float = 120.0,
        max_retries: int = 5,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        import openai

        if isinstance(voices, str) or not voices:
            raise ValueError(f"openai-speech: voices is {voices!r}; it must be a list with at least one name.")
        self._key = os.environ.get(api_key_env, "") if api_key_env else _NO_KEY
        if not self._key:
            raise SynthesisError(f"openai-speech: the environment variable {api_key_env!r} is not set; set it.")
        self._client = openai.OpenAI(api_key=self._key, base_url=base_url, timeout=timeout_s, max_retries=max_retries)
        self._model, self._voices, self.languages = model, tuple(voices), languages
        self._extra_body = dict(extra_body or {})
        self.version = f"openai-speech {model}"

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        import openai

        label = f"openai-speech {self._model!r} gives no speech for {text!r}"
        try:
            answer = self._client.audio.speech.create(
                model=self._model,
                voice=self._voices[voice % len(self._voices)],
                input=text,
                response_format="wav",
                extra_body=self._extra_body,
            ).content
        except openai.OpenAIError as error:
            # Not chained: a server may quote the key, and the cause would print it.
            reason = (
                f"{error.status_code}: {error.response.text}" if isinstance(error, openai.APIStatusError) else error
            )
            raise SynthesisError(f"{label}: {type(error).__name__}: {self._quote(str(reason))}") from None
        try:
            return read_audio(answer)
        except AudioError as error:
            beginning = self._quote(answer.decode("latin-1"))
            raise SynthesisError(f"{label}: {error} The answer of {len(answer)} bytes begins {beginning!r}.") from None

    def _quote(self, text: str) -> str:
        return text.replace(self._key, "***")[:_MAX_QUOTED_CHARS]


@dataclass(frozen=True)
class Speaker:
    audio: Path
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)


@cache
def _read_speakers(path: str) -> tuple[Speaker, ...]:
    speakers = []
    for number, line in enumerate(split_lines(Path(path).read_text(encoding="utf-8")), start=1):
        try:
            values = {name: str(value) for name, value in json.loads(line).items()}
            speaker = Speaker(resolve_inside(Path(path).parent, values.pop("audio")), values.pop("text"), values)
            if not speaker.text.strip():
                raise ValueError("text is empty")
        except (ValueError, AttributeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number}: needs a JSON object with the text and the path of a recording below the "
                f"file's folder, audio ({type(error).__name__}: {error})."
            ) from None
        speakers.append(speaker)
    if not speakers:
        raise ValueError(f"{path}: has no speakers; give one JSON object with audio and text per line.")
    return tuple(speakers)


def select_speakers(path: str, where: Mapping[str, str]) -> list[Speaker]:
    """Return the speakers with these labels, in the file's order: a voice is an index into it."""
    return [speaker for speaker in _read_speakers(path) if where.items() <= speaker.labels.items()]


class VoiceCloning(Engine):
    """A server that clones a voice from a recording and its words, with a pool of reference speakers.

    - `cosyvoice`: `runtime/python/fastapi/server.py` of FunAudioLLM/CosyVoice. `GET /inference_zero_shot`, multipart
      (`tts_text`, `prompt_text`, `prompt_wav`), answers raw 16-bit samples at `sampling_rate`: 24 kHz for CosyVoice2,
      22.05 kHz for CosyVoice.
    - `step-audio`: `tts_api_server.py`, which is in no release of stepfun-ai/Step-Audio but in its open pull request
      141 (commit 5480302). `POST /clone` (also `speaker_name`) answers a WAV.

    `speakers` is a JSONL file, `{"audio": path beside the file, "text": its words, "age": ..., "gender": ...}` per
    line; `where` selects speakers by these labels.
    """

    needs, remedy = ("requests",), "pip install requests"
    apis = ("cosyvoice", "step-audio")

    def __init__(
        self,
        *,
        base_url: str,
        speakers: str,
        api: str = "cosyvoice",
        languages: Sequence[str] | None = None,
        where: Mapping[str, str] | None = None,
        sampling_rate: int = 24_000,
        timeout_s: float = 300.0,
        max_retries: int = 5,
    ) -> None:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry

        if api not in self.apis:
            raise ValueError(f"voice-cloning: api is {api!r}; it must be one of {list(self.apis)}.")
        self._speakers = select_speakers(speakers, where or {})
        if not self._speakers:
            raise ValueError(f"voice-cloning: {speakers} has no speaker with {dict(where or {})}; add one.")
        self._base_url, self._api, self._sampling_rate = base_url.rstrip("/"), api, sampling_rate
        self._timeout_s, self.languages, self.version = timeout_s, languages, f"voice-cloning {api}"
        retry = Retry(
            max_retries,
            backoff_factor=0.5,
            status_forcelist=(429, 500, 502, 503, 504),
            # POST too: speaking a text twice costs only time.
            allowed_methods=None,
            raise_on_status=False,
        )
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        import requests

        speaker = self._speakers[voice % len(self._speakers)]
        label = f"voice-cloning gives no speech for {text!r} in the voice of {speaker.audio.name}"
        fields = {"tts_text": text, "prompt_text": speaker.text}
        method, url = "GET", f"{self._base_url}/inference_zero_shot"
        if self._api == "step-audio":
            method, url = "POST", f"{self._base_url}/clone"
            fields["speaker_name"] = speaker.audio.stem
        try:
            files = {"prompt_wav": (speaker.audio.name, speaker.audio.read_bytes(), "application/octet-stream")}
            answer = self._session.request(method, url, data=fields, files=files, timeout=self._timeout_s)
        except (requests.RequestException, OSError) as error:
            raise SynthesisError(f"{label}: {type(error).__name__}: {error}") from error
        if not answer.ok:
            raise SynthesisError(f"{label}: {answer.status_code}: {answer.text[:_MAX_QUOTED_CHARS]}")
        try:
            if self._api == "step-audio":
                return read_audio(answer.content)
            # Not a buffer of whole samples: ValueError.
            samples = np.frombuffer(answer.content, dtype="<i2").astype(np.float32) / 2**15
            if not samples.size:
                raise ValueError("there are no samples.")
            return resample(samples, self._sampling_rate)
        except (AudioError, ValueError) as error:
            raise SynthesisError(f"{label}: {error} The answer begins {answer.content[:40]!r}.") from error
