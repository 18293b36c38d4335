"""Describe each operation on the OpenAPI page, with examples that can be sent as they are."""

from __future__ import annotations

import base64
import io
import json
import wave
from dataclasses import asdict
from functools import cache
from typing import Any

from sdiareward.audio_sdiareward import Heard
from sdiareward.scoring.calibration import sigmoid

from .bodies import JSON, MULTIPART, REQUEST_PART


DESCRIPTION = """Rewards of spoken dialogues: how much does an answer sound like a person in that conversation?

- `POST /score` gives the reward of each dialogue of a request; higher is better.
- `POST /compare` gives the rewards of two versions of a dialogue, their margin, and the probability that `a` is the
  better one.

A body is JSON with recordings in base64, or multipart with the JSON in the part `request` and recordings in parts of
their own, which `audio: {"file": NAME}` names. A server with an API key takes it as `Authorization: Bearer KEY`.
Rewards order versions of one conversation; they do not rate a person."""
REWARDS, MONITORING = "rewards", "monitoring"
TAGS = [
    {"name": REWARDS, "description": "Score dialogues, or compare two versions of one."},
    {"name": MONITORING, "description": "The state of the server, for people and for Prometheus."},
]
_RATE, _DURATION_S = 8000, 0.05
_A, _B = 0.75, -0.5


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


def _make_dialogue(answer: str, **audio: str) -> dict[str, Any]:
    turns = (("user", "Please enter a new extension."), ("assistant", answer))
    return {
        "turns": [
            {"role": role, "text": text, "audio": {"file": audio[role]} if audio else {"base64": _make_recording()}}
            for role, text in turns
        ]
    }


def score_request(**audio: str) -> dict[str, Any]:
    """Return a request; `audio` names the part of a multipart body by role."""
    return {"criterion": "modality", "dialogues": [_make_dialogue("Please enter your password.", **audio)]}


def compare_request() -> dict[str, Any]:
    answers = {"a": "Sure, um, which one?", "b": "Please specify the extension."}
    return {"criterion": "joint", **{name: _make_dialogue(answer) for name, answer in answers.items()}}


def describe_score() -> dict[str, Any]:
    return {
        "tags": [REWARDS],
        "summary": "Score dialogues",
        "response_description": "A reward for each dialogue, in order.",
    }


def describe_compare() -> dict[str, Any]:
    return {
        "tags": [REWARDS],
        "summary": "Compare two versions of a dialogue",
        "response_description": "Both rewards, their margin, and the probability that `a` is the better one.",
    }


def _make_result(reward: float) -> dict[str, Any]:
    heard = Heard(2 * _DURATION_S, 2 * _DURATION_S, num_recordings=2, silent_turns=(1, 2))
    return {"reward": reward, "calibrated": None, **asdict(heard), "error": None}


def score_answer() -> dict[str, Any]:
    return {"criterion": "modality", "results": [_make_result(_A)]}


def compare_answer() -> dict[str, Any]:
    margin = _A - _B
    results = {"a": _make_result(_A), "b": _make_result(_B)}
    return {"criterion": "joint", **results, "margin": margin, "probability": sigmoid(margin)}


def with_example(description: str, example: Any) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"example": example}}}


def describe_body(form: type, example: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body; FastAPI does not parse bodies, which are JSON or multipart."""
    schema = {"$ref": f"#/components/schemas/{form.__name__}"}
    file = {"type": "string", "format": "binary"}
    parts = {"type": "object", "properties": {REQUEST_PART: schema}, "additionalProperties": file}
    content: dict[str, Any] = {JSON: {"schema": schema, "example": example}, MULTIPART: {"schema": parts}}
    if "dialogues" in example:
        named = score_request(user="user", assistant="answer")
        content[MULTIPART]["example"] = {REQUEST_PART: json.dumps(named), "user": "(a file)", "answer": "(a file)"}
    return {"requestBody": {"required": True, "content": content}}
