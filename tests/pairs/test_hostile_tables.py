"""Tables of strangers: each is read, or refused with its name; what a damaged one costs is itself alone."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz.rows import _ROW, _row_turns
from fuzz.running import World
from fuzz.tables import _load, shards

from sdiareward.cli import main
from sdiareward.dataset_builder.release import reconstruct
from sdiareward.pairs.rows import ParquetRows


@pytest.fixture
def read(tmp_path):
    """Return a function that opens bytes as a table to be scored."""

    def read(data):
        (tmp_path / "rows.parquet").write_bytes(data)
        return ParquetRows([str(tmp_path / "rows.parquet")])

    return read


def pack(columns, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, **options)
    return bytearray(buffer.getvalue())


def dialogues(num_rows):
    return {"id": list(range(num_rows)), "messages": [[{"role": "user", "text": str(k)}] for k in range(num_rows)]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"PAR1",
        lambda data: data[:-100],
        lambda data: data[:-600] + b"\xff" * 592 + data[-8:],
    ],
)
def test_a_table_that_is_damaged_is_refused_by_name(damage, read):
    assert read(shards()[0]).num_rows == 2
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as Parquet .*; get the file again"):
        read(damage(shards()[0]))


def test_a_table_whose_description_is_of_nothing_known_is_refused_by_name(read):
    columns = pa.table(dialogues(1)).replace_schema_metadata({"huggingface": '{"info": {"features": {"id": 5}}}'})
    buffer = io.BytesIO()
    pq.write_table(columns, buffer)
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as Parquet"):
        read(buffer.getvalue())


@pytest.fixture
def damaged_page():
    """Return a table whose second row group, from row 20 on, cannot be read."""
    data = pack(dialogues(40), row_group_size=20, compression="none", use_dictionary=False)
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1)
    for start in (group.column(index).data_page_offset for index in range(group.num_columns)):
        data[start : start + 8] = b"\xff" * 8
    return data


def test_a_page_that_is_damaged_is_named_when_it_is_reached(read, damaged_page):
    rows = read(damaged_page)
    assert rows.read([0, 19], ["id"])["id"].to_pylist() == [0, 19]
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as Parquet"):
        rows.read([20], ["id"])


def test_a_page_that_is_damaged_ends_a_run_with_one_line(damaged_page, tiny_checkpoint, tmp_path, capsys):
    path = tmp_path / "rows.parquet"
    path.write_bytes(damaged_page)
    assert (
        main(["score", "--dataset", str(path), "--output", str(tmp_path / "o"), "--model", str(tiny_checkpoint)]) == 2
    )
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"sdiareward score: error: {path}: cannot be read as Parquet") and "Traceback" not in said


def test_a_row_group_that_claims_more_rows_than_it_holds_is_named(read):
    data = pack(dialogues(100))
    # The number of its rows, 100, as the format writes it; the last of its kind in the file.
    place = data.rfind(b"\x16\xc8\x01")
    data[place : place + 3] = b"\x16\xe8\x02"
    rows = read(data)
    assert rows.num_rows == 180
    assert rows.read(np.arange(99, 100), ["id"])["id"].to_pylist() == [99]
    with pytest.raises(ValueError, match=r"rows\.parquet: row group 0 ends before row 100"):
        rows.read([100], ["id"])


def test_a_million_rows_of_nothing_are_refused_before_there_is_room_for_them(read):
    data = pack({"messages": pa.nulls(1_000_000, pa.list_(pa.string()))})
    assert len(data) < 5_000
    with pytest.raises(ValueError, match=r"claims 1000000 rows in \d+ bytes, fewer than dialogues need"):
        read(data)


def test_a_shard_of_a_release_with_texts_that_are_none_costs_itself_alone(tmp_path):
    folder = tmp_path / "data" / "modality"
    folder.mkdir(parents=True)
    (folder / "test-00000-of-00001.parquet").write_bytes(pack({"pair_id": pa.array([b"\xff"]).view(pa.string())}))
    (folder / "train-00000-of-00001.parquet").write_bytes(shards()[0])
    skipped = []
    assert [split for split, _ in reconstruct._read_shards(tmp_path, skipped)] == ["train", "train"]
    (skip,) = skipped
    assert (skip.item, skip.kind) == ("modality/test-00000-of-00001.parquet", "invalid_shard")


def line(**changes):
    turns = _row_turns(audio="modality/a.wav")
    return json.dumps({**_ROW, "chosen": turns, "rejected": turns, **changes})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (line(chosen=[5]), "line 1: chosen is no list of turns"),
        (line(rejected="x"), "line 1: rejected is no list of turns"),
        ("[" * 100_000, "line 1: not JSON"),
        (line(source=5), r"train\.jsonl: cannot be read \(ArrowTypeError"),
        (line(channel={"trim_db": 10**400}), r"train\.jsonl: cannot be read"),
    ],
)
def test_lines_that_are_no_pairs_are_refused_by_name(text, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        _load(World(tmp_path), "modality/train.jsonl", text)


@pytest.mark.parametrize("stated_s", [float("nan"), "0.25", [1], 9.0])
def test_a_length_that_is_none_leaves_its_pair_out(stated_s, tmp_path):
    world = World(tmp_path)
    turns = _row_turns(audio="modality/a.wav") * 2
    bad = [{**turns[0], "duration_s": stated_s}, *turns[1:]]
    text = line(pair_id="bad", chosen=bad)
    assert list(_load(world, "modality/train.jsonl", f"{text}\n{line()}")) == [_ROW["pair_id"]]
