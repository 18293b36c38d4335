"""Damaged tables: each is refused by its name."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdiareward.cli import main
from sdiareward.pairs.rows import ParquetRows


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
def test_a_table_that_is_damaged_is_refused_by_name(damage, tmp_path):
    (tmp_path / "rows.parquet").write_bytes(damage(pack(dialogues(2))))
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as Parquet"):
        ParquetRows([str(tmp_path / "rows.parquet")])


def test_a_page_that_is_damaged_is_named_when_it_is_reached_and_ends_a_run(tiny_checkpoint, tmp_path, capsys):
    data = pack(dialogues(40), row_group_size=20, compression="none", use_dictionary=False)
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1)
    for start in (group.column(index).data_page_offset for index in range(group.num_columns)):
        data[start : start + 8] = b"\xff" * 8
    path = tmp_path / "rows.parquet"
    path.write_bytes(data)
    rows = ParquetRows([str(path)])
    assert rows.read([0, 19], ["id"])["id"].to_pylist() == [0, 19]
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as Parquet"):
        rows.read([20], ["id"])
    run = ["score", "--dataset", str(path), "--output_dir", str(tmp_path / "o"), "--model", str(tiny_checkpoint)]
    assert main(run) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"sdiareward score: error: {path}: cannot be read as Parquet") and "Traceback" not in said
