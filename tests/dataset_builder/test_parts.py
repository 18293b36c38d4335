import os

import datasets
import pytest

from sdiareward.dataset_builder.parts import PartFolder, run_jobs


@pytest.fixture
def parts(tmp_path):
    return PartFolder(tmp_path / "parts", datasets.Features({"id": datasets.Value("string")}))


def test_a_part_keeps_its_rows_and_notes(parts):
    parts.write("a", [{"id": "1"}, {"id": "2"}], {"seen": 2})
    assert parts.has("a")
    assert parts.read_rows("a") == [{"id": "1"}, {"id": "2"}]
    assert parts.read_notes("a") == {"seen": 2}


def test_a_part_may_have_no_rows_and_no_notes(parts):
    parts.write("a", [])
    assert parts.has("a") and parts.read_rows("a") == [] and parts.read_notes("a") is None


def test_notes_alone_do_not_make_a_part(parts, tmp_path):
    parts.write("a", [{"id": "1"}], ["noted"])
    (tmp_path / "parts" / "a.parquet").unlink()
    assert not parts.has("a") and parts.read_rows("a") == [] and parts.read_notes("a") is None


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
