import os
import signal
import sys
from functools import partial

import datasets
import pytest

from sdiareward.common.user_errors import UserError
from sdiareward.dataset_builder.parts import PartFolder, choose_block_size, run_jobs, run_jobs_on_ray


@pytest.fixture
def parts(tmp_path):
    return PartFolder(tmp_path / "parts", datasets.Features({"id": datasets.Value("string")}))


def test_a_part_keeps_its_rows_and_notes_and_is_finished_by_its_rows(parts, tmp_path):
    parts.write("a", [{"id": "1"}, {"id": "2"}], {"seen": 2})
    parts.write("b", [])
    assert parts.has("a") and parts.has("b")
    assert (parts.read_rows("a"), parts.read_notes("a")) == ([{"id": "1"}, {"id": "2"}], {"seen": 2})
    (tmp_path / "parts" / "a.parquet").unlink()
    assert not parts.has("a")
    assert [(parts.read_rows(name), parts.read_notes(name)) for name in "ab"] == [([], None)] * 2


def test_one_worker_is_this_process():
    assert set(run_jobs(_name_process, [1, 2, 3], 1, "jobs")) == {os.getpid()}


def _name_process(_job):
    return os.getpid()


def test_parts_made_of_something_else_are_dropped_and_those_of_missing_recordings_kept(parts):
    for name in ("same", "mended", "missing", "new"):
        parts.write(name, [{"id": name}])
    parts.drop_changed({"same": "a", "mended": "a", "missing": "a"})
    parts.drop_changed({"same": "a", "mended": "b", "missing": None, "new": "a"})
    assert [parts.has(name) for name in ("same", "mended", "missing", "new")] == [True, False, True, True]
    parts.drop_changed({"missing": "b"})
    assert not parts.has("missing")


def test_nothing_is_started_for_no_jobs(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(run_jobs_on_ray(_name_process, [], 1, "jobs")) == []
    with pytest.raises(UserError, match=r"needs `pip install \"sdiareward\[ray\]\"`; or use the engine 'datasets'"):
        list(run_jobs_on_ray(_name_process, [1], 1, "jobs"))


def _square_and_die_once(number, died):
    if number == 20 and not died.exists():
        died.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2, os.getcwd()


@pytest.mark.parametrize(
    ("num_jobs", "num_workers", "size"),
    [(1, 2, 1), (40, 2, 3), (2_000, 2, 16), (1_000_000, 3, 245), (1_000_000, 600, 209)],
)
def test_blocks_are_neither_many_nor_few(num_jobs, num_workers, size):
    assert choose_block_size(num_jobs, num_workers) == size


@pytest.mark.slow
def test_on_ray_the_jobs_of_a_worker_that_is_killed_are_done_by_another(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    found = list(run_jobs_on_ray(partial(_square_and_die_once, died=tmp_path / "died"), range(40), 1, "jobs"))
    assert (tmp_path / "died").exists()
    assert sorted(found) == [(number**2, os.getcwd()) for number in range(40)]
