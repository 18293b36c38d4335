"""The messages of a dialogue, their form and rules, and their text: ChatML with a placeholder for each recording.

Every reader of dialogues calls these functions, and most load no model: this file needs no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


# Of a dialogue, a system turn not counted.
MAX_TURNS = 16
# Of a turn: an hour of speech. A hundred megabytes take five gigabytes to tokenize.
MAX_TEXT_CHARACTERS = 100_000
ROLES = ("user", "assistant")
AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
# Where a recording is read from, in a turn or an item: our name, and those of `transformers` and of chat endpoints.
AUDIO_KEYS = ("audio", "audio_path", "audio_url", "input_audio", "path", "url")
# Names of keys under which a turn may have a recording or words that are not read.
_SOUND_NAME = re.compile(
    "(audio|sound|speech|wav|record(ing)?|clip|(?<!pro)file(_?name)?|path|url|(audio|wav)_(array|bytes|data))s?$",
    re.IGNORECASE,
)
_WORDS_NAME = re.compile("((^|_)text|transcript(ion)?|utterance|sentence)s?$", re.IGNORECASE)
_RECORDING_NAME = re.compile(
    r"[^\n\r]{1,400}\.(wav|flac|mp3|mp4|ogg|oga|opus|m4a|aac|aiff?|amr|au|caf|pcm|sph|weba|webm|wma)(\?\S*)?",
    re.IGNORECASE,
)
# No word is that long.
_RECORDING_BASE64 = re.compile(r"data:[^,\s]*,|[A-Za-z0-9+/]{70}", re.IGNORECASE)
_MAX_QUOTED = 200
# What `render_dialogue` writes, for `apply_chat_template`. An audio item is recognised by its type: a library may take
# the recording out before it renders.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'audio' or item['audio'] %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Options of a tokenizer that leave a dialogue whole; the others would cut or split it.
_PADDING_OPTIONS = ("padding", "max_length", "pad_to_multiple_of", "padding_side", "return_attention_mask")


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
            in which `datasets` has filled absent keys with None; those are dropped here. A recording may also be under
            `path`, `url`, `audio_path`, `audio_url` or `input_audio`.

    Returns:
        `list[dict]`: `{"role", "content": [{"type": "text", "text"}, {"type": "audio", "audio"}]}` for each turn.
    """
    if not _is_list(turns):
        unchanged: list[dict[str, Any]] = turns
        return unchanged
    is_spoken = any(True for turn in turns for holder in _list_holders(turn) for _ in _list_recordings(holder))
    return [_read_turn(turn, is_spoken) if isinstance(turn, Mapping) else turn for turn in turns]


def _list_holders(turn: Any) -> list[Mapping[str, Any]]:
    """Return what may hold the recordings of a turn: itself, and the items of its content."""
    content: Any = turn.get("content") if isinstance(turn, Mapping) else None
    return [each for each in [turn, *(content if _is_list(content) else [])] if isinstance(each, Mapping)]


def _read_turn(turn: Mapping[str, Any], is_spoken: bool) -> dict[str, Any]:
    """Return the message of a turn; one that `_find_problem` has to refuse keeps its keys."""
    content, text, recordings = turn.get("content"), turn.get("text"), list(_list_recordings(turn))
    if _is_list(content):
        if recordings or text or _find_unread(turn, has_text=True, has_audio=bool(content)):
            return {"content": None, **turn}
        return {"role": turn.get("role"), "content": [_read_item(item) for item in content or ()]}
    has_text = not _is_empty(text) or not _is_empty(content)
    is_clear = len(recordings) < 2 and (_is_empty(text) or _is_empty(content) or text == content)
    if not is_clear or _find_unread(turn, has_text, bool(recordings)):
        return {"content": None, **turn}
    if not recordings and _is_empty(text) and content is not None:
        return {"role": turn.get("role"), "content": content}
    items = [{"type": "text", "text": content if _is_empty(text) else text}] if has_text else []
    if recordings:
        items.append({"type": "audio", "audio": recordings[0]})
    elif is_spoken and not turn.keys().isdisjoint(AUDIO_KEYS):
        # A null among recordings: `_find_problem` refuses it.
        items.append({"type": "audio"})
    return {"role": turn.get("role"), "content": items if items or len(turn) > 1 else None}


def _list_recordings(holder: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the recordings of a turn or an item, under any of their names."""
    for key in AUDIO_KEYS:
        if not _is_empty(value := holder.get(key)):
            yield _unwrap(value)


def _unwrap(value: Any) -> Any:
    """Return the recording in the forms of chat endpoints: `{"url"}`, and `{"data", "format"}` with base64."""
    if not isinstance(value, Mapping):
        return value
    if isinstance(data := value.get("data"), str):
        return data if data.startswith("data:") else f"data:audio/{value.get('format', 'wav')};base64,{data}"
    return value["url"] if isinstance(value.get("url"), str) else value


def _read_item(item: Any) -> Any:
    """Return an item with its text or its recording alone; one that cannot be read stays as it is."""
    if not isinstance(item, Mapping):
        return item
    given = {key: value for key, value in item.items() if key != "type" and not _is_empty(value)}
    recordings = list(_list_recordings(given))
    if len(recordings) == len(given) == 1 and item.get("type") in (None, "audio", *AUDIO_KEYS):
        return {"type": "audio", "audio": recordings[0]}
    if not given and "text" not in item and not item.keys().isdisjoint(AUDIO_KEYS):
        return {"type": "audio"}
    if not given.keys() - {"text"} and item.get("type") in (None, "text"):
        return {"type": "text", "text": given.get("text", "")}
    return {"type": item["type"], **given} if item.get("type") else given


def _is_empty(value: Any) -> bool:
    """Return whether a value is null, also in the form of `datasets` with null for bytes and path."""
    if isinstance(value, Mapping):
        return all(each is None for each in value.values())
    # An array has no truth value.
    return value is None or (isinstance(value, (str, bytes, Sequence)) and not value)


def _find_unread(turn: Mapping[str, Any], has_text: bool, has_audio: bool) -> str | None:
    """Return a key that seems to hold the recording or the words that a turn lacks under the names that are read."""
    for key, value in turn.items():
        if key in ("role", "text", "content", *AUDIO_KEYS) or _is_empty(value) or isinstance(value, (int, float)):
            continue
        if (not has_audio and _SOUND_NAME.search(str(key))) or (not has_text and _WORDS_NAME.search(str(key))):
            return str(key)
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def list_items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a message as items, in order.

    Args:
        message (`Mapping`): A message that `validate_form` accepts: its content is a text or items, which need no
            `type`.

    Returns:
        `list[dict]`: `{"type": "text", "text"}` or `{"type": "audio", "audio"}` for each.

    Raises:
        DialogueError: An item is not read.
    """
    content = message["content"]
    items = [{"text": content}] if isinstance(content, str) else content
    if problem := next(filter(None, map(_find_item_problem, items)), None):
        raise DialogueError(problem)
    return list(map(_read_item, items))


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
    if unread := sorted(key for key in message.keys() - {"role", "content"} if not _is_empty(message[key])):
        is_worded = not (_is_empty(message.get("text")) and _is_empty(message.get("content")))
        key = _find_unread(message, is_worded, any(True for _ in _list_recordings(message)))
        found = shorten(", ".join([key] if key else unread))
        return f"has {found} beside its role; give content, or text and one recording under 'audio'."
    content = message.get("content")
    if not isinstance(content, Sequence):
        return f"its content is {_kind_of(content)}; give a text or a list of text and audio items."
    items = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if problem := next(filter(None, map(_find_item_problem, items)), None):
        return problem
    items = list(map(_read_item, items))
    if (length := sum(len(item.get("text", "")) for item in items)) > MAX_TEXT_CHARACTERS:
        return f"its text has {length} characters; a turn has at most {MAX_TEXT_CHARACTERS}, give its own words only."
    if role != "system" and not any(item["type"] == "audio" or item["text"].strip() for item in items):
        return "has neither words nor a recording; give one of them."
    return None


def _find_item_problem(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        return f"its content holds {'null' if item is None else _kind_of(item)}; give text and audio items."
    read = _read_item(item)
    if read.keys() == {"type", "audio"}:
        return None
    keys = shorten(", ".join(sorted(map(str, read.keys() - {"type"}))))
    if read.get("type") not in (None, "text", "audio", *AUDIO_KEYS):
        return f"holds an item of type {shorten(read['type'])!r}; only text and audio can be scored."
    if not keys:
        return "its recording is null or empty; give one, or omit the item or the turn's key."
    if read.keys() != {"type", "text"}:
        kind = "its recording under 'audio'" if read.get("type") != "text" else "its words under 'text'"
        return f"holds an item with the keys {keys}, which are not read; give {kind} and nothing else."
    if not isinstance(read["text"], str):
        return f"its text is {_kind_of(read['text'])}; give a string."
    if _names_recording(read["text"]):
        return f"its text {shorten(read['text'])!r} is a recording or names one; give that under 'audio'."
    return None


def _names_recording(text: str) -> bool:
    """Return whether a text is a recording in base64, or the name of one: one word, or a file that exists."""
    text = text.strip()
    if _RECORDING_BASE64.match(text):
        return True
    if not _RECORDING_NAME.fullmatch(text):
        return False
    return len(text.split()) == 1 or os.path.isfile(text)


def shorten(value: Any) -> str:
    """Return a value as a text of at most 200 characters, for an error."""
    text = str(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 3]}..."


def _kind_of(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _validate_role(role: str, number: int, name: str | None) -> None:
    if role not in ROLES:
        raise DialogueError(f"its role is {shorten(role)!r}; use 'user' or 'assistant'.", number, name)
    if role != ROLES[(number - 1) % 2]:
        problem = f"two {role} turns in a row" if number > 1 else "the dialogue begins with the assistant"
        raise DialogueError(f"{problem}; user and assistant must alternate, the user first.", number, name)


def render_dialogue(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> tuple[str, list[tuple[Any, str]]]:
    """Return the ChatML text of a dialogue, one audio placeholder for each recording, and these with names.

    Args:
        messages (`list[dict]`): The messages, the system turn included.
        tokenizer (`PreTrainedTokenizerBase`): Its control tokens are refused in roles and texts.

    Raises:
        DialogueError: A role or a text holds a control token or half a character.
    """
    recordings: list[tuple[Any, str]] = []
    turns = []
    for index, message in enumerate(messages):
        rendered = _render_items(list_items(message), index, recordings, tokenizer)
        _require_plain(message["role"], "role", index, tokenizer)
        turns.append(f"<|im_start|>{message['role']}\n{rendered}<|im_end|>\n")
    return "".join(turns), recordings


def _render_items(
    items: Sequence[Mapping[str, Any]], turn: int, recordings: list[tuple[Any, str]], tokenizer: Any
) -> str:
    """Return the text of one turn, a placeholder for each recording; append these to `recordings`."""
    pieces = [item.get("text") for item in items]
    recordings += [(item["audio"], _clip_name(item["audio"], turn)) for item in items if item["type"] == "audio"]
    # As one text: two that are harmless could be a control token together, with no recording between them.
    _require_plain("".join("\n" if piece is None else piece for piece in pieces), "text", turn, tokenizer)
    return "".join(AUDIO_BOS_TOKEN + AUDIO_TOKEN + AUDIO_EOS_TOKEN if piece is None else piece for piece in pieces)


def _require_plain(text: str, field: str, turn: int, tokenizer: Any) -> None:
    """Raise unless a text is of whole characters and holds no control token."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DialogueError(f"its {field} holds half a character; save the transcript as UTF-8 again.", turn)
    if forged := [token for token in tokenizer.all_special_tokens if token in text]:
        raise DialogueError(f"its {field} holds the control token {forged[0]!r}; take it out of the transcript.", turn)


def _clip_name(audio: Any, turn: int) -> str:
    path = audio.get("path") if isinstance(audio, Mapping) else audio
    return f"turn {turn} ({shorten(path)})" if isinstance(path, (str, Path)) else f"turn {turn}"


def require_special_tokens(tokenizer: Any) -> None:
    """Raise [`ValueError`] unless a tokenizer has the control tokens of a dialogue."""
    vocabulary = tokenizer.get_vocab()
    for token in ("<|im_start|>", "<|im_end|>", AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN):
        if token not in vocabulary:
            raise ValueError(f"the tokenizer has no token {token}; use the tokenizer of a Qwen2.5-Omni checkpoint.")


def to_template_form(messages: Sequence[Mapping[str, Any]], clips: Sequence[Any]) -> list[dict[str, Any]]:
    """Return messages as templates take them: a list of items with a type, and clips in the place of recordings.

    Args:
        messages (`list[dict]`): The messages, as `render_dialogue` takes them.
        clips (`list`): One for each of their recordings, in order.
    """
    following = iter(clips)
    converted = []
    for message in messages:
        content = [
            item if item["type"] == "text" else {**item, "audio": next(following)} for item in list_items(message)
        ]
        converted.append({"role": message["role"], "content": content})
    return converted


def expand_criteria(criterion: str | Sequence[str], num_dialogues: int) -> list[str]:
    """Return the criterion of each dialogue.

    Args:
        criterion (`str` or `list[str]`): One for all dialogues, or one for each.
        num_dialogues (`int`): How many there are.

    Raises:
        ValueError: There are not as many criteria as dialogues.
    """
    criteria = [criterion] * num_dialogues if isinstance(criterion, str) else list(criterion)
    if len(criteria) != num_dialogues:
        raise ValueError(f"got {len(criteria)} criteria for {num_dialogues} dialogues; give one for all or for each.")
    return criteria


def as_batch(dialogues: Sequence[Any] | None) -> Sequence[Sequence[Mapping[str, Any]]]:
    """Return dialogues as they are, and a single one as a batch of one; raise `ValueError` for none."""
    if not dialogues:
        raise ValueError("no dialogues were given; give the messages of at least one.")
    return [dialogues] if isinstance(dialogues[0], Mapping) else dialogues


def read_padding_options(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the options for padding dialogues, and the kind of tensors to return.

    Args:
        kwargs (`dict`): Options of a processor of `transformers`, beside each other or in `text_kwargs`.

    Raises:
        TypeError: An option is unknown, or would cut a dialogue.
        ValueError: An option is given twice.
    """
    nested = kwargs.get("text_kwargs", {})
    given = {name: value for name, value in kwargs.items() if name not in ("common_kwargs", "text_kwargs")}
    if doubled := sorted(given.keys() & nested.keys()):
        raise ValueError(f"{', '.join(doubled)} is given twice: in text_kwargs and beside it.")
    given = {**kwargs.get("common_kwargs", {}), **nested, **given}
    options = {"padding": True, **{name: given.pop(name) for name in _PADDING_OPTIONS if name in given}}
    return_tensors = given.pop("return_tensors", "pt")
    if unknown := sorted(name for name, value in given.items() if value not in (None, False)):
        raise TypeError(
            f"dialogues are processed whole, without {', '.join(unknown)}; the options are return_tensors, "
            f"{', '.join(_PADDING_OPTIONS)}."
        )
    return options, return_tensors


__all__ = [
    "AUDIO_KEYS",
    "CHAT_TEMPLATE",
    "MAX_TEXT_CHARACTERS",
    "MAX_TURNS",
    "ROLES",
    "DialogueError",
    "as_batch",
    "expand_criteria",
    "list_items",
    "read_padding_options",
    "render_dialogue",
    "require_special_tokens",
    "shorten",
    "to_template_form",
    "turns_to_messages",
    "validate_form",
    "validate_messages",
]
