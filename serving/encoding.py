"""Encode a dialogue and its recordings for a request."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import open_source
from sdiareward.chat_sdiareward import ROLES, DialogueError, list_items, turns_to_messages


_SURROGATE = re.compile("[\ud800-\udfff]")
# Samples of 24 bits, aligned to the top of 32.
_FULL_SCALE = 2**23


def encode_dialogue(dialogue: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    messages = turns_to_messages(dialogue)
    has_system = bool(messages) and messages[0]["role"] == "system"
    turns = []
    for number, message in enumerate(messages, start=0 if has_system else 1):
        items = list_items(message)
        if problem := _find_problem(message["role"], items):
            raise DialogueError(problem, number)
        turns.append({"role": message["role"], "content": [_encode_item(item) for item in items]})
    return {"turns": turns}


def _find_problem(role: str, items: Sequence[Mapping[str, Any]]) -> str | None:
    if role not in (*ROLES, "system"):
        return f"its role is {role!r}; use 'user' or 'assistant'."
    if role == "system" and any(item["type"] == "audio" for item in items):
        return "is of the system and has a recording; give text alone."
    texts = [item["text"] for item in items if item["type"] == "text"]
    if any(_SURROGATE.search(text) for text in texts):
        return "its text holds half of a character of two; give whole ones."
    return None


def _encode_item(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "text":
        return item
    return {"type": "audio", "audio": {"base64": base64.b64encode(_read_bytes(item["audio"])).decode()}}


def _read_bytes(audio: Any) -> bytes:
    """Return the bytes of a file; samples become a file of 24 bits, the precision of float32."""
    import soundfile

    handle, _, array, sampling_rate = open_source(audio)
    if array is None:
        return Path(handle).read_bytes() if isinstance(handle, str) else handle.getvalue()
    buffer = io.BytesIO()
    samples = array.T if array.ndim == 2 else array
    # FLAC cannot hold samples beyond full scale or not finite; the server checks those.
    if samples.size and np.issubdtype(samples.dtype, np.floating) and np.abs(samples).max() < 1 - 1 / _FULL_SCALE:
        scaled = np.rint(samples.astype(np.float64) * _FULL_SCALE).astype(np.int32) << 8
        soundfile.write(buffer, scaled, sampling_rate, format="FLAC", subtype="PCM_24")
    else:
        soundfile.write(buffer, samples, sampling_rate, format="WAV", subtype="FLOAT")
    return buffer.getvalue()
