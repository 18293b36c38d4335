"""Every kind of bad input in one folder: each is a clear row in the report, and nothing else is lost."""

import pytest

from benchmarks.bad_input import DROPPED, NOTED, build_folder
from sdiareward.pairs.loading import load_pairs


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    return build_folder(folder) | {"folder": str(folder / "sdiareward")}


def test_a_strict_build_fails(report):
    assert report["exit_status"] == 1


@pytest.mark.parametrize("problem", DROPPED)
def test_what_cannot_be_used_is_a_row_of_its_kind(report, problem):
    line, kind = DROPPED[problem]
    number = 2 + list(DROPPED).index(problem)
    rows = [
        row for row in report["skipped"] if f"line {number}" in row["item"] or f"folder {line['id']} " in row["item"]
    ]
    assert [row["kind"] for row in rows] == [kind]
    assert len(rows[0]["reason"]) > 20


def test_lines_that_are_no_json_or_not_utf8_are_rows_too(report):
    assert report["drops"]["not_utf8"] == report["drops"]["not_json"] == 1


@pytest.mark.parametrize("kind", NOTED)
def test_what_is_unusual_is_used_and_noted(report, kind):
    items = {row["item"] for row in report["noted"] if row["kind"] == kind}
    assert items == {f"folder {NOTED[kind]['id']}, turn 0"}


def test_nothing_else_is_lost(report):
    pairs = load_pairs(report["folder"], "train")
    assert len(pairs) == 1 + len(NOTED)
    assert len(report["skipped"]) == len(DROPPED) + 2
    assert {row["kind"] for row in report["noted"]} == set(NOTED)


def test_a_file_of_ten_hours_is_refused_before_it_is_read(report):
    reason = next(row["reason"] for row in report["skipped"] if "ten-hours" in row["item"])
    assert "lasts 10.00 h" in reason
