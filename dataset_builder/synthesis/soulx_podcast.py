"""SoulX-Podcast (Apache-2.0), the paper's synthesizer (appendix B.1): whole dialogues in voices cloned zero-shot.

No environment satisfies both its requirements and ours, so it runs behind a server of its own (`soulx_server.py`). A
dialogue is one request, so that each turn is conditioned on those before it. References come from the recorded
dialogue; for scripts, which have no recordings, the option `voices` names a recording and its words for each role.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE, read_audio, resample
from sdiareward.common.user_errors import AGAIN, UserError

from . import Engine, ReferenceClip, SynthesisError


# Length of a server's answer in an error message.
_MAX_QUOTED_CHARS = 300


class SoulXPodcast(Engine):
    needs, remedy = ("requests",), "pip install requests"
    # Seeded, but a GPU may sum in another order.
    is_deterministic = False

    def __init__(
        self,
        *,
        model_path: str,
        addresses: Sequence[str],
        voices: Mapping[str, Mapping[str, str]] | None = None,
        languages: Sequence[str] | None = None,
        llm_engine: str = "hf",  # Or "vllm", as the servers run.
        fp16_flow: bool = False,  # Half precision in the flow model, as the servers run.
        timeout_s: float = 1800.0,  # Includes the dialogues that wait before this one.
        # How speech tokens are drawn, each dialogue from the same seed; the defaults are SoulX-Podcast's own.
        seed: int = 1988,
        temperature: float = 0.6,
        top_k: int = 100,
        top_p: float = 0.9,
        repetition_penalty: float = 1.25,
    ) -> None:
        import requests

        if isinstance(addresses, str) or not addresses:
            raise ValueError(f"soulx-podcast: addresses is {addresses!r}; give a list with each server's address.")
        self._session = requests.Session()
        # The servers are machines of the user: no proxy of the environment lies between.
        self._session.trust_env = False
        self._addresses, self._timeout_s = [address.rstrip("/") for address in addresses], timeout_s
        # Workers begin at different servers.
        self._next, self.languages = os.getpid(), languages
        self._runs = {"model": Path(model_path).name, "llm_engine": llm_engine, "fp16_flow": fp16_flow}
        self._sampling = {"seed": seed, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        self._sampling["repetition_penalty"] = repetition_penalty
        self._voices = {
            role: ReferenceClip(read_audio(voice["audio"]), voice["text"]) for role, voice in (voices or {}).items()
        }
        self.version = f"soulx-podcast {self._runs['model']}"

    def speak_dialogue(
        self, lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]
    ) -> list[np.ndarray]:
        answer = self._post({**make_script(lines, {**self._voices, **references}), "sampling": self._sampling})
        waves = [np.frombuffer(base64.b64decode(wave), "<f4") for wave in answer["waves"]]
        turns = [resample(wave, answer["sampling_rate"]) for wave in waves]
        if len(turns) != len(lines) or not all(len(t) >= MIN_SAMPLES and np.isfinite(t).all() for t in turns):
            raise SynthesisError(
                f"soulx-podcast gave waveforms of {[len(turn) for turn in turns]} samples for {len(lines)} lines; "
                f"each line needs {MIN_SAMPLES} samples or more, all finite."
            )
        return turns

    def _post(self, script: Mapping[str, Any]) -> dict[str, Any]:
        import requests

        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        request = {**script, "runs": self._runs}
        try:
            answer = self._session.post(f"{address}/dialogue", json=request, timeout=self._timeout_s)
        except requests.RequestException as error:
            raise UserError(f"soulx-podcast: the server {address}: {error}; start it again, then {AGAIN}.") from error
        if answer.status_code == 500:
            raise SynthesisError(f"soulx-podcast gives no speech: {answer.text[:_MAX_QUOTED_CHARS]}")
        if not answer.ok:
            reason = f"{answer.status_code} {answer.text[:_MAX_QUOTED_CHARS]}"
            raise UserError(f"soulx-podcast: the server {address} answers {reason}; correct it, then {AGAIN}.")
        return answer.json()


def make_script(lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]) -> dict[str, Any]:
    """Return a dialogue as the repository's examples have it, with single spaces: a line break would end the text."""
    roles = list(dict.fromkeys(role for role, _ in lines))
    if missing := [role for role in roles if role not in references]:
        raise SynthesisError(f"soulx-podcast: no reference clip for {missing}; give the role one in 'voices'.")
    marks = {role: f"S{number}" for number, role in enumerate(roles, start=1)}
    text = [[marks[role], " ".join(words.split())] for role, words in lines]
    if not all(words for _, words in text):
        raise SynthesisError("soulx-podcast: a line has no text; remove it.")
    return {"speakers": {marks[role]: _make_prompt(references[role]) for role in roles}, "text": text}


def _make_prompt(clip: ReferenceClip) -> dict[str, str]:
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, clip.array, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    return {
        "prompt_audio": base64.b64encode(buffer.getvalue()).decode(),
        "prompt_text": " ".join(clip.text.split()),
    }
