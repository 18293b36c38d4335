"""SoulX-Podcast (Apache-2.0), the paper's synthesizer (appendix B.1): whole dialogues in voices cloned zero-shot.

No environment satisfies both its requirements and ours, so it runs behind servers of its own (`soulx_server.py`): by
hand, or started by the build (`soulx_launch.py`). A dialogue is one request, so that each turn is conditioned on those
before it; several servers on several GPUs share a build, and a dialogue goes to one that is free.

References come from the recorded dialogue; for scripts, which have no recordings, the option `voices` names a
recording and its transcript for each role.
"""

from __future__ import annotations

import base64
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, resample
from sdiareward.common.user_errors import AGAIN, UserError

from . import DialogueSynthesizer, ReferenceClip, SynthesisError
from .soulx_script import Sampling, make_script, read_voices


logger = logging.getLogger(__name__)
# A server answers these at once, also while it speaks.
_HEALTH_TIMEOUT_S = 30.0
# Length of a server's answer in an error message.
_MAX_QUOTED_CHARS = 300


@dataclass(frozen=True)
class ServerSettings:
    """Where the servers are and how they are asked.

    Args:
        addresses (`tuple[str, ...]`): Such as `http://127.0.0.1:8100`.
        runs (`Mapping[str, Any]`): What each must report that it runs: `model`, `llm_engine`, `fp16_flow`.
        timeout_s (`float`): Longest time for one dialogue, in seconds.
        max_retries (`int`): How many times a dialogue is sent again whose server was lost.
        poll_s (`float`): Pause before the servers are asked again when none is free, in seconds.
    """

    addresses: tuple[str, ...]
    runs: Mapping[str, Any]
    timeout_s: float
    max_retries: int
    poll_s: float


class SoulXPodcast:
    """The model behind one or more servers.

    Args:
        servers (`ServerSettings`): Where they are.
        sampling (`Sampling`): How speech tokens are drawn.
        voices (`Mapping[str, ReferenceClip]`): Clips of roles without one in `speak_dialogue`.
    """

    # Seeded, but a GPU may sum in another order.
    is_deterministic = False

    def __init__(self, servers: ServerSettings, sampling: Sampling, voices: Mapping[str, ReferenceClip]) -> None:
        import requests

        self._session = requests.Session()
        # The servers are machines of the user: no proxy of the environment lies between.
        self._session.trust_env = False
        self._servers, self._sampling, self._voices = servers, sampling, dict(voices)
        self._lost: set[str] = set()
        # Workers begin at different servers.
        self._next = os.getpid()
        self.version = f"soulx-podcast {servers.runs['model']}"

    def speak_dialogue(
        self, lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]
    ) -> list[np.ndarray]:
        """Speak a dialogue in one request; see `DialogueSynthesizer.speak_dialogue`.

        Raises:
            UserError: No server can be reached, one does not run what the options name, or the dialogue's was lost.
        """
        script = make_script(lines, {**self._voices, **references})
        prompts = [base64.b64encode(recording).decode() for recording in script.encode_prompts()]
        request = {**script.as_json(prompts), "sampling": asdict(self._sampling)}
        sent = self._speak(request, f"soulx-podcast gives no speech for {lines[0][1]!r} ...")
        try:
            answer = sent.json()
            waves = [np.frombuffer(base64.b64decode(wave), "<f4") for wave in answer["waves"]]
            sampling_rate = int(answer["sampling_rate"])
        except (ValueError, KeyError, TypeError) as error:
            raise SynthesisError(f"soulx-podcast: its server answers in another form: {error!r}.") from error
        return to_turns(waves, sampling_rate, len(lines))

    def _speak(self, request: Mapping[str, Any], label: str) -> Any:
        """Give a dialogue to a server that is free; return its answer."""
        num_lost = 0
        while True:
            address = self._find_free()
            answer = self._post(address, request)
            if answer is None:
                num_lost += 1
                if num_lost > self._servers.max_retries:
                    raise UserError(f"{label}: the server {address} was lost while it spoke; {_restart(address)}")
            elif answer.ok:
                return answer
            elif answer.status_code != 503:
                reason = f"{address} answers {answer.status_code}: {answer.text[:_MAX_QUOTED_CHARS]}"
                raise SynthesisError(f"{label}: {reason}")

    def _post(self, address: str, request: Mapping[str, Any]) -> Any:
        """Send a dialogue; return the answer, or None if the server was lost."""
        import requests

        try:
            return self._session.post(f"{address}/dialogue", json=request, timeout=self._servers.timeout_s)
        except requests.Timeout as error:
            raise UserError(
                f"soulx-podcast: {address} has not spoken a dialogue after {self._servers.timeout_s:g} s; raise "
                f"'timeout_s' or start it again, then {AGAIN}."
            ) from error
        except requests.RequestException as error:
            self._note_loss(address, error)
            return None

    def _find_free(self) -> str:
        """Return the address of a server that is not speaking; wait for one."""
        while True:
            reasons = []
            for _ in self._servers.addresses:
                address = self._servers.addresses[self._next % len(self._servers.addresses)]
                self._next += 1
                state = self._ask(address)
                if isinstance(state, str):
                    reasons.append(f"{address} ({state})")
                elif not state["is_busy"]:
                    return address
            if len(reasons) == len(self._servers.addresses):
                raise UserError(f"soulx-podcast: no server can be reached: {', '.join(reasons)}; {_restart('them')}")
            time.sleep(self._servers.poll_s)

    def _ask(self, address: str) -> dict[str, Any] | str:
        """Return what a server reports of itself, or why it cannot be reached."""
        import requests

        try:
            answer = self._session.get(f"{address}/health", timeout=_HEALTH_TIMEOUT_S)
            state = answer.json()
            found = {key: state[key] for key in (*self._servers.runs, "is_busy")}
        except (requests.ConnectionError, requests.Timeout) as error:
            self._note_loss(address, error)
            return type(error).__name__
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise UserError(f"soulx-podcast: {address} is no server of soulx_server.py ({error!r}).") from error
        self._lost.discard(address)
        if wrong := {key: found[key] for key, value in self._servers.runs.items() if found[key] != value}:
            wanted = {key: self._servers.runs[key] for key in wrong}
            raise UserError(f"soulx-podcast: {address} runs {wrong}, the options name {wanted}; make them the same.")
        return found

    def _note_loss(self, address: str, error: Exception) -> None:
        if address not in self._lost:
            logger.error("soulx-podcast: the server %s does not answer: %s", address, error)
        self._lost.add(address)


def _restart(what: str) -> str:
    return f"start {what} again, then {AGAIN}."


def build(
    *,
    model_path: str,
    addresses: Sequence[str],
    voices: Mapping[str, Mapping[str, str]] | None = None,
    llm_engine: str = "hf",
    fp16_flow: bool = False,
    timeout_s: float = 1800.0,
    max_retries: int = 1,
    poll_s: float = 1.0,
    **sampling: float,
) -> DialogueSynthesizer:
    """Connect to servers; `synthesis.open_servers` starts them where the options name an environment instead.

    Args:
        model_path (`str`): Folder of the model; its name counts, which the servers must report.
        addresses (`Sequence[str]`): Of servers that run.
        voices (`Mapping`, *optional*): By role, `{"audio": path, "text": words}`: the voice of the role in scripts.
        llm_engine (`str`, *optional*, defaults to `"hf"`): `"hf"` or `"vllm"`.
        fp16_flow (`bool`, *optional*, defaults to `False`): Half precision in the flow model.
        timeout_s (`float`, *optional*, defaults to 1800.0): Longest time for a dialogue.
        max_retries (`int`, *optional*, defaults to 1): How many times a dialogue is sent again whose server was lost.
        poll_s (`float`, *optional*, defaults to 1.0): Pause when no server is free.
        **sampling: Fields of `Sampling`.

    Raises:
        ValueError: `addresses` is no list, or an option does not exist.
        FileNotFoundError: The recording of a voice does not exist.
    """
    if unknown := sorted(set(sampling) - set(Sampling.__dataclass_fields__)):
        raise ValueError(f"soulx-podcast: no options {unknown}; sampling has {list(Sampling.__dataclass_fields__)}.")
    if isinstance(addresses, str) or not addresses:
        raise ValueError(
            f"soulx-podcast: addresses is {addresses!r}; a list with the address of each server is needed."
        )
    runs = {"model": Path(model_path).name, "llm_engine": llm_engine, "fp16_flow": fp16_flow}
    servers = ServerSettings(tuple(a.rstrip("/") for a in addresses), runs, timeout_s, max_retries, poll_s)
    return SoulXPodcast(servers, Sampling(**sampling), read_voices(voices))  # type: ignore[arg-type]


def to_turns(waves: Sequence[np.ndarray], sampling_rate: int, num_lines: int) -> list[np.ndarray]:
    """Return the speech of each line as mono 16 kHz float32.

    Args:
        waves (`Sequence[np.ndarray]`): Each of shape `(num_samples,)`.
        sampling_rate (`int`): Theirs, in Hz.
        num_lines (`int`): Required number of waveforms.

    Raises:
        SynthesisError: Their number differs, or one is too short or not finite.
    """
    if len(waves) != num_lines:
        raise SynthesisError(
            f"soulx-podcast gave {len(waves)} waveforms for {num_lines} lines; it must give one each."
        )
    turns = [resample(wave.astype(np.float32), sampling_rate) for wave in waves]
    for position, turn in enumerate(turns):
        if len(turn) < MIN_SAMPLES or not np.isfinite(turn).all():
            raise SynthesisError(
                f"soulx-podcast: line {position} has {len(turn)} samples at 16 kHz, all finite: "
                f"{bool(np.isfinite(turn).all())}; it needs {MIN_SAMPLES} finite ones."
            )
    return turns
