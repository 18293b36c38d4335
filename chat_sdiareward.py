"""The text of a dialogue: ChatML with a placeholder for each recording, as a function and as a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .messages_sdiareward import DialogueError, list_items


AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
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
    return f"turn {turn} ({path})" if isinstance(path, (str, Path)) else f"turn {turn}"


def require_special_tokens(tokenizer: Any) -> None:
    """Raise [`ValueError`] unless a tokenizer has the control tokens of a dialogue."""
    vocabulary = tokenizer.get_vocab()
    for token in ("<|im_start|>", "<|im_end|>", AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN):
        if token not in vocabulary:
            raise ValueError(f"the tokenizer has no token {token}; use the tokenizer of a Qwen2.5-Omni checkpoint.")


def accept_files(dialogue: Any) -> Any:
    """Return messages whose audio items have their recording under `audio`, where templates have `path` or `url`."""
    if not isinstance(dialogue, (list, tuple)):
        return dialogue
    return [
        {**turn, "content": list(map(_with_recording, turn["content"]))}
        if isinstance(turn, Mapping) and isinstance(turn.get("content"), (list, tuple))
        else turn
        for turn in dialogue
    ]


def _with_recording(item: Any) -> Any:
    if not isinstance(item, Mapping) or item.get("type") != "audio" or item.get("audio") is not None:
        return item
    return {"type": "audio", "audio": item.get("path") or item.get("url")}


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
    "CHAT_TEMPLATE",
    "accept_files",
    "as_batch",
    "expand_criteria",
    "read_padding_options",
    "render_dialogue",
    "require_special_tokens",
    "to_template_form",
]
