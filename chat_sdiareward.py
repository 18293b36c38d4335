"""A dialogue: how it is read from any form and checked, and its text, ChatML with a placeholder for each recording.

`make_dialogue` is the border: what comes in as messages, turns, rows or requests becomes a [`Dialogue`] there, and
functions inside take that. This file needs no torch: most that read dialogues load no model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .audio_sdiareward import Clip


# Of a dialogue, a system turn not counted.
MAX_TURNS = 16
# Of a turn: an hour of speech. A hundred megabytes take five gigabytes to tokenize.
MAX_TEXT_CHARACTERS = 100_000
ROLES = ("user", "assistant")
AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
_PLACEHOLDER = AUDIO_BOS_TOKEN + AUDIO_TOKEN + AUDIO_EOS_TOKEN
# Where a recording is read from, in a turn or an item: our name, and the names of `transformers` and chat endpoints.
AUDIO_KEYS = ("audio", "audio_path", "audio_url", "input_audio", "path", "url")
_TURN_KEYS = ("role", "text", "content", *AUDIO_KEYS)
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
_NULL_RECORDING = "its recording is null or empty; give one, or omit the item or the turn's key."
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
        self.reason, self.turn = reason, turn


@dataclass(frozen=True)
class Turn:
    """What one speaker contributes to a dialogue: words, a recording, or both.

    Args:
        role (`str`): `"user"` or `"assistant"`; the processor also renders others.
        text (`str`, *optional*): All its words; with `parts`, these joined by spaces.
        audio ([`Clip`], *optional*): Its recording; with `parts`, the first of them.
        parts (`tuple[str | Clip, ...]`, *optional*): Its words and recordings in the order in which the model reads
            them; by default the text before the recording, an order that the paper leaves open.

    Raises:
        DialogueError: The turn has neither words nor a recording, too many words, or the name of a recording as words.
    """

    role: str
    text: str = ""
    audio: Clip | None = None
    parts: tuple[str | Clip, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        audio = None if _is_empty(self.audio) else _as_clip(self.audio, Clip)
        parts = tuple(part for part in self.parts or (self.text, audio) if not _is_empty(part))
        texts: list[Any] = [part for part in parts if not isinstance(part, Clip)]
        for text in texts:
            if not isinstance(text, str):
                raise DialogueError(f"its text is {_kind_of(text)}; give a string.")
            if _names_recording(text):
                raise DialogueError(f"its text {shorten(text)!r} is or names a recording; give that under 'audio'.")
        if (length := sum(map(len, texts))) > MAX_TEXT_CHARACTERS:
            raise DialogueError(f"its text has {length} characters; give own words, at most {MAX_TEXT_CHARACTERS}.")
        text, audio = " ".join(texts), next((part for part in parts if isinstance(part, Clip)), None)
        if self.role == "system" and audio:
            raise DialogueError("is of the system and has a recording; give text alone.")
        if self.role != "system" and not audio and not text.strip():
            raise DialogueError("has neither words nor a recording; give one of them.")
        vars(self).update(parts=parts, text=text, audio=audio)

    @property
    def clips(self) -> list[Clip]:
        """All recordings of the turn, in order."""
        return [part for part in self.parts if isinstance(part, Clip)]


@dataclass(frozen=True)
class Dialogue:
    """A dialogue that can be scored: user and assistant in turn, an even number of turns, at most 16.

    One answer of the assistant alone is a dialogue, too. `make_dialogue` reads all other forms.

    Args:
        turns (`tuple[Turn, ...]`): The turns, the user's first.
        system (`str`, *optional*): What the model reads in place of the prompt of the criterion.
        is_whole (`bool`, *optional*, defaults to `True`): Require these rules of roles and numbers; otherwise it may
            also be the beginning of a dialogue.

    Raises:
        DialogueError: The dialogue breaks these rules.
    """

    turns: tuple[Turn, ...]
    system: str | None = None
    is_whole: bool = True

    def __post_init__(self) -> None:
        roles = [turn.role for turn in self.turns]
        if not self.is_whole or roles == ["assistant"]:
            return
        if not roles:
            raise DialogueError("has no turns; give at least one user turn and the assistant's reply.")
        for number, role in enumerate(roles, start=1):
            if role not in ROLES:
                raise DialogueError(f"its role is {shorten(role)!r}; use 'user' or 'assistant'.", number)
            if role != ROLES[(number - 1) % 2]:
                problem = f"two {role} turns in a row" if number > 1 else "the dialogue begins with the assistant"
                raise DialogueError(f"{problem}; user and assistant must alternate, the user first.", number)
        if len(roles) % 2:
            raise DialogueError(f"has {len(roles)} turns and ends with the user; end it with the assistant's reply.")
        if len(roles) > MAX_TURNS:
            raise DialogueError(f"has {len(roles)} turns; at most {MAX_TURNS} are scored, keep the last of them.")

    def to_messages(self) -> list[dict[str, Any]]:
        """Return the dialogue as messages: `{"role", "content"}` with text and audio items."""
        system = [] if self.system is None else [Turn("system", self.system)]
        return [{"role": turn.role, "content": list(map(_make_item, turn.parts))} for turn in (*system, *self.turns)]


def _make_item(part: str | Clip) -> dict[str, Any]:
    if not isinstance(part, Clip):
        return {"type": "text", "text": part}
    rate = part.sampling_rate
    return {"type": "audio", "audio": {"array": part.source, "sampling_rate": rate} if rate else part.source}


def make_dialogue(
    given: Any, name: str | None = None, *, is_whole: bool = True, find: Callable[[Any], Any] = Clip
) -> Dialogue:
    """Return the dialogue of turns or messages: the border where every dialogue is read and checked, once.

    Args:
        given (`Dialogue` or `Sequence[Mapping]`): Turns of our schema (`role`, `text`, `audio`), or messages with a
            `content`, a text or items, in which `datasets` has filled absent keys with None. The text of a turn comes
            before its recording, which may also be under `path`, `url`, `audio_path`, `audio_url` or `input_audio`. A
            [`Dialogue`] stays as it is.
        name (`str`, *optional*): What to call the dialogue in an error, for instance its file.
        is_whole (`bool`, *optional*, defaults to `True`): As in [`Dialogue`].
        find (`Callable`, *optional*): Makes the [`Clip`] of each recording as it is given, for instance of a path that
            begins at another folder; its errors name the turn.

    Raises:
        DialogueError: A turn is malformed or has a key that is not read, or the dialogue breaks a rule.
    """
    if isinstance(given, Dialogue):
        return given if given.is_whole or not is_whole else Dialogue(given.turns, given.system)
    if hasattr(given, "to_messages"):
        # The class of the package in the code of a checkpoint, or the other way round.
        given = given.to_messages()
    if not _is_list(given):
        raise DialogueError(f"is {_kind_of(given)}; give a list of turns.", name=name)
    has_system = bool(given) and isinstance(given[0], Mapping) and given[0].get("role") == "system"
    is_spoken = any(_list_recordings(holder) for turn in given for holder in _list_holders(turn))
    turns: list[Turn] = []
    for number, turn in enumerate(given, start=0 if has_system else 1):
        try:
            turns.append(turn if isinstance(turn, Turn) else _read_turn(turn, is_spoken, find))
        except (ValueError, TypeError, OSError) as error:
            reason = error.reason if isinstance(error, DialogueError) else str(error)
            raise DialogueError(reason, number, name) from error
    system = "".join(map(str, turns.pop(0).parts)) if has_system else None
    try:
        return Dialogue(tuple(turns), system, is_whole)
    except DialogueError as error:
        raise DialogueError(error.reason, error.turn, name) from error


def _read_turn(turn: Any, is_spoken: bool, find: Callable[[Any], Any]) -> Turn:
    if not isinstance(turn, Mapping):
        raise DialogueError(f"is {_kind_of(turn)}; give an object with a role and content.")
    role = turn.get("role") or None
    if not isinstance(role, str):
        raise DialogueError(f"its role is {_kind_of(role)}; use 'user' or 'assistant'.")
    parts = read_parts(turn, is_spoken, find)
    if not parts and turn.keys() <= {"role", "content"} and turn.get("content") is None:
        raise DialogueError("its content is missing; give a text or a list of text and audio items.")
    return Turn(role, parts=tuple(parts))


def read_parts(turn: Mapping[str, Any], is_spoken: bool = False, find: Callable[[Any], Any] = Clip) -> list[Any]:
    """Return the words and the recordings of a turn or message in order, not checked but for their keys.

    Args:
        turn (`Mapping`): As in `make_dialogue`.
        is_spoken (`bool`, *optional*, defaults to `False`): Refuse a null recording beside words: others of the
            dialogue have one.
        find (`Callable`, *optional*): As in `make_dialogue`.

    Raises:
        DialogueError: A key or an item would not be read.
    """
    content, text, recordings = turn.get("content"), turn.get("text"), _list_recordings(turn)
    is_words = not _is_list(content)
    has_text = not is_words or not (_is_empty(text) and _is_empty(content))
    unread = _find_unread(turn, has_text, bool(recordings) or (not is_words and bool(content)))
    is_clear = len(recordings) < 2 and (_is_empty(text) or _is_empty(content) or text == content)
    if unread or not (is_clear if is_words else not recordings and not text):
        found = [key for key in turn.keys() - {"role", "content"} if not _is_empty(turn[key])]
        named = shorten(unread or ", ".join(sorted(found)))
        raise DialogueError(f"has {named} beside its role; give content, or text and one recording under 'audio'.")
    if not is_words:
        return [_read_item(item, find) for item in content or ()]
    if content is not None and not isinstance(content, str) and not recordings and _is_empty(text):
        raise DialogueError(f"its content is {_kind_of(content)}; give a text or a list of text and audio items.")
    if is_spoken and not recordings and not turn.keys().isdisjoint(AUDIO_KEYS):
        raise DialogueError(_NULL_RECORDING)
    words = [content if _is_empty(text) else text] if has_text else []
    return [*words, *(_as_clip(recording, find) for recording in recordings)]


def _list_holders(turn: Any) -> list[Mapping[str, Any]]:
    """Return what may hold the recordings of a turn: itself, and the items of its content."""
    content: Any = turn.get("content") if isinstance(turn, Mapping) else None
    return [each for each in [turn, *(content if _is_list(content) else [])] if isinstance(each, Mapping)]


def _list_recordings(holder: Mapping[str, Any]) -> list[Any]:
    """Return the recordings of a turn or an item, under any of their names."""
    return [_unwrap(value) for key in AUDIO_KEYS if not _is_empty(value := holder.get(key))]


def _as_clip(recording: Any, find: Callable[[Any], Any]) -> Any:
    return recording if isinstance(recording, Clip) else find(recording)


def _unwrap(value: Any) -> Any:
    """Return the recording in the forms of chat endpoints: `{"url"}`, and `{"data", "format"}` with base64."""
    if not isinstance(value, Mapping):
        return value
    if isinstance(data := value.get("data"), str):
        return data if data.startswith("data:") else f"data:audio/{value.get('format', 'wav')};base64,{data}"
    return value["url"] if isinstance(value.get("url"), str) else value


def _read_item(item: Any, find: Callable[[Any], Any]) -> Any:
    """Return the text or the recording of an item of a message."""
    if not isinstance(item, Mapping):
        found = "null" if item is None else _kind_of(item)
        raise DialogueError(f"its content has {found}; give text and audio items.")
    kind = item.get("type") or None
    given = {key: value for key, value in item.items() if key != "type" and not _is_empty(value)}
    recordings = _list_recordings(given)
    if len(recordings) == len(given) == 1 and kind in (None, "audio", *AUDIO_KEYS):
        return _as_clip(recordings[0], find)
    is_null = not given and not item.keys().isdisjoint(AUDIO_KEYS)
    if given.keys() <= {"text"} and kind in (None, "text") and (not is_null or "text" in item):
        return given.get("text", "")
    if kind not in (None, "text", "audio", *AUDIO_KEYS):
        raise DialogueError(f"has an item of type {shorten(kind)!r}; only text and audio can be scored.")
    if not given:
        raise DialogueError(_NULL_RECORDING)
    wanted = "its recording under 'audio'" if kind != "text" else "its words under 'text'"
    keys = shorten(", ".join(sorted(map(str, given))))
    raise DialogueError(f"has an item with the keys {keys}, which are not read; give {wanted} and nothing else.")


def _is_empty(value: Any) -> bool:
    """Return whether a value is null, also in the form of `datasets` with null for bytes and path."""
    if isinstance(value, Mapping):
        return all(each is None for each in value.values())
    # An array has no truth value.
    return value is None or (isinstance(value, (str, bytes, Sequence)) and not value)


def _find_unread(turn: Mapping[str, Any], has_text: bool, has_audio: bool) -> str | None:
    """Return a key that seems to hold the recording or the words that a turn lacks under the names that are read."""
    for key, value in turn.items():
        if key in _TURN_KEYS or _is_empty(value) or isinstance(value, (int, float)):
            continue
        lacked = [*(() if has_audio else AUDIO_KEYS), *(() if has_text or has_audio else ("text", "content"))]
        if near := get_close_matches(str(key), lacked, n=1, cutoff=0.8):
            return f"{shorten(repr(key))} (did you mean {near[0]!r}?)"
        if (not has_audio and _SOUND_NAME.search(str(key))) or (not has_text and _WORDS_NAME.search(str(key))):
            return str(key)
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _names_recording(text: str) -> bool:
    """Return whether a text is a recording in base64, or the name of one: one word, or a file that exists."""
    text = text.strip()
    if _RECORDING_BASE64.match(text):
        return True
    if not _RECORDING_NAME.fullmatch(text):
        return False
    return len(text.split()) == 1 or os.path.isfile(text)


def turns_to_messages(turns: Any) -> list[dict[str, Any]]:
    """Return the messages of turns, for callers that take messages; `make_dialogue` reads them."""
    return make_dialogue(turns, is_whole=False).to_messages()


def list_items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a message, for callers that take messages."""
    return list(map(_make_item, read_parts(message)))


def shorten(value: Any) -> str:
    """Return a value as a text of at most 200 characters, for an error."""
    text = str(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 3]}..."


def _kind_of(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def render_dialogue(dialogue: Dialogue, tokenizer: Any) -> tuple[str, list[tuple[Clip, int, str]]]:
    """Return the ChatML text of a dialogue, a placeholder for each recording; and these with their turns and names.

    Args:
        dialogue ([`Dialogue`]): The dialogue; a system turn is rendered as it is, and no prompt is added.
        tokenizer (`PreTrainedTokenizerBase`): Its control tokens are refused in roles and texts.

    Raises:
        DialogueError: A role or a text has a control token or half a character.
    """
    recordings: list[tuple[Clip, int, str]] = []
    system = [] if dialogue.system is None else [(0, "system", (dialogue.system,))]
    turns = [(number, turn.role, turn.parts) for number, turn in enumerate(dialogue.turns, start=1)]
    rendered = []
    for number, role, parts in (*system, *turns):
        recordings += [(part, number, _name_clip(part, number)) for part in parts if isinstance(part, Clip)]
        # As one text: two that are harmless could be a control token together, with no recording between them.
        _require_plain("".join("\n" if isinstance(part, Clip) else part for part in parts), "text", number, tokenizer)
        _require_plain(role, "role", number, tokenizer)
        placed = (_PLACEHOLDER if isinstance(part, Clip) else part for part in parts)
        rendered.append(f"<|im_start|>{role}\n{''.join(placed)}<|im_end|>\n")
    return "".join(rendered), recordings


def _require_plain(text: str, field: str, turn: int, tokenizer: Any) -> None:
    """Raise unless a text is of whole characters and holds no control token."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DialogueError(f"its {field} has half a character; save the transcript as UTF-8 again.", turn)
    if forged := [token for token in tokenizer.all_special_tokens if token in text]:
        raise DialogueError(f"its {field} has the control token {forged[0]!r}; remove it from the transcript.", turn)


def _name_clip(clip: Clip, turn: int) -> str:
    path = clip.source.get("path") if isinstance(clip.source, Mapping) else clip.source
    return f"turn {turn} ({shorten(path)})" if isinstance(path, (str, Path)) else f"turn {turn}"


def require_special_tokens(tokenizer: Any) -> None:
    """Raise [`ValueError`] unless a tokenizer has the control tokens of a dialogue."""
    vocabulary = tokenizer.get_vocab()
    for token in ("<|im_start|>", "<|im_end|>", AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN):
        if token not in vocabulary:
            raise ValueError(f"the tokenizer has no token {token}; use the tokenizer of a Qwen2.5-Omni checkpoint.")


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


def as_batch(dialogues: Any) -> Sequence[Any]:
    """Return dialogues as they are, and a single one as a batch of one; raise `ValueError` for none."""
    if hasattr(dialogues, "to_messages"):
        return [dialogues]
    if not dialogues:
        raise ValueError("no dialogues were given; give the messages of at least one.")
    return [dialogues] if isinstance(dialogues[0], (Mapping, Turn)) else dialogues


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
        known = ", ".join(("return_tensors", *_PADDING_OPTIONS))
        raise TypeError(f"dialogues are processed whole, without {', '.join(unknown)}; the options are {known}.")
    return options, return_tensors
