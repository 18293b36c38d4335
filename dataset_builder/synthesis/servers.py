"""Synthesizers on servers: speech endpoints, voice cloning, SoulX-Podcast."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE, AudioError, read_audio, resample
from sdiareward.common.errors import AGAIN, UserError
from sdiareward.common.files import read_lines
from sdiareward.pairs.path_sandbox import resolve_inside

from . import Engine, Lines, Names, ReferenceClip, SynthesisError


# Length of a quoted answer in an error message.
_MAX_QUOTED_CHARS = 300
# Sent if no key is configured; otherwise the client would send OPENAI_API_KEY to any server.
_NO_KEY = "no-key"


@dataclass(eq=False)
class OpenAISpeech(Engine):
    """An endpoint with OpenAI's `/v1/audio/speech`: OpenAI's server, or a local server of an open model.

    The client retries transient errors (429, 5xx, timeouts, lost connections) with increasing pauses.
    """

    needs, remedy = ("openai",), "pip install openai"
    base_url: str
    model: str
    voices: Names
    languages: Sequence[str] | None = None
    api_key_env: str | None = None
    timeout_s: float = 120.0
    max_retries: int = 5
    extra_body: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        import openai

        self._key = os.environ.get(self.api_key_env, "") if self.api_key_env else _NO_KEY
        if not self._key:
            raise SynthesisError(f"openai-speech: set the environment variable {self.api_key_env!r}.")
        options: dict[str, Any] = {"timeout": self.timeout_s, "max_retries": self.max_retries}
        self._client = openai.OpenAI(api_key=self._key, base_url=self.base_url, **options)
        self.version = f"openai-speech {self.model}"

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        import openai

        name, answer = self.voices[voice % len(self.voices)], b""
        try:
            answer = self._client.audio.speech.create(
                model=self.model, voice=name, input=text, response_format="wav", extra_body=self.extra_body
            ).content
            return read_audio(answer)
        except openai.APIStatusError as error:
            reason = f"{type(error).__name__}: {error.status_code}: {self._quote(error.response.text)}"
        except openai.OpenAIError as error:
            reason = f"{type(error).__name__}: {self._quote(str(error))}"
        except AudioError as error:
            reason = f"{error} The answer ({len(answer)} bytes) begins {self._quote(answer.decode('latin-1'))!r}."
        # Not chained, because a server may quote the key in its error.
        raise ValueError(reason)

    def _quote(self, text: str) -> str:
        return text.replace(self._key, "***")[:_MAX_QUOTED_CHARS]


@dataclass(frozen=True)
class Speaker:
    audio: Path
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)


@cache
def _read_speakers(path: str) -> tuple[Speaker, ...]:
    def make(row: Any) -> Speaker:
        labels = {name: str(value) for name, value in row.items()}
        speaker = Speaker(resolve_inside(Path(path).parent, labels.pop("audio")), labels.pop("text"), labels)
        if not speaker.text.strip():
            raise ValueError("text is empty; give the words of the recording.")
        return speaker

    if not (speakers := read_lines(path, make)):
        raise ValueError(f"{path}: has no speakers; give one JSON object with audio and text per line.")
    return tuple(speakers)


def select_speakers(path: str, where: Mapping[str, str]) -> list[Speaker]:
    """Return the speakers with these labels, in file order; a voice is an index into them."""
    return [speaker for speaker in _read_speakers(path) if where.items() <= speaker.labels.items()]


@dataclass(eq=False)
class VoiceCloning(Engine):
    """A server that clones a voice from a recording and its words, with a pool of reference speakers.

    - `cosyvoice`: `runtime/python/fastapi/server.py` of FunAudioLLM/CosyVoice. `GET /inference_zero_shot`, multipart
      (`tts_text`, `prompt_text`, `prompt_wav`), returns raw 16-bit samples at `sampling_rate`: 24 kHz for CosyVoice2,
      22.05 kHz for CosyVoice.
    - `step-audio`: `tts_api_server.py` from the open pull request 141 of stepfun-ai/Step-Audio (commit 5480302); no
      release has it. `POST /clone` (also with `speaker_name`) returns a WAV.

    `speakers` is a JSONL file with `{"audio": path beside the file, "text": its words, "age": ..., "gender": ...}` per
    line; `where` selects speakers by these labels.
    """

    needs, remedy = ("requests",), "pip install requests"
    base_url: str
    speakers: str
    api: Literal["cosyvoice", "step-audio"] = "cosyvoice"
    languages: Sequence[str] | None = None
    where: Mapping[str, str] | None = None
    sampling_rate: int = 24_000
    timeout_s: float = 300.0
    max_retries: int = 5

    def __post_init__(self) -> None:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry

        self._speakers = select_speakers(self.speakers, self.where or {})
        if not self._speakers:
            raise ValueError(f"voice-cloning: {self.speakers} has no speaker with {dict(self.where or {})}; add one.")
        self.version = f"voice-cloning {self.api}"
        # Also retry POST: repeating a synthesis costs only time.
        again: dict[str, Any] = {"status_forcelist": (429, 500, 502, 503, 504), "allowed_methods": None}
        retry = Retry(self.max_retries, backoff_factor=0.5, raise_on_status=False, **again)
        self._session = requests.Session()
        self._session.mount("http://", HTTPAdapter(max_retries=retry))
        self._session.mount("https://", HTTPAdapter(max_retries=retry))

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        speaker = self._speakers[voice % len(self._speakers)]
        fields = {"tts_text": text, "prompt_text": speaker.text}
        files = {"prompt_wav": (speaker.audio.name, speaker.audio.read_bytes(), "application/octet-stream")}
        method, path = "GET", "inference_zero_shot"
        if self.api == "step-audio":
            method, path, fields = "POST", "clone", {**fields, "speaker_name": speaker.audio.stem}
        url = f"{self.base_url.rstrip('/')}/{path}"
        answer = self._session.request(method, url, data=fields, files=files, timeout=self.timeout_s)
        try:
            if not answer.ok:
                raise ValueError(f"{answer.status_code}: {answer.text[:_MAX_QUOTED_CHARS]}")
            if self.api == "step-audio":
                return read_audio(answer.content)
            # A partial sample raises ValueError.
            return resample(np.frombuffer(answer.content, dtype="<i2").astype(np.float32) / 2**15, self.sampling_rate)
        except ValueError as error:
            raise ValueError(f"{speaker.audio.name}: {error} The answer begins {answer.content[:40]!r}.") from error


@dataclass(eq=False)
class SoulXPodcast:
    """SoulX-Podcast (Apache-2.0), the paper's synthesizer (appendix B.1): dialogues in voices cloned zero-shot.

    Its requirements conflict with ours, so it runs on a separate server (`soulx_server.py`). A dialogue is one
    request, so that each turn is conditioned on the turns before. References come from the recorded dialogue; for
    scripts, the option `voices` gives a recording and its words for each role.
    """

    needs, remedy = ("requests",), "pip install requests"
    # Seeded, but the order of summation on a GPU may vary.
    is_deterministic = False
    model_path: str
    addresses: Names
    voices: Mapping[str, Mapping[str, str]] | None = None
    languages: Sequence[str] | None = None
    llm_engine: str = "hf"  # Or "vllm", as the servers run.
    fp16_flow: bool = False  # Half precision in the flow model, as the servers run.
    timeout_s: float = 1800.0  # Includes waiting for earlier dialogues.
    # Sampling of speech tokens, with the same seed for each dialogue; SoulX-Podcast's defaults.
    seed: int = 1988
    temperature: float = 0.6
    top_k: int = 100
    top_p: float = 0.9
    repetition_penalty: float = 1.25

    def __post_init__(self) -> None:
        import requests

        self._session = requests.Session()
        # Ignore proxies of the environment: the servers are the user's machines.
        self._session.trust_env = False
        # Workers start with different servers.
        first = os.getpid() % len(self.addresses)
        self._addresses = cycle([*self.addresses[first:], *self.addresses[:first]])
        name = Path(self.model_path).name
        drawn = ("seed", "temperature", "top_k", "top_p", "repetition_penalty")
        runs = {"model": name, "llm_engine": self.llm_engine, "fp16_flow": self.fp16_flow}
        self._how = {"sampling": {each: getattr(self, each) for each in drawn}, "runs": runs}
        voices = (self.voices or {}).items()
        self._clips = {role: ReferenceClip(read_audio(voice["audio"]), voice["text"]) for role, voice in voices}
        self.version = f"soulx-podcast {name}"

    def speak_dialogue(self, lines: Lines, references: Mapping[str, ReferenceClip]) -> list[np.ndarray]:
        """Return one mono 16 kHz float32 array per `(role, text)`; `references` has one clip per role."""
        import requests

        script, address = _make_script(lines, {**self._clips, **references}), next(self._addresses).rstrip("/")
        try:
            answer = self._session.post(f"{address}/dialogue", json={**script, **self._how}, timeout=self.timeout_s)
        except requests.RequestException as error:
            raise UserError(f"soulx-podcast: the server {address}: {error}; start it again, then {AGAIN}.") from error
        reason = f"{answer.status_code} {answer.text[:_MAX_QUOTED_CHARS]}"
        if answer.status_code == 500:
            raise SynthesisError(f"soulx-podcast returned no speech: {reason}")
        if not answer.ok:
            raise UserError(f"soulx-podcast: the server {address} answered {reason}; fix it, then {AGAIN}.")
        found = answer.json()
        waves = [np.frombuffer(base64.b64decode(wave), "<f4") for wave in found["waves"]]
        turns = [resample(wave, found["sampling_rate"]) for wave in waves]
        if len(turns) != len(lines) or not all(len(t) >= MIN_SAMPLES and np.isfinite(t).all() for t in turns):
            lengths = [len(turn) for turn in turns]
            raise SynthesisError(f"soulx-podcast gave {lengths} samples for {len(lines)} lines; each needs speech.")
        return turns


def _make_script(lines: Lines, references: Mapping[str, ReferenceClip]) -> dict[str, Any]:
    """Return a dialogue in the repository's format, with single spaces, because a line break would end the text."""
    import soundfile

    roles = list(dict.fromkeys(role for role, _ in lines))
    if missing := [role for role in roles if role not in references]:
        raise SynthesisError(f"soulx-podcast: no reference clip for {missing}; add one to 'voices'.")
    if not all(words.split() for _, words in lines):
        raise SynthesisError("soulx-podcast: a line has no text; remove it.")
    marks = {role: f"S{number}" for number, role in enumerate(roles, start=1)}
    speakers: dict[str, dict[str, str]] = {}
    for role, mark in marks.items():
        soundfile.write(wav := io.BytesIO(), references[role].array, SAMPLING_RATE, format="WAV", subtype="PCM_16")
        prompt = base64.b64encode(wav.getvalue()).decode()
        speakers[mark] = {"prompt_audio": prompt, "prompt_text": " ".join(references[role].text.split())}
    return {"speakers": speakers, "text": [[marks[role], " ".join(words.split())] for role, words in lines]}
