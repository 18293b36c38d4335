"""Turn the arguments of a GRPO trainer's reward function into spoken dialogues.

A prompt is a list of messages or, in a data set without roles, a string. A completion is a list of one assistant
message or a string. Audio is in the messages, or in columns of the data set.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import Clip, Heard
from sdiareward.chat_sdiareward import MAX_TURNS, Dialogue, Turn, list_items, make_dialogue

from .request_queue import Outcome


logger = logging.getLogger(__name__)


@dataclass
class Rollout:
    dialogue: Dialogue = Dialogue((), is_whole=False)  # The completion last; empty after an error.
    error: str | None = None
    reward: float | None = None
    heard: Heard = Heard()

    @property
    def text(self) -> str:
        return self.dialogue.turns[-1].text

    @property
    def has_audio(self) -> bool:
        return self.dialogue.turns[-1].audio is not None

    @property
    def group(self) -> str:
        """A hash of everything before the completion: the completions of one prompt have the same."""
        text = json.dumps(make_dialogue(self.dialogue).to_messages()[:-1], sort_keys=True, default=_digest)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def settle(self, outcome: Outcome) -> None:
        """Take the reward, unless the completion is silent, or the reason why there is none."""
        if isinstance(outcome, str):
            self.error = outcome
        elif len(self.dialogue.turns) in outcome[1].silent_turns:
            self.error = "the completion is silent: nothing above -70 dB of full scale is heard."
        else:
            self.reward, self.heard = outcome

    def add_audio(self, audio: Any) -> None:
        """Add audio to the completion, after its text as in training."""
        *before, last = self.dialogue.turns
        answer = Turn(last.role, parts=(*last.parts, Clip(audio)))
        self.dialogue = Dialogue((*before, answer), self.dialogue.system)


@dataclass(frozen=True)
class RolloutReader:
    audio_column: str | None = None
    completion_audio_column: str | None = None
    keep_system: bool = False

    def read(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Rollout]:
        if len(prompts) != len(completions):
            raise ValueError(
                f"got {len(prompts)} prompts and {len(completions)} completions; give one prompt for each completion."
            )
        before = self._read_column(self.audio_column, columns, len(prompts))
        after = self._read_column(self.completion_audio_column, columns, len(prompts))
        return [self._read_one(*row) for row in zip(prompts, completions, before, after, strict=True)]

    @staticmethod
    def _read_column(name: str | None, columns: Mapping[str, Sequence[Any]], num_rows: int) -> Sequence[Any]:
        if name is None:
            return [None] * num_rows
        if name not in columns:
            raise ValueError(
                f"there is no column {name!r} of audio; found {sorted(columns)}. Name one of these, or add it to the "
                "data set or the rollout function."
            )
        return columns[name]

    def _read_one(self, prompt: Any, completion: Any, prompt_audio: Any, completion_audio: Any) -> Rollout:
        try:
            system, turns = self._read_prompt(prompt, prompt_audio)
            answer = _read_completion(completion)
            if completion_audio is not None and not _has_audio(answer):
                answer["content"].append({"type": "audio", "audio": completion_audio})
            if not answer["content"]:
                raise ValueError("the completion is empty; there is nothing to score.")
            messages = [*system, *[*turns, answer][-MAX_TURNS:]]
            rollout = Rollout(make_dialogue(messages, "prompt and completion"))
        except ValueError as error:
            return Rollout(error=str(error))
        if len(turns) >= MAX_TURNS:
            logger.info("a prompt of %d turns: its last %d and the completion are scored.", len(turns), MAX_TURNS - 1)
        return rollout

    def _read_prompt(self, prompt: Any, audio: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the system turn, where it is kept, and the turns of a prompt, with their audio."""
        messages = _read_messages([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        has_system = bool(messages) and messages[0]["role"] == "system"
        turns = messages[1:] if has_system else messages
        if audio is not None:
            self._add_recordings(turns, audio)
        return messages[:1] if has_system and self.keep_system else [], turns

    def _add_recordings(self, turns: list[dict[str, Any]], audio: Any) -> None:
        """Add the recordings of the column to the turns without audio."""
        recordings = audio if isinstance(audio, list) else [None] * (len(turns) - 1) + [audio]
        if len(recordings) != len(turns):
            raise ValueError(
                f"column {self.audio_column!r} has {len(recordings)} recordings for a prompt of {len(turns)} turns; "
                "give one for each turn, None for a turn without audio."
            )
        for turn, recording in zip(turns, recordings, strict=True):
            if recording is not None and not _has_audio(turn):
                turn["content"].append({"type": "audio", "audio": recording})


def _read_messages(messages: Any) -> list[dict[str, Any]]:
    """Return copies of messages, the content of each a list of items."""
    if not isinstance(messages, Sequence) or not all(_is_message(message) for message in messages):
        raise ValueError(f"found {str(messages)[:80]!r}; give a string, or a list of messages with role and content.")
    # A call of a tool says nothing.
    return [{"role": message["role"], "content": list_items(message)} for message in messages]


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or "role" not in message:
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(item, Mapping) and isinstance(item.get("text") or "", str) for item in content)
    return content is None or isinstance(content, str)


def _has_audio(turn: Mapping[str, Any]) -> bool:
    return any(item.get("audio") is not None for item in turn["content"])


def _read_completion(completion: Any) -> dict[str, Any]:
    messages = _read_messages(
        [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    )
    roles = [message["role"] for message in messages]
    if roles != ["assistant"]:
        raise ValueError(f"the completion's messages have the roles {roles}; give one assistant message.")
    content = messages[0]["content"]
    # An empty text is no turn, and a synthesizer may fail on it.
    messages[0]["content"] = [item for item in content if "text" not in item or item["text"].strip()]
    return messages[0]


def voice_completions(rollouts: Sequence[Rollout], speak: Callable[[list[str]], Sequence[Any]]) -> None:
    """Synthesise completions; after an error one at a time, so that one text does not affect the others."""
    for rollout, recording in zip(rollouts, _speak([rollout.text for rollout in rollouts], speak), strict=True):
        if isinstance(recording, Exception):
            rollout.error = f"the completion could not be spoken ({type(recording).__name__}: {recording})."
        elif recording is None:
            rollout.error = "the completion could not be spoken."
        else:
            rollout.add_audio(recording)


def _speak(texts: list[str], speak: Callable[[list[str]], Sequence[Any]]) -> list[Any]:
    try:
        recordings = list(speak(texts))
    except Exception as error:  # A synthesizer may raise anything; it is recorded as the reason.
        return [error] if len(texts) == 1 else [_speak([text], speak)[0] for text in texts]
    if len(recordings) != len(texts):
        raise ValueError(f"speak returned {len(recordings)} recordings for {len(texts)} texts; return one for each.")
    return recordings


def _digest(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    data = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()
