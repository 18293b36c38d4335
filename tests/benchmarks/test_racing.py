import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import racing, workloads


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
