"""Write a few pairs to listen to: each side as one recording in its own column.

The Hub's page plays a column of audio, but only links to a recording in a list of turns. The package reads the lists
`chosen` and `rejected` of the data set; this small table is for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.common.files import replace_atomically
from sdiareward.pairs.schema import SIDES, make_arrow_schema

from .public_shards import Shard, list_shards, read_columns


if TYPE_CHECKING:
    import datasets

_SPLIT = "test"
_PAIRS_A_SUBSET = 10
_PAUSE_S = 0.5
_LABELS = ("pair_id", "criterion", "subset", "source", "synthesizer", "language", "license")


def make_listening_features() -> datasets.Features:
    """Return the columns: labels, and for each side its words and one recording (mono, 16 kHz)."""
    import datasets

    text = datasets.Value("string")
    audio = {f"{side}_audio": datasets.Audio(sampling_rate=SAMPLING_RATE) for side in SIDES}
    return datasets.Features({**dict.fromkeys(_LABELS, text), **audio, **{f"{side}_text": text for side in SIDES}})


def write_listening(shards: Iterable[Shard], output: Path) -> tuple[list[Shard], int]:
    """Write the table from the first pairs of each subset of the test split.

    Args:
        shards (`Iterable[Shard]`): Public shards.
        output (`Path`): Folder to write.

    Returns:
        `tuple[list[Shard], int]`: The shards of the table, none without a test split; and the number of pairs that
        were skipped because a recording cannot be decoded.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: dict[str, list[dict[str, Any]]] = {}
    num_unreadable = 0
    for row in _read_first_pairs(shard for shard in shards if shard.split == _SPLIT):
        try:
            rows.setdefault(row["criterion"], []).append(_join(row))
        except AudioError:
            num_unreadable += 1
    written = []
    for criterion, of_criterion in rows.items():
        if of_criterion:
            path = output / "data" / criterion / f"{_SPLIT}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist(of_criterion, schema=make_arrow_schema(make_listening_features()))
            with replace_atomically(path) as temporary:
                pq.write_table(table, temporary, row_group_size=_PAIRS_A_SUBSET)
            written.append(path)
    # An earlier plan may have written shards of other data there.
    return [shard for shard in list_shards(output) if shard.path in written] if written else [], num_unreadable


def _read_first_pairs(shards: Iterable[Shard]) -> Iterator[dict[str, Any]]:
    """Yield the first pairs of each subset; a shard is read up to its last one of them."""
    taken: Counter[str] = Counter()
    for shard in shards:
        wanted = []
        for index, row in enumerate(read_columns(shard.path, lambda leaf: leaf == "subset")):
            taken[row["subset"]] += 1
            if taken[row["subset"]] <= _PAIRS_A_SUBSET:
                wanted.append(index)
        if wanted:
            rows = islice(read_columns(shard.path, lambda leaf: True), wanted[-1] + 1)
            yield from (row for index, row in enumerate(rows) if index in wanted)


def _join(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a pair: the turns of each side in one recording, with pauses between them."""
    joined = {name: row[name] for name in _LABELS}
    for side in SIDES:
        joined[f"{side}_audio"] = {"bytes": _concatenate(row[side], row["pair_id"]), "path": f"{side}.flac"}
        joined[f"{side}_text"] = "\n".join(f"{turn['role']}: {turn['text']}" for turn in row[side])
    return joined


def _concatenate(turns: Sequence[Mapping[str, Any]], pair_id: str) -> bytes:
    import numpy as np

    from sdiareward.perturbations.channel import encode_flac

    pause = np.zeros(round(_PAUSE_S * SAMPLING_RATE), dtype=np.float32)
    clips: list[Any] = []
    for turn in turns:
        # Only bytes: a path in a row could be any local file.
        content = (turn["audio"] or {}).get("bytes")
        if not content:
            raise AudioError(f"pair {pair_id}: a turn has no audio.")
        clips += [read_audio(content, name=f"pair {pair_id}"), pause]
    # FLAC gives the same bytes each time; OGG has random serial numbers.
    return encode_flac(np.concatenate(clips[:-1]))
