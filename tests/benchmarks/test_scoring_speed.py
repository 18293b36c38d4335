import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import racing, scoring_speed, workloads
from benchmarks.scoring_speed import OURS, RELEASED


@pytest.fixture
def quick(monkeypatch):
    """Let no clip be padded to 300 s, and no matrix product be large."""
    monkeypatch.setattr("benchmarks.workloads.RELEASED_CHUNK_LENGTH_S", 30)
    monkeypatch.setattr(scoring_speed, "_MATMUL_SIZE", {"cpu": 64})


@pytest.mark.slow
def test_every_part_runs_on_a_tiny_model_with_equal_rewards(tmp_path, quick):
    output = tmp_path / "scoring_speed.json"
    few = [part for part in scoring_speed.Arguments().parts if part != "best of 8"]
    for parts, number in ((few, 2), (["best of 8"], 8)):
        arguments = f"--models tiny --dialogues {number} --mean-s 2 --rounds 1 --output {output} --parts"
        scoring_speed.main([*arguments.split(), *parts])
    by_part = {record["part"]: record for record in json.loads(output.read_text())}
    assert set(by_part) == set(scoring_speed.Arguments().parts)
    for part, record in by_part.items():
        if part not in ("dtypes", "profile"):
            assert max(record["largest_difference"].values()) < 1e-4
    assert by_part["dtypes"]["largest_difference"][f"{OURS}, bfloat16"] > 1e-5
    for shares in by_part["profile"]["shares"].values():
        assert sum(shares.values()) == pytest.approx(1)
        assert shares["matrix products"] > 0 < shares["preparation"]
    (seconds,), (released,) = (by_part["released"]["seconds"][way] for way in (OURS, RELEASED))
    table = output.with_suffix(".md").read_text()
    lines = [line for line in table.splitlines() if line.startswith(f"| tiny, {OURS} | ")]
    line = next(line for line in lines if "| 1.00 |" not in line)
    assert f"{by_part['released']['peak_mib'][OURS]:,} MiB" in line
    assert line.endswith(f"| {released / seconds:.2f} |")


def test_different_rewards_end_a_race_and_every_second_round_is_reversed():
    calls = []

    def contestant(name, reward):
        return lambda dialogues: calls.append(name) or [reward for _ in dialogues]

    racing.race({name: contestant(name, 1.0) for name in "abc"}, [0], rounds=2)
    assert "".join(calls) == "abc" + "abc" + "cba"
    for wrong in (1.001, float("nan")):
        with pytest.raises(ValueError, match="wrong: a reward differs by"):
            racing.race({"plain": contestant("plain", 1.0), "wrong": contestant("wrong", wrong)}, [0], rounds=1)
    assert racing.speedup([10.0, 30.0, 8.0], [5.0, 3.0, 2.0]) == 4.0


def test_flops_match_the_count_of_torch(make_tiny_model, tiny_processor, make_dialogue):
    model = make_tiny_model()
    # Torch counts what is written out as matrix products.
    model.set_attn_implementation("eager")
    inputs = tiny_processor(make_dialogue(1.0, 0.7))
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(**inputs)
    num_tokens, text = inputs["input_ids"].shape[1], model.config.text_config
    # There nothing of causal attention is left out.
    hidden_pairs = num_tokens * (num_tokens - 1) // 2
    expected = workloads.text_flops(text, num_tokens)
    expected += text.num_hidden_layers * 4 * text.hidden_size * hidden_pairs
    frames = inputs["feature_attention_mask"].sum(1).tolist()
    expected += sum(workloads.audio_flops(model.config.audio_config, each) for each in frames)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)
    dialogues = [workloads.SyntheticDialogues(2, mean_s=2.0)[0]]
    once, twice, thrice = (workloads.count_flops(model, tiny_processor, dialogues, passes) for passes in (1, 2, 3))
    assert thrice - twice == twice - once > 0
