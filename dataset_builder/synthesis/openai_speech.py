"""Any endpoint with OpenAI's `/v1/audio/speech`: OpenAI's server, or a local server of an open model.

Options in the YAML: `base_url`, `model`, `voices` and, if the server requires a key, `api_key_env`. The client retries
transient errors (429, 5xx, timeouts, lost connections) with growing pauses before a pair fails.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import AudioError, read_audio

from . import SynthesisError


# Length of a server's answer in an error message.
_MAX_QUOTED_CHARS = 300
# Sent if no key is configured; otherwise the client would send the one in OPENAI_API_KEY to any server.
_NO_KEY = "no-key"


class OpenAISpeech:
    uses_reference = False
    # A served model draws its own noise.
    is_deterministic = False

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
        self._key = _read_key(api_key_env)
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


def _read_key(variable: str | None) -> str:
    if variable is None:
        return _NO_KEY
    if not os.environ.get(variable):
        raise SynthesisError(f"openai-speech: the environment variable {variable!r} is not set; put the key there.")
    return os.environ[variable]


build = OpenAISpeech
