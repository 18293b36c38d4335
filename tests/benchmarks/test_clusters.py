"""The benchmarks on a simulated cluster: what they count, and a run of each on a few rows."""

import io
import json
import os
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from benchmarks import build_cluster, recordings_cluster, scoring_cluster
from benchmarks.build_cluster import PartReadings, make_part, open_parts
from benchmarks.scoring_cluster import NUM_NODES, Readings, check_rows, count_teraflops, make_dialogue, reward_of


NUM_PAIRS = 12


@pytest.fixture(scope="module")
def opened():
    with scoring_cluster.open_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(opened, monkeypatch):
    """Let a benchmark use the cluster that the tests share, which takes longer to start than what runs on it."""
    monkeypatch.setattr(scoring_cluster, "open_cluster", lambda: nullcontext(opened))


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
def test_a_few_rows_are_scored_on_the_nodes(cluster, tmp_path):
    found = scoring_cluster.measure(2_000, tmp_path)
    assert (found["num_nodes"], found["killed"]) == (NUM_NODES, {})
    assert found["sessions"][0]["rows"] == found["num_rows"] == 2_000
    assert (found["num_lost"], found["num_twice"], found["num_wrong"]) == (0, 0, 0)


def test_finished_parts_are_counted(tmp_path):
    readings, parts = PartReadings(os.getpid(), tmp_path, os.getpid()), open_parts(tmp_path)
    assert readings.count_records() == 0
    for name in ("a", "b", "a"):
        make_part(name, parts)
    (tmp_path / ".parts" / "c.json").write_text("{}")
    assert readings.count_again() == 2


@pytest.mark.slow
def test_a_few_pairs_are_made_on_the_nodes(cluster, tmp_path):
    found = build_cluster.measure(300, tmp_path)
    assert (found["num_pairs"], found["num_lost"], found["num_twice"], found["killed"]) == (300, 0, 0, {})
    assert found["sessions"][0]["rows"] == 300


@pytest.fixture
def of_recordings(tmp_path, make_tone, tiny_checkpoint):
    def turn(role, seed):
        buffer = io.BytesIO()
        soundfile.write(buffer, make_tone(0.9, 100.0 + 10 * seed, seed), 16_000, format="FLAC")
        return {"role": role, "text": "hi", "audio": {"bytes": buffer.getvalue(), "path": None}, "duration_s": 0.9}

    rows = [
        {side: [turn("user", k), turn("assistant", k + number)] for number, side in enumerate(("chosen", "rejected"))}
        for k in range(NUM_PAIRS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    pairs = str(tmp_path / "pairs.parquet")
    options = {"split": "train", "model": str(tiny_checkpoint), "num_compared": 4, "kill": False}
    return recordings_cluster.Arguments(dataset=pairs, **options)


def test_turns_of_both_sides_are_counted(of_recordings):
    found = recordings_cluster.count_turns(of_recordings.job)
    assert found == {"num_pairs": NUM_PAIRS, "num_turns": 4 * NUM_PAIRS, "audio_h": 0.01}


@pytest.mark.slow
def test_the_nodes_score_as_one_process_does(of_recordings, cluster, tmp_path):
    found = recordings_cluster.measure(of_recordings, tmp_path)
    assert (found["sessions"][0]["rows"], found["num_lost"], found["num_twice"]) == (NUM_PAIRS, 0, 0)
    assert found["num_compared"] == 4
    assert found["moved"] < 1e-4
