"""Client of the API server in SoulX-Podcast's repository.

Each line is a task: `POST /generate-async` (multipart: a `prompt_audio` file per speaker, their transcripts as a JSON
list in `prompt_texts`, `dialogue_text` with marks such as `[S1]`, seed and sampling), `GET /task/ID` until its status
is `completed` or `failed`, `GET` its `result_url` for the WAV.

The server joins all turns of a request into one recording without boundaries between them. So each line is a separate
request, with the prompts of all speakers: the boundaries are exact, but a line is conditioned on the prompts only, not
on the generated lines before it. The model in this process (`soulx_podcast.SoulXPodcast`) has no such limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import AudioError, read_audio

from . import ReferenceClip, SynthesisError
from .soulx_script import Sampling, make_script


# Of a single request; only its task takes long.
_REQUEST_TIMEOUT_S = 60.0
_PAUSE_FACTOR_S = 0.5
_PASSING_STATUS = (429, 500, 502, 503, 504)
# Length of a server's answer in an error message.
_MAX_QUOTED_CHARS = 300


class SoulXEndpoint:
    """A SoulX-Podcast API server.

    Args:
        base_url (`str`): Its address, such as `http://localhost:8000`.
        sampling (`Sampling`): How speech tokens are drawn.
        voices (`Mapping[str, ReferenceClip]`): Clips of roles for which `speak_dialogue` gets none.
        timeout_s (`float`): Longest wait for one line, in seconds.
        max_retries (`int`): Number of retries after 429, 5xx or a lost connection.
        poll_s (`float`): Time between two polls of a task, in seconds.
    """

    is_deterministic = False
    version = "soulx-podcast API server"

    def __init__(
        self,
        base_url: str,
        sampling: Sampling,
        voices: Mapping[str, ReferenceClip],
        *,
        timeout_s: float,
        max_retries: int,
        poll_s: float,
    ) -> None:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry

        retry = Retry(
            max_retries,
            backoff_factor=_PAUSE_FACTOR_S,
            status_forcelist=_PASSING_STATUS,
            # POST too: speaking a line twice costs only time.
            allowed_methods=None,
            raise_on_status=False,
        )
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))
        self._base_url = base_url.rstrip("/")
        self._sampling, self._voices = sampling, dict(voices)
        self._timeout_s, self._poll_s = timeout_s, poll_s

    def speak_dialogue(
        self, lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]
    ) -> list[np.ndarray]:
        """Speak a dialogue line by line; see `DialogueSynthesizer.speak_dialogue`.

        Raises:
            SynthesisError: Also for a line with a square bracket, at which the server would cut it.
        """
        script = make_script(lines, {**self._voices, **references})
        for position, (_, text) in enumerate(script.lines):
            if "[" in text or "]" in text:
                raise SynthesisError(
                    f"soulx-podcast: line {position}, {text!r}, has a square bracket, which the API server reads as "
                    "a speaker's mark; remove it from the transcript."
                )
        recordings = zip(script.speakers, script.encode_prompts(), strict=True)
        prompts = [("prompt_audio", (f"{mark}.wav", data, "audio/wav")) for mark, data in recordings]
        texts = json.dumps([clip.text for clip in script.prompts], ensure_ascii=False)
        return [self._speak(f"[{mark}]{text}", prompts, texts) for mark, text in script.lines]

    def _speak(self, text: str, prompts: list[tuple[str, tuple[str, bytes, str]]], texts: str) -> np.ndarray:
        """Speak one marked line."""
        import requests

        label = f"soulx-podcast gives no speech for {text!r}"
        fields = {"prompt_texts": texts, "dialogue_text": text, **asdict(self._sampling)}
        try:
            task = self._send("POST", "/generate-async", data=fields, files=prompts).json()
            answer = self._send("GET", self._wait(task["task_id"])).content
        except SynthesisError as error:
            raise SynthesisError(f"{label}: {error}") from error
        # A body that is not JSON is a ValueError, JSON of another shape one of the last two.
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise SynthesisError(f"{label}: {type(error).__name__}: {error}") from error
        try:
            return read_audio(answer)
        except AudioError as error:
            raise SynthesisError(f"{label}: {error} The answer begins {answer[:_MAX_QUOTED_CHARS]!r}.") from error

    def _wait(self, task_id: str) -> str:
        """Wait until a task is completed and return the address of its result."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            task = self._send("GET", f"/task/{task_id}").json()
            if task["status"] == "completed":
                return str(task["result_url"])
            if task["status"] == "failed":
                raise SynthesisError(f"the server reports: {str(task.get('error'))[:_MAX_QUOTED_CHARS]}")
            if time.monotonic() > deadline_s:
                raise SynthesisError(f"still {task['status']} after {self._timeout_s:g} s; raise 'timeout_s'.")
            time.sleep(self._poll_s)

    def _send(self, method: str, path: str, **content: Any) -> Any:
        """Send a request and return the answer; raise an error unless its status is OK."""
        timeout_s = min(self._timeout_s, _REQUEST_TIMEOUT_S)
        answer = self._session.request(method, self._base_url + path, timeout=timeout_s, **content)
        if not answer.ok:
            raise SynthesisError(f"{method} {path} answers {answer.status_code}: {answer.text[:_MAX_QUOTED_CHARS]}")
        return answer
