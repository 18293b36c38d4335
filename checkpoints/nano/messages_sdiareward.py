"""The messages of a dialogue: their form, their rules, and how turns of a data set become messages; without torch.

Every reader of dialogues calls these functions, and most load no model. The file travels to the Hub beside the
processor that imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


# Of a dialogue, a system turn not counted.
MAX_TURNS = 16
ROLES = ("user", "assistant")


class DialogueError(ValueError):
    """Raised for a dialogue that cannot be scored.

    Args:
        reason (`str`): What was found, what is required and what to do.
        turn (`int`, *optional*): Number of the turn, from 1; a system turn is not counted.
        name (`str`, *optional*): What to call the dialogue, for instance its file.
    """

    def __init__(self, reason: str, turn: int | None = None, name: str | None = None):
        place = ", ".join(filter(None, (name, None if turn is None else f"turn {turn}")))
        super().__init__(f"{place}: {reason}" if place else reason)
        self.turn = turn


def turns_to_messages(turns: Any) -> list[dict[str, Any]]:
    """Turn the turns of a dialogue into messages: text before audio in each turn; the paper leaves their order open.

    Messages stay as they are, and so does what is malformed: `validate_form` names it.

    Args:
        turns (`Sequence[Mapping]`): Turns of our schema (`role`, `text`, `audio`), or messages with a `content` list,
            in which `datasets` has filled absent keys with None; those are dropped here.

    Returns:
        `list[dict]`: `{"role", "content": [{"type": "text", "text"}, {"type": "audio", "audio"}]}` for each turn.
    """
    messages: list[dict[str, Any]] = [_message(turn) for turn in turns] if _is_list(turns) else turns
    return messages


def _message(turn: Any) -> Any:
    if not isinstance(turn, Mapping):
        return turn
    content: Any = turn.get("content")
    if content is None and not turn.keys().isdisjoint(("text", "audio")):
        content = [{"type": kind, kind: turn[kind]} for kind in ("text", "audio") if not _is_empty(turn.get(kind))]
    elif _is_list(content):
        content = [_without_none(item) for item in content]
    return {"role": turn.get("role"), "content": content}


def _is_empty(value: Any) -> bool:
    # An array has no truth value.
    return value is None or (isinstance(value, (str, bytes, Mapping, Sequence)) and not value)


def _without_none(item: Any) -> Any:
    return {key: value for key, value in item.items() if value is not None} if isinstance(item, Mapping) else item


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def list_items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a message as items, in order.

    Args:
        message (`Mapping`): A message that `validate_form` accepts: its content is a text or items, which need no
            `type`.

    Returns:
        `list[dict]`: `{"type": "text", "text"}` or `{"type": "audio", "audio"}` for each.
    """
    content = message["content"]
    return [
        {"type": "text", "text": item.get("text") or ""}
        if item.get("audio") is None
        else {"type": "audio", "audio": item["audio"]}
        for item in ([{"text": content}] if isinstance(content, str) else content)
    ]


def validate_messages(messages: Any, name: str | None = None) -> None:
    """Raise unless messages are an episode: user and assistant in turn, an even number of turns, at most 16.

    A system turn at the beginning is not counted. One answer of the assistant alone is accepted, too.

    Args:
        messages (`list[dict]`): Messages as the processor takes them.
        name (`str`, *optional*): What to call the dialogue in the error, for instance its file.

    Raises:
        DialogueError: A message is malformed, or roles or the number of turns break these rules.
    """
    validate_form(messages, name)
    turns = messages[1:] if messages and messages[0]["role"] == "system" else messages
    if not turns:
        raise DialogueError("has no turns; give at least one user turn and the assistant's reply.", name=name)
    if [turn["role"] for turn in turns] == ["assistant"]:
        return
    for number, turn in enumerate(turns, start=1):
        _validate_role(turn["role"], number, name)
    if len(turns) % 2:
        problem = f"has {len(turns)} turns and ends with the user; end it with the assistant's reply."
        raise DialogueError(problem, name=name)
    if len(turns) > MAX_TURNS:
        problem = f"has {len(turns)} turns; at most {MAX_TURNS} are scored, keep the last of them."
        raise DialogueError(problem, name=name)


def validate_form(messages: Any, name: str | None = None) -> None:
    """Raise [`DialogueError`] unless messages are objects with a role and a text or text and audio items."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise DialogueError(f"is {_kind_of(messages)}; give a list of turns.", name=name)
    has_system = bool(messages) and isinstance(messages[0], Mapping) and messages[0].get("role") == "system"
    for number, message in enumerate(messages, start=0 if has_system else 1):
        if problem := _find_problem(message):
            raise DialogueError(problem, number, name)


def _find_problem(message: Any) -> str | None:
    """Return what is wrong with the form of one message."""
    if not isinstance(message, Mapping):
        return f"is {_kind_of(message)}; give an object with a role and content."
    role = message.get("role") or None
    if not isinstance(role, str):
        return f"its role is {_kind_of(role)}; use 'user' or 'assistant'."
    content = message.get("content")
    if not isinstance(content, Sequence):
        return f"its content is {_kind_of(content)}; give a text or a list of text and audio items."
    for item in () if isinstance(content, str) else content:
        if not isinstance(item, Mapping):
            return f"its content holds {_kind_of(item)}; give text and audio items."
        if item.get("audio") is not None:
            continue
        if place := next((key for key in ("path", "url") if item.get("type") == "audio" and item.get(key)), None):
            return f"has the recording of an audio item under {place!r}; give it under 'audio'."
        if item.get("type") not in (None, "text", "audio"):
            return f"holds an item of type {item['type']!r}; only text and audio can be scored."
        if not isinstance(item.get("text") or "", str):
            return f"its text is {_kind_of(item['text'])}; give a string."
    return None


def _kind_of(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _validate_role(role: str, number: int, name: str | None) -> None:
    if role not in ROLES:
        raise DialogueError(f"its role is {role!r}; use 'user' or 'assistant'.", number, name)
    if role != ROLES[(number - 1) % 2]:
        problem = f"two {role} turns in a row" if number > 1 else "the dialogue begins with the assistant"
        raise DialogueError(f"{problem}; user and assistant must alternate, the user first.", number, name)
