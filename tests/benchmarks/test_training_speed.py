import json

import pytest

from benchmarks import scoring_speed, training_speed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["head", "full"])
def test_the_ways_to_train_are_timed_in_turn(mode, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.workloads.RELEASED_CHUNK_LENGTH_S", 30)
    monkeypatch.setattr(training_speed, "TRL", "TRL, clips of 30 s")
    monkeypatch.setattr(scoring_speed, "_MATMUL_SIZE", {"cpu": 64})
    output = tmp_path / "training_speed.json"
    arguments = f"--model tiny --mode {mode} --pairs 2 --steps 2 --rounds 1 --mean-s 2 --output {output}"
    training_speed.main(arguments.split())
    (record,) = json.loads(output.read_text())
    assert set(record["step_s"]) == {training_speed.TRL, training_speed.OURS, training_speed.ENCODED}
    losses = record["first_loss"]
    assert losses[training_speed.OURS] == pytest.approx(losses[training_speed.TRL], abs=1e-3)
    (slow,), (fast,) = (record["step_s"][way] for way in (training_speed.TRL, training_speed.OURS))
    row = next(line for line in output.with_suffix(".md").read_text().splitlines() if f"{mode}, ours |" in line)
    assert row.startswith(f"| tiny, {mode}, ours | {fast:.2f} s | {record['tokens'] / fast:,.0f} |")
    assert row.endswith(f"| {slow / fast:.1f} |")
