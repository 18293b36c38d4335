"""The benchmark of a model on real dialogues on a cluster, on a few of them."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from benchmarks.recordings_cluster import Arguments, count_turns, measure


NUM_ROWS = 12


@pytest.fixture
def args(tmp_path, make_tone, tiny_checkpoint):
    def turn(role, seed):
        buffer = io.BytesIO()
        soundfile.write(buffer, make_tone(0.9, 100.0 + 10 * seed, seed), 16_000, format="FLAC")
        return {"role": role, "text": "hi", "audio": {"bytes": buffer.getvalue(), "path": None}, "duration_s": 0.9}

    rows = [
        {side: [turn("user", k), turn("assistant", k + number)] for number, side in enumerate(("chosen", "rejected"))}
        for k in range(NUM_ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    pairs = str(tmp_path / "pairs.parquet")
    return Arguments(dataset=pairs, split="train", model=str(tiny_checkpoint), num_compared=4, kill=False)


def test_turns_of_both_sides_are_counted(args):
    assert count_turns(args.job) == {"num_pairs": NUM_ROWS, "num_turns": 4 * NUM_ROWS, "audio_h": 0.01}


@pytest.mark.slow
def test_the_nodes_score_as_one_process_does(args, tmp_path):
    found = measure(args, tmp_path)
    assert (found["sessions"][0]["rows"], found["num_lost"], found["num_twice"]) == (NUM_ROWS, 0, 0)
    assert found["num_compared"] == 4
    assert found["moved"] < 1e-4
