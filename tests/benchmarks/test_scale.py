import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scale import check_rows, compute_reward, make_dialogue


def test_lost_rows_repeated_records_and_wrong_rewards_are_counted(tmp_path):
    rewards = [compute_reward(make_dialogue(row)) for row in (0, 1, 3)]
    pq.write_table(
        pa.table({"row": [0, 1, 3], "reward": [*rewards[:2], rewards[2] + 0.5]}), tmp_path / "scores.parquet"
    )
    (tmp_path / "parts").mkdir()
    pq.write_table(pa.table({"item": [0, 1, 1, 3]}), tmp_path / "parts" / "part-000000.parquet")
    found = check_rows(tmp_path)
    assert (found["num_scored"], found["num_twice"], found["num_wrong"]) == (3, 1, 1)
