"""Damaged tables: each is refused by its name, and costs itself alone."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
    data = pack(dialogues(2))
    assert read(data).num_rows == 2
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as Parquet"):
        read(damage(data))


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


def test_a_shard_of_a_release_with_texts_that_are_none_costs_itself_alone(tmp_path):
    folder = tmp_path / "data" / "modality"
    folder.mkdir(parents=True)
    (folder / "test-00000-of-00001.parquet").write_bytes(pack({"pair_id": pa.array([b"\xff"]).view(pa.string())}))
    (folder / "train-00000-of-00001.parquet").write_bytes(pack({"pair_id": ["a", "b"]}))
    skipped = []
    assert [split for split, _ in reconstruct._read_shards(tmp_path, skipped)] == ["train", "train"]
    (skip,) = skipped
    assert (skip.item, skip.kind) == ("modality/test-00000-of-00001.parquet", "invalid_shard")
