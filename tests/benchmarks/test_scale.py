import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import scale
from benchmarks.scale import check_rows, compute_reward, make_dialogue


@pytest.mark.slow
def test_a_few_rows_are_scored_on_the_nodes(tmp_path):
    output = tmp_path / "scale.json"
    scale.main(["--num_rows", "2000", "--output", str(output)])
    (record,) = json.loads(output.read_text())
    assert [each["rows"] for each in record["sessions"]] == [2_000]
    assert (record["num_scored"], record["num_twice"], record["num_wrong"]) == (2_000, 0, 0)
    table = output.with_suffix(".md").read_text()
    assert f"| driver 1 | 2,000 | {record['sessions'][0]['seconds']:.0f} s |" in table
    assert "Rows with a reward: 2,000; with two: 0; with a wrong one: 0." in table


def test_lost_rows_repeated_records_and_wrong_rewards_are_counted(tmp_path):
    rewards = [compute_reward(make_dialogue(row)) for row in (0, 1, 3)]
    pq.write_table(
        pa.table({"row": [0, 1, 3], "reward": [*rewards[:2], rewards[2] + 0.5]}), tmp_path / "scores.parquet"
    )
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "0.jsonl").write_text("".join(json.dumps({"row": row}) + "\n" for row in (0, 1, 1, 3)))
    found = check_rows(tmp_path)
    assert (found["num_scored"], found["num_twice"], found["num_wrong"], found["record_bytes"]) == (3, 1, 1, 11)
