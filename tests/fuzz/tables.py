"""Targets that read tables: Parquet, JSON lines with recordings beside them, and multipart bodies."""

import asyncio
import contextlib
import io
import json
import shutil
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.rows import _ROW, _request_body, _row_turns, tone_wav
from fuzz.running import Target, World, silent
from fuzz.values import damaged, json_texts
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.formats import sdiareward
from sdiareward.dataset_builder.release import reconstruct
from sdiareward.pairs.dialogues import Dialogues, HeardAudio
from sdiareward.pairs.rows import ParquetRows, find_dialogue_columns, read_block
from sdiareward.pairs.schema import features
from sdiareward.scoring.batching import DIALOGUE_ERRORS
from sdiareward.serving.bodies import BadRequestError, read_body
from sdiareward.serving.settings import Limits


_SHARD = "data/modality/train-00000-of-00001.parquet"


@cache
def shards() -> tuple[bytes, ...]:
    """Return a shard of two pairs, packed in several ways."""
    turns = _row_turns(audio={"bytes": tone_wav()[:600], "path": "a.wav"})
    rows = [{**_ROW, "chosen": turns, "rejected": turns}] * 2
    found = []
    for options in ({}, {"compression": "gzip"}, {"compression": "zstd", "use_dictionary": False}):
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=features().arrow_schema), buffer, **options)
        found.append(buffer.getvalue())
    return tuple(found)


def _tables(_: World) -> st.SearchStrategy[bytes]:
    # The metadata of a table is at its end, which should get half of the damage.
    longest = 2 * max(map(len, shards()))
    backwards = damaged(*(shard[::-1] for shard in shards()), longest=longest).map(lambda data: data[::-1])
    return backwards | damaged(*shards(), longest=longest)


def _read_release(world: World, data: bytes) -> None:
    folder = world.write(f"release/{_SHARD}", data).parents[2]
    skipped: list[Skipped] = []
    rows = list(reconstruct._read_shards(folder, skipped))
    assert len(rows) == 2 or skipped


def _read_to_score(world: World, data: bytes) -> None:
    rows = ParquetRows([str(world.write("scored.parquet", data))])
    sides = find_dialogue_columns(rows.features, "table")
    if rows.num_rows:
        block = read_block(rows, np.arange(min(rows.num_rows, 64)), sides)
        dialogues = Dialogues(block, range(len(block.numbers)), sides, HeardAudio(60.0))
        for number in range(len(dialogues)):
            with contextlib.suppress(*DIALOGUE_ERRORS):
                dialogues[number]


@cache
def _builder(folder: str) -> sdiareward.SDiaReward:
    return sdiareward.SDiaReward(config_name="modality", data_dir=folder, cache_dir=f"{folder}/cache")


def _load(world: World, name: str, content: bytes | str) -> list[str]:
    """Return the ids of the pairs that the loader makes of a table."""
    shutil.rmtree(world.folder / "loaded", ignore_errors=True)
    world.write("loaded/modality/a.wav", tone_wav())
    path = world.write(f"loaded/{name}", content)
    root = str(world.folder / "loaded")
    builder = _builder(root)
    with silent(sdiareward.__name__):
        tables = [table for _, table in builder._generate_tables([str(path)], root)]
    assert all(table.schema.names == builder.info.features.arrow_schema.names for table in tables)
    return [pair_id for table in tables for pair_id in table["pair_id"].to_pylist()]


def _lines(_: World) -> st.SearchStrategy[str]:
    turns = _row_turns(audio="modality/a.wav")
    row = {**_ROW, "chosen": turns, "rejected": turns}
    return st.lists(json_texts(row), min_size=1, max_size=2).map("\n".join)


_OPTIONS = ("", "; charset=utf-8", "; charset=punycode", "; charset=unicode_escape", '; charset="', "; boundary=c")


@st.composite
def _multipart(draw: Any) -> tuple[bytes, bytes]:
    """Return the content type of a body, and the body."""
    head = b'--b\r\nContent-Disposition: form-data; name="%s"'
    request = head % b"request" + b"\r\n\r\n" + json.dumps(_request_body()).encode()
    file = head % b"a" + b'; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + tone_wav()[:600]
    body = draw(damaged(request + b"\r\n" + file + b"\r\n--b--\r\n", most=2))
    return f"multipart/form-data; boundary=b{draw(st.sampled_from(_OPTIONS))}".encode(), body


def _read_multipart(world: World, case: tuple[bytes, bytes]) -> None:
    kind, content = case
    pieces = [{"type": "http.request", "body": content[:700], "more_body": True}]
    pieces += [{"type": "http.request", "body": content[700:], "more_body": False}]
    left = iter(pieces)

    async def receive() -> dict[str, Any]:
        return next(left)

    scope = {"type": "http", "headers": [(b"content-type", kind)], "app": None}
    with silent("python_multipart.multipart"):
        body = asyncio.run(read_body(Request(scope, receive), Limits()))
    # Bytes that are no UTF-8 are read as Latin-1 and then take two bytes per letter.
    assert body.text and len(body.text) + sum(map(len, body.files.values())) <= 2 * len(content)


TARGETS = (
    Target("Parquet of a release", "rows", _tables, _read_release, ()),
    Target("Parquet to score", "rows", _tables, _read_to_score),
    Target("Parquet to load", "rows", _tables, lambda world, data: _load(world, _SHARD, data)),
    Target("lines to load", "rows", _lines, lambda world, text: _load(world, "modality/train.jsonl", text)),
    Target(
        "multipart body",
        "requests",
        lambda _: _multipart(),
        _read_multipart,
        (BadRequestError, HTTPException),
    ),
)
