"""Read preference pairs, from our own Parquet or in the released SDiaReward form, without decoding audio.

Both forms end as the message lists that `SDiaRewardProcessor` takes; nothing else in the package knows that there are
two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.user_errors import PairsError, PairsNotFoundError

from .schema import SIDES


if TYPE_CHECKING:
    import datasets


def load_pairs(path: str | Path, split: str, *, name: str | None = None) -> datasets.Dataset:
    """Load one split of preference pairs with its audio left encoded (`datasets.Audio(decode=False)`).

    Args:
        path (`str` or `Path`): A folder or Hub repository of Parquet as `dataset_builder` writes it, or a `.json`,
            `.jsonl` or `.parquet` file in either form.
        split (`str`): `"train"`, `"validation"` or `"test"`; a single file is one split whatever its name.
        name (`str`, *optional*): Configuration of the data set, for instance `"modality"`.

    Returns:
        `datasets.Dataset`: One pair a row. No torchcodec is needed to read it.

    Raises:
        PairsNotFoundError: There is no such file, folder or repository.
        PairsError: The data lack the split or the configuration, have no `chosen` and `rejected` columns, or name a
            recording or a table outside of their root; see `path_sandbox`.
    """
    try:
        return _load_pairs(path, split, name)
    except (FileNotFoundError, ValueError) as error:
        kind = PairsNotFoundError if isinstance(error, FileNotFoundError) else PairsError
        message = " ".join(str(error).split())
        raise kind(message if message.startswith(str(path)) else f"{path}: {message}") from error


def _load_pairs(path: str | Path, split: str, name: str | None) -> datasets.Dataset:
    import datasets

    from .path_sandbox import audio_roots, load_safe_builder, require_audio_inside

    suffix = Path(path).suffix
    if suffix in {".json", ".jsonl", ".parquet"}:
        if not Path(path).is_file():
            raise FileNotFoundError("no such file of pairs.")
        kind = "parquet" if suffix == ".parquet" else "json"
        pairs = datasets.load_dataset(kind, data_files=str(path), split="train")
    else:
        load_safe_builder(path, name)
        pairs = datasets.load_dataset(str(path), name, split=split)
    missing = [side for side in SIDES if side not in pairs.column_names]
    if missing:
        raise ValueError(f"has columns {pairs.column_names}; a data set of pairs needs {list(SIDES)}.")
    pairs = pairs.cast(leave_audio_encoded(pairs.features))
    require_audio_inside(pairs, SIDES, audio_roots(path))
    return pairs


def leave_audio_encoded(features: Any) -> Any:
    """Return `features` with every `datasets.Audio` inside set to `decode=False`."""
    import datasets

    if isinstance(features, datasets.Audio):
        return datasets.Audio(sampling_rate=features.sampling_rate, decode=False)
    if isinstance(features, datasets.List):
        return datasets.List(leave_audio_encoded(features.feature))
    if isinstance(features, Mapping):
        columns = {key: leave_audio_encoded(value) for key, value in features.items()}
        return datasets.Features(columns) if isinstance(features, datasets.Features) else columns
    return features


def pair_names(pairs: datasets.Dataset) -> list[str]:
    """Return what to call each pair: its `pair_id`, or its row where the data has none."""
    return list(pairs["pair_id"]) if "pair_id" in pairs.column_names else [f"row {row}" for row in range(len(pairs))]


def turns_to_messages(turns: Any) -> list[dict[str, Any]]:
    """Turn one side of a pair into messages: text before audio in each turn, as the paper interleaves them.

    What is malformed is returned as it is: `validate_form` and the processor name it.

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
    content = turn.get("content")
    if content is None:
        content = [{"type": kind, kind: turn[kind]} for kind in ("text", "audio") if turn.get(kind)]
    elif _is_list(content):
        content = [_without_none(item) for item in content]
    return {"role": turn.get("role"), "content": content}


def _without_none(item: Any) -> Any:
    return {key: value for key, value in item.items() if value is not None} if isinstance(item, Mapping) else item


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
