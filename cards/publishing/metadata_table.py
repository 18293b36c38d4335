"""Write the table of all pairs without audio, which includes pairs whose audio may not be published.

`dataset_builder.release` also writes fingerprints, for which it needs the recordings; this table has the same columns
from the shards alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sdiareward.dataset_builder.formats.shards import ShardWriter
from sdiareward.dataset_builder.release.release import release_features
from sdiareward.dataset_builder.release.scrubbing import scrub
from sdiareward.pairs.schema import SIDES, make_arrow_schema

from .public_shards import Shard, list_shards, open_shard, read_columns


def write_metadata(shards: Iterable[Shard], output: Path) -> tuple[list[Shard], Counter[str]]:
    """Write the table of the pairs of some shards, with scrubbed transcripts.

    Args:
        shards (`Iterable[Shard]`): Shards of a data set folder; their audio is not read.
        output (`Path`): Folder to write.

    Returns:
        `tuple[list[Shard], Counter]`: The table's shards, and the number of identifiers of each kind that were
        removed from the transcripts, and `"across_parts"`: pairs that were omitted because an identifier begins in one
        part of a turn and ends in the next.

    Raises:
        ImportError: The packages that find phone numbers and addresses are not installed.
    """
    counts: Counter[str] = Counter()
    scrub_counted = _make_scrubber(counts)
    with ShardWriter(output, release_features()) as writer:
        for shard in shards:
            for row in read_columns(shard.path, lambda path: "audio" not in path.split(".")):
                sides = {side: [_make_public_turn(turn, scrub_counted) for turn in row[side]] for side in SIDES}
                if all(turn is not None for turns in sides.values() for turn in turns):
                    writer.write(shard.split, _with_all_columns({**row, **sides}))
                else:
                    counts["across_parts"] += 1
    return list_shards(output), counts


def _make_scrubber(counts: Counter[str]) -> Any:
    """Return a `scrub` that counts identifiers, once for each distinct text."""

    @cache
    def scrub_counted(text: str) -> str:
        scrubbed, found = scrub(text)
        counts.update(found)
        return scrubbed

    return scrub_counted


def _make_public_turn(turn: Mapping[str, Any], scrub_counted: Any) -> dict[str, Any] | None:
    parts = [{**part, "text": scrub_counted(part["text"] or "")} for part in turn.get("audio_ref") or ()]
    text = " ".join(part["text"] for part in parts if part["text"]) if parts else scrub_counted(turn["text"] or "")
    if len(parts) > 1 and scrub(text)[1]:
        return None
    return {**turn, "text": text, "audio_ref": parts, "fingerprints": []}


def _with_all_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with all columns; a folder of an earlier version may lack some."""
    return {**dict.fromkeys(release_features()), **row}


def read_release(folder: Path, pair_ids: Collection[str]) -> list[Shard]:
    """Return the shards of a metadata release.

    Args:
        folder (`Path`): Folder of `dataset_builder.release`.
        pair_ids (`Collection[str]`): Pairs of its data set; the release may omit some.

    Raises:
        FileNotFoundError: The folder holds no shards.
        ValueError: A shard has other columns than a release, such as audio; or it belongs to another data set.
    """
    shards = list_shards(folder)
    agreed = make_arrow_schema(release_features())
    # The second is how earlier versions described the same columns.
    descriptions = (agreed.metadata, release_features().arrow_schema.metadata)
    for shard in shards:
        with open_shard(shard.path) as file:
            schema = file.schema_arrow
        if not schema.equals(agreed) or schema.metadata not in descriptions:
            raise ValueError(
                f"{shard.path}: does not have the columns of a metadata release, which has no audio; write one with "
                "python -m sdiareward.dataset_builder release."
            )
    released = {row["pair_id"] for shard in shards for row in read_columns(shard.path, lambda leaf: leaf == "pair_id")}
    if unknown := sorted(map(str, released - set(pair_ids))):
        raise ValueError(
            f"{folder}: {len(unknown)} of its {len(released)} pairs, such as {unknown[0]}, are not in the data set; "
            "give the release of this data set."
        )
    return shards
