"""The benchmark of builds on Ray, on a few pairs."""

import os

import pytest

from benchmarks.build_cluster import PartReadings, make_part, measure, open_parts


def test_finished_parts_are_counted(tmp_path):
    readings, parts = PartReadings(os.getpid(), tmp_path, os.getpid()), open_parts(tmp_path)
    assert readings.count_records() == 0
    for name in ("a", "b", "a"):
        make_part(name, parts)
    (tmp_path / ".parts" / "c.json").write_text("{}")
    assert readings.count_records() == 2


@pytest.mark.slow
def test_a_few_pairs_are_made_on_the_nodes(tmp_path):
    found = measure(300, tmp_path)
    assert (found["num_pairs"], found["num_lost"], found["num_twice"], found["killed"]) == (300, 0, 0, {})
    assert found["sessions"][0]["rows"] == 300
