"""The description and the examples of the OpenAPI page; the examples can be sent as they are."""

from __future__ import annotations

import base64
import io
import wave
from functools import cache
from typing import Any


DESCRIPTION = """Rewards of spoken dialogues: how much does an answer sound like a person in that conversation?

- `POST /score` gives the reward of each dialogue of a request; higher is better.
- `POST /compare` gives the rewards of two versions of a dialogue, their margin, and the probability that `a` is the
  better one.

A body is JSON with recordings in base64, or multipart with the JSON in the part `request` and recordings in parts of
their own, which `audio: {"file": NAME}` names. A server with an API key takes it as `Authorization: Bearer KEY`.
Rewards order versions of one conversation; they do not rate a person."""
_RATE, _DURATION_S = 8000, 0.05


@cache
def _make_recording() -> str:
    """Return a WAV of 0.05 s of silence in base64, short enough for the page."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(_RATE)
        file.writeframes(b"\x80" * int(_DURATION_S * _RATE))
    return base64.b64encode(buffer.getvalue()).decode()


def _make_dialogue(answer: str) -> dict[str, Any]:
    turns = (("user", "Please enter a new extension."), ("assistant", answer))
    return {"turns": [{"role": role, "text": text, "audio": {"base64": _make_recording()}} for role, text in turns]}


def score_request() -> dict[str, Any]:
    return {"criterion": "modality", "dialogues": [_make_dialogue("Please enter your password.")]}


def compare_request() -> dict[str, Any]:
    answers = {"a": "Sure, um, which one?", "b": "Please specify the extension."}
    return {"criterion": "joint", **{name: _make_dialogue(answer) for name, answer in answers.items()}}
