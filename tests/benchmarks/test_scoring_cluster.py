"""The benchmark of the Ray engine: what it counts, and a run on a few rows."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.scoring_cluster import (
    NUM_NODES,
    Readings,
    check_rows,
    count_teraflops,
    make_dialogue,
    measure,
    reward_of,
)


def write_output(folder, rows, rewards, records):
    (folder / "partial").mkdir()
    pq.write_table(pa.table({"row": rows, "reward": rewards}), folder / "scores.parquet")
    lines = [json.dumps({"row": row}) + "\n" for row in records]
    (folder / "partial" / "0.jsonl").write_text("".join(lines))


def test_lost_rows_repeated_records_and_wrong_rewards_are_counted(tmp_path):
    rewards = [reward_of(make_dialogue(row)) for row in (0, 1, 3)]
    write_output(tmp_path, [0, 1, 3], [*rewards[:2], rewards[2] + 0.5], [0, 1, 1, 3])
    found = check_rows(tmp_path, 4)
    assert (found["num_lost"], found["num_twice"], found["num_wrong"]) == (1, 1, 1)
    assert found["record_bytes"] == 11


def test_every_dialogue_has_a_reward_of_its_own():
    rewards = {reward_of(make_dialogue(number)) for number in range(1_000)}
    assert len(rewards) == 1_000
    assert all(0 <= reward < 1 for reward in rewards)


def test_the_slope_of_memory_is_that_after_the_first_tenth(tmp_path):
    readings = Readings(os.getpid(), tmp_path, os.getpid())
    readings.rows = list(range(0, 100_001, 1_000))
    # Loading takes 500 MiB, and every 100,000 rows 7 more.
    readings.memory = {
        "driver": [0.0 if row < 10_000 else 500 + 7 * row / 1e5 for row in readings.rows],
        "worker": [300.0 for _ in readings.rows],
    }
    found = readings.describe()
    assert found["driver_mib_per_100k_rows"] == pytest.approx(7)
    assert found["worker_mib_per_100k_rows"] == 0
    assert (found["driver_mib"], found["readings"]) == (507, 101)


def test_records_are_counted_once_while_they_grow(tmp_path):
    (tmp_path / "partial").mkdir()
    readings, path = Readings(os.getpid(), tmp_path, os.getpid()), tmp_path / "partial" / "0.jsonl"
    path.write_text('{"row": 0}\n{"row": 1}\n')
    assert readings.count_records() == 2
    with path.open("a") as file:
        file.write('{"row": 2}\n{"ro')
    assert readings.count_records() == 3


def test_larger_models_cost_more():
    costs = [count_teraflops(name) for name in ("nano", "3b", "7b")]
    assert costs == sorted(costs)
    # Twice the weights, 6.5 billion of the text tower, for each of a thousand tokens and more.
    assert costs[-1] > 2 * 6.5e9 * 1_000 / 1e12


@pytest.mark.slow
def test_a_few_rows_are_scored_on_the_nodes(tmp_path):
    found = measure(2_000, tmp_path)
    assert (found["num_nodes"], found["killed"]) == (NUM_NODES, {})
    assert found["sessions"][0]["rows"] == found["num_rows"] == 2_000
    assert (found["num_lost"], found["num_twice"], found["num_wrong"]) == (0, 0, 0)
