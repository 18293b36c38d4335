"""What every command that resumes relies on; tests of the commands need not show it again."""

import signal
import subprocess
import sys

import psutil
import pyarrow as pa
import pytest
from support.squares import load_and_die, load_nothing, load_reciprocals, load_squares

from sdiareward.common.errors import UserError
from sdiareward.common.parts import PartFolder, Processes, run_here, run_parts


META = {"model": "nano"}


def run(folder, items, load=load_squares, engine=run_here, size=3, meta=META, **options):
    parts = PartFolder(folder, meta)
    pending = parts.find_pending(items, **options)
    run_parts(parts, pending, load, size, engine, label="squares", unit="item")
    return pending


def read_squares(folder):
    return {row["item"]: row["square"] for row in PartFolder(folder, META).iter_rows()}


@pytest.mark.parametrize("engine", [run_here, Processes(2)])
def test_only_what_has_no_row_is_made(tmp_path, engine):
    assert run(tmp_path, [1, 2, 3, 4, 5], engine=engine) == [1, 2, 3, 4, 5]
    assert run(tmp_path, range(7), engine=engine) == [0, 6]
    assert run(tmp_path, range(7), load_nothing, engine) == []
    assert read_squares(tmp_path) == {item: item * item for item in range(7)}


def test_the_newest_row_of_an_item_counts(tmp_path):
    run(tmp_path, range(6))

    def load_cubes():
        return lambda parts: ([{"item": item, "square": item**3} for item in part] for part in parts)

    assert run(tmp_path, range(6), load_cubes, has_changed=lambda rows: [row["item"] > 3 for row in rows]) == [4, 5]
    assert read_squares(tmp_path) == {0: 0, 1: 1, 2: 4, 3: 9, 4: 64, 5: 125}
    table = PartFolder(tmp_path, META).read(["square", "absent"])
    assert table.sort_by("item") == pa.table({"item": range(6), "square": [0, 1, 4, 9, 64, 125]})


def test_a_folder_is_claimed_by_the_first_part_and_refused_to_others(tmp_path):
    with pytest.raises(UserError, match="no such model"):
        run(tmp_path / "out", [1], load_nothing)
    assert not (tmp_path / "out").exists()
    run(tmp_path / "out", [1], meta={"model": "small", "dtype": None})
    with pytest.raises(ValueError, match="model was 'small', is 'nano'; dtype was None, is 'bfloat16'"):
        run(tmp_path / "out", [1], meta={"model": "nano", "dtype": "bfloat16"})


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_part_is_made_again(tmp_path, caplog, damage):
    run(tmp_path, range(6))
    path = tmp_path / "parts" / "part-000001.parquet"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[20] ^= 1
    path.write_bytes({"cut": content[:-9], "empty": b""}.get(damage, content))
    assert run(tmp_path, range(6)) == [3, 4, 5]
    assert "part-000001.parquet: damaged" in caplog.text
    assert read_squares(tmp_path) == {item: item * item for item in range(6)}


def test_rows_come_in_the_order_of_the_items_whichever_run_made_them(tmp_path):
    run(tmp_path, [1, 2, 7, 8])
    run(tmp_path, range(10))
    parts = PartFolder(tmp_path, {"model": "nano"})
    assert [row["item"] for row in parts.iter_ordered(range(10))] == [*range(10)]
    assert [row["square"] for row in parts.iter_ordered([2, 7])] == [4, 49]


KILLED = """
import os, signal, sys
from sdiareward.common.parts import PartFolder, run_parts
def load():
    def make(parts):
        for part in parts:
            if {when} in part:
                os.kill(os.getpid(), signal.SIGKILL)
            yield [{{"item": item, "square": item * item}} for item in part]
    return make
run_parts(PartFolder(sys.argv[1], {{"model": "nano"}}), range(20), load, 3, label="squares", unit="item")
"""


def test_a_killed_run_resumes_to_the_same_parts(tmp_path):
    run(tmp_path / "whole", range(20))
    for when in (1, 11):
        script = [sys.executable, "-c", KILLED.format(when=when), str(tmp_path / str(when))]
        assert subprocess.run(script, capture_output=True, check=False).returncode == -signal.SIGKILL
        assert run(tmp_path / str(when), range(20)) == list(range(when // 3 * 3, 20))
        found, wanted = (
            {path.name: path.read_bytes() for path in (tmp_path / name / "parts").iterdir()}
            for name in (str(when), "whole")
        )
        assert found == wanted


def test_a_worker_that_dies_ends_the_run_with_a_remedy(tmp_path):
    with pytest.raises(UserError, match="lower num_workers"):
        run(tmp_path, range(6), load_and_die, Processes(2))


PARENT = """
import os, time
from sdiareward.common.parts import Processes

def load():
    print(os.getpid(), flush=True)
    return lambda parts: time.sleep(600)

if __name__ == "__main__":
    list(Processes(2)(load, [[1], [2]]))
"""


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        gone, _ = psutil.wait_procs([worker], timeout=20)
        assert gone or worker.status() == psutil.STATUS_ZOMBIE


def test_an_error_cancels_the_parts_that_wait(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, [0, *range(1, 200)], load_reciprocals, Processes(2), size=1)
    assert len(PartFolder(tmp_path, META)) < 100
