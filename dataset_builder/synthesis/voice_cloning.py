"""Servers that clone a voice from a recording and its words, one text at a time, with a pool of reference speakers.

- `cosyvoice`: `runtime/python/fastapi/server.py` of FunAudioLLM/CosyVoice. `GET /inference_zero_shot`, multipart
  (`tts_text`, `prompt_text`, `prompt_wav`), answers raw 16-bit samples at `sampling_rate`: 24 kHz for CosyVoice2,
  22.05 kHz for CosyVoice.
- `step-audio`: `tts_api_server.py`, which is in no release of stepfun-ai/Step-Audio but in its open pull request 141
  (commit 5480302). `POST /clone` (also `speaker_name`) answers a WAV.

`speakers` is a JSONL file, `{"audio": path beside the file, "text": its words, "age": ..., "gender": ...}` per line;
`where` selects speakers by these labels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import AudioError, read_audio, resample
from sdiareward.common.files import split_lines
from sdiareward.pairs.path_sandbox import resolve_inside

from . import SynthesisError


APIS = ("cosyvoice", "step-audio")
_PAUSE_FACTOR_S = 0.5
_PASSING_STATUS = (429, 500, 502, 503, 504)
# Length of a server's answer in an error message.
_MAX_QUOTED_CHARS = 300


@dataclass(frozen=True)
class Speaker:
    audio: Path
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)


@cache
def read_speakers(path: str) -> tuple[Speaker, ...]:
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{path}: no such file of speakers; give one JSON object with audio and text per line."
        )
    lines = split_lines(file.read_text(encoding="utf-8"))
    speakers = tuple(_read_speaker(line, file.parent, f"{path}, line {n}") for n, line in enumerate(lines, start=1))
    if not speakers:
        raise ValueError(f"{path}: has no speakers; give one JSON object with audio and text per line.")
    return speakers


def _read_speaker(line: str, folder: Path, label: str) -> Speaker:
    try:
        row = json.loads(line)
        values = {name: str(value) for name, value in row.items()}
        audio, text = resolve_inside(folder, values.pop("audio")), values.pop("text")
    except (ValueError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{label}: needs a JSON object with text and audio below its folder ({type(error).__name__}: {error})."
        ) from None
    if not text.strip():
        raise ValueError(f"{label}: text is {text!r}; give the words of {audio}.")
    return Speaker(audio, text, values)


def select_speakers(path: str, where: Mapping[str, str]) -> list[Speaker]:
    """Return the speakers with these labels, in the file's order: a voice is an index into it."""
    wanted = where.items()
    return [speaker for speaker in read_speakers(path) if wanted <= speaker.labels.items()]


class VoiceCloning:
    uses_reference = False
    # A served model draws its own noise.
    is_deterministic = False

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
        max_retries: int = 5,  # After 429, 5xx or a lost connection.
    ) -> None:
        if api not in APIS:
            raise ValueError(f"voice-cloning: api is {api!r}; it must be one of {list(APIS)}.")
        self._speakers = select_speakers(speakers, where or {})
        if not self._speakers:
            raise ValueError(f"voice-cloning: {speakers} has no speaker with {dict(where or {})}; add one.")
        self._base_url, self._api, self._sampling_rate = base_url.rstrip("/"), api, sampling_rate
        self._timeout_s, self.languages = timeout_s, languages
        self._session = _open_session(max_retries)
        self.version = f"voice-cloning {api}"

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        import requests

        speaker = self._speakers[voice % len(self._speakers)]
        label = f"voice-cloning gives no speech for {text!r} in the voice of {speaker.audio.name}"
        try:
            answer = self._send(text, speaker)
        except (requests.RequestException, OSError) as error:
            raise SynthesisError(f"{label}: {type(error).__name__}: {error}") from error
        if not answer.ok:
            raise SynthesisError(f"{label}: {answer.status_code}: {answer.text[:_MAX_QUOTED_CHARS]}")
        try:
            return self._decode(answer.content)
        except (AudioError, ValueError) as error:
            raise SynthesisError(f"{label}: {error} The answer begins {answer.content[:40]!r}.") from error

    def _send(self, text: str, speaker: Speaker) -> Any:
        fields = {"tts_text": text, "prompt_text": speaker.text}
        files = {"prompt_wav": (speaker.audio.name, speaker.audio.read_bytes(), "application/octet-stream")}
        method, path = "GET", "/inference_zero_shot"
        if self._api == "step-audio":
            method, path = "POST", "/clone"
            fields["speaker_name"] = speaker.audio.stem
        return self._session.request(method, self._base_url + path, data=fields, files=files, timeout=self._timeout_s)

    def _decode(self, content: bytes) -> np.ndarray:
        if self._api == "step-audio":
            return read_audio(content)
        # Not a buffer of whole samples: ValueError.
        samples = np.frombuffer(content, dtype="<i2").astype(np.float32) / 2**15
        if not samples.size:
            raise ValueError("there are no samples.")
        return resample(samples, self._sampling_rate)


def _open_session(max_retries: int) -> Any:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry

    retry = Retry(
        max_retries,
        backoff_factor=_PAUSE_FACTOR_S,
        status_forcelist=_PASSING_STATUS,
        # POST too: speaking a text twice costs only time.
        allowed_methods=None,
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


build = VoiceCloning
