import json
import math
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    gpu,
    gpu_parity,
    gpu_steps,
    racing,
    scoring_dtypes,
    scoring_parts,
    scoring_scale,
    scoring_speed,
    speed_models,
    start_time,
)
from benchmarks import scoring_workload as workload
from benchmarks.flops import audio_flops, text_flops
from benchmarks.guides.rendering import render_blocks
from benchmarks.opponents import PlainTransformers
from benchmarks.speed_models import NANO, model_config
from benchmarks.synthetic_workload import MEAN_DIALOGUE_S, SyntheticDialogues
from sdiareward.messages_sdiareward import validate_messages
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring import packed_attention
from sdiareward.scoring.precision import has_bfloat16
from sdiareward.scoring.scorer import Scorer


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory):
    return workload.write_dialogues(tmp_path_factory.mktemp("clips"), 3, seed=1, max_turn_s=3.0)


def clips_of(dialogues):
    return [turn["content"][1]["audio"] for dialogue in dialogues for turn in dialogue]


def test_the_workload_has_distinct_clips_within_the_length_limit(dialogues):
    for dialogue in dialogues:
        validate_messages(dialogue)
        assert len(dialogue) in workload.TURN_COUNTS
    arrays = [soundfile.read(path)[0] for path in clips_of(dialogues)]
    assert all(2 * 16_000 <= array.size <= 3 * 16_000 for array in arrays)
    assert len({array.tobytes() for array in arrays}) == len(arrays)
    assert workload.duration_s(dialogues) == pytest.approx(sum(array.size for array in arrays) / 16_000)


def test_the_same_seed_gives_the_same_workload(dialogues, tmp_path):
    again = workload.write_dialogues(tmp_path, 3, seed=1, max_turn_s=3.0)
    assert [turn["content"][0] for turn in again[2]] == [turn["content"][0] for turn in dialogues[2]]
    for one, other in zip(clips_of(again), clips_of(dialogues), strict=True):
        assert (soundfile.read(one)[0] == soundfile.read(other)[0]).all()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_plain_transformers_give_the_rewards_of_the_scorer(batch_size, make_tiny_model, tiny_processor, dialogues):
    model = make_tiny_model()
    # 4 s of padding instead of 300 s: the same features, sooner.
    plain = PlainTransformers(model, tiny_processor, chunk_length_s=4, batch_size=batch_size)
    rewards = plain.score(dialogues, "modality")
    assert rewards == pytest.approx(Scorer(model, tiny_processor).score(dialogues, "modality"), abs=1e-4)
    assert len(set(rewards)) == len(dialogues)


@pytest.mark.slow
def test_every_second_round_is_in_the_reverse_order():
    calls = []

    def contestant(name):
        return lambda dialogues: [calls.append(name) or 1.0 for _ in dialogues]

    times, differences = racing.race({name: contestant(name) for name in "abc"}, [0], rounds=2)
    assert "".join(calls) == "abc" + "abc" + "cba"
    assert [len(times[name]) for name in "abc"] == [2, 2, 2]
    assert differences == {"a": 0.0, "b": 0.0, "c": 0.0}


@pytest.mark.slow
def test_different_rewards_end_a_race():
    entrants = {"plain": lambda _: [1.0, 2.0], "wrong": lambda _: [1.0, 2.001]}
    with pytest.raises(ValueError, match="wrong: a reward differs by 0.001 from that of plain"):
        racing.race(entrants, [0, 0], rounds=1)


@pytest.mark.slow
def test_a_nan_reward_ends_a_race():
    with pytest.raises(ValueError, match="differs by nan"):
        racing.race({"plain": lambda _: [1.0], "wrong": lambda _: [math.nan]}, [0], rounds=1)


def test_a_speedup_is_the_median_of_the_quotients_of_the_rounds():
    assert racing.speedup([10.0, 30.0, 8.0], [5.0, 3.0, 2.0]) == 4.0


@pytest.mark.slow
def test_peak_memory_is_that_of_the_process_not_of_its_parent():
    np.ones(500 * 2**20 // 8)
    code = "import numpy; from benchmarks.racing import max_rss_mib; before = max_rss_mib(); "
    code += "numpy.ones(80 * 2**20 // 8); print(before, max_rss_mib())"
    printed = subprocess.run([sys.executable, "-c", code], cwd=racing.ROOT, check=True, capture_output=True, text=True)
    before, after = map(int, printed.stdout.split())
    assert before < 300
    assert 60 < after - before < 120


def test_a_slope_of_one_is_linear_and_of_two_quadratic():
    rows = [{"audio_s": 10.0**k, "seconds": 3 * 10.0**k} for k in range(3)]
    assert scoring_scale.measure_growth(rows)["slope"] == pytest.approx(1.0)
    rows[2]["seconds"] *= 10
    assert scoring_scale.measure_growth(rows)["slopes_between"] == pytest.approx([1.0, 2.0])


def test_padding_waste_is_the_padding_of_padded_batches(tiny_processor, make_dialogue, monkeypatch):
    uneven = [make_dialogue(0.5, 0.4), make_dialogue(0.5, 0.5)]
    monkeypatch.setattr(workload, "sample_dialogues", lambda: uneven)
    lengths = [tiny_processor.num_tokens(dialogue) for dialogue in uneven]
    found = scoring_speed.padding_waste(tiny_processor, batch_tokens=10_000)
    assert found["batches"] == 1
    assert found["share"] == pytest.approx(1 - sum(lengths) / (2 * max(lengths)))


def test_flops_of_one_token_match_a_count_by_hand():
    sizes = SimpleNamespace(
        hidden_size=4, num_attention_heads=2, num_key_value_heads=1, intermediate_size=8, num_hidden_layers=1
    )
    # Weights: q and o 2 * 4 * 4, k and v 2 * 4 * 2, three of 4 * 8. Attention: one query, three keys, width 4, twice.
    assert text_flops(sizes, 1, num_before=2) == 2 * (32 + 16 + 96) + 2 * (2 * 3 * 4)


def test_flops_match_the_count_of_torch(make_tiny_model, tiny_processor, make_dialogue):
    model = make_tiny_model()
    # Torch counts what is written out as matrix products.
    model.set_attn_implementation("eager")
    dialogue = make_dialogue(1.0, 0.7)
    inputs = tiny_processor(dialogue)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(**inputs)
    num_tokens, config = inputs["input_ids"].shape[1], model.config
    text = config.text_config
    # There nothing of causal attention is left out.
    hidden_pairs = num_tokens * (num_tokens - 1) // 2
    expected = text_flops(text, num_tokens) + text.num_hidden_layers * 4 * text.hidden_size * hidden_pairs
    expected += sum(
        audio_flops(config.audio_config, frames) for frames in inputs["feature_attention_mask"].sum(1).tolist()
    )
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def test_the_real_sizes_have_the_published_parameter_counts():
    tokenizer = SDiaRewardProcessor.from_pretrained(NANO).tokenizer
    for size, billions in (("7b", 7.07), ("3b", 3.09)):
        text = model_config(size, tokenizer).text_config
        head = text.hidden_size // text.num_attention_heads
        weights = text.hidden_size * (2 * text.hidden_size + 2 * text.num_key_value_heads * head)
        weights += 3 * text.hidden_size * text.intermediate_size
        total = text.num_hidden_layers * weights + text.vocab_size * text.hidden_size
        assert total / 1e9 == pytest.approx(billions, abs=0.02)
        assert head == 128


def test_synthetic_dialogues_have_the_mean_length_of_the_benchmark_and_pairs_share_words():
    dialogues = SyntheticDialogues(400)
    lengths_s = [sum(clip["array"].size for clip in clips_of([dialogue])) / 16_000 for dialogue in dialogues]
    assert np.mean(lengths_s) == pytest.approx(MEAN_DIALOGUE_S, rel=0.1)
    one, other = dialogues[6], dialogues[7]
    assert dialogues.groups[6] == dialogues.groups[7]
    assert [turn["content"][0] for turn in one] == [turn["content"][0] for turn in other]
    assert clips_of([one])[0]["array"].tobytes() != clips_of([other])[0]["array"].tobytes()
    assert clips_of([one])[0]["array"].tobytes() == clips_of([dialogues[6]])[0]["array"].tobytes()


def run_gpu(monkeypatch, output, *arguments):
    monkeypatch.setattr(gpu_steps, "RELEASED_CHUNK_LENGTH_S", 30)
    monkeypatch.setattr(gpu, "_MATMUL_REPEATS", 1)
    counts = (
        "--dialogues",
        "2",
        "--ablation-dialogues",
        "1",
        "--check-dialogues",
        "1",
        "--mean-s",
        "2",
        "--rounds",
        "1",
    )
    argv = (
        "gpu",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--sizes",
        "tiny",
        *counts,
        "--output",
        str(output),
        *arguments,
    )
    monkeypatch.setattr("sys.argv", list(argv))
    gpu.main()
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu_with_equal_rewards(tmp_path, monkeypatch, capsys):
    found = run_gpu(monkeypatch, tmp_path / "gpu.json")
    tiny = found["sizes"]["tiny"]
    assert tiny["left_out"] == []
    assert tiny["ours"]["real_time_factor"] == pytest.approx(tiny["ours"]["seconds"] / tiny["ours"]["audio_s"])
    expected = tiny["ours"]["flops"] / tiny["ours"]["seconds"] / found["matmul_flops_per_s"]
    assert tiny["ours"]["utilisation"] == pytest.approx(expected)
    assert tiny["plain"]["largest_difference"] < 1e-4
    assert len(tiny["changed"]["seconds"]["pack=False"]) == 1
    assert sum(tiny["parts"]["shares"].values()) == pytest.approx(1.0)
    assert tiny["parts"]["shares"]["matrix products"] > 0
    table = capsys.readouterr().out
    assert "ours / dialogues_per_s" in table
    assert "tiny" in table.splitlines()[0]
    guide = render_blocks("results_speed", {"gpu.json": found, "gpu_parity.json": None})["gpu"]
    assert "| TINY |" in guide
    assert "| `pack=False` |" in guide


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.slow
def test_compiled_blocks_are_compared_with_uncompiled_ones(make_tiny_model, tiny_processor):
    settings = dict.fromkeys(("dialogues", "ablation_dialogues", "check_dialogues", "rounds"), 2)
    settings |= {"mean_s": 2.0, "batch_tokens": None, "num_workers": 0, "compile": True, "float8": False, "seed": 0}
    clock = gpu_steps.Clock(torch.device("cpu"), 60)
    found = gpu_steps.Bench(make_tiny_model(), tiny_processor, clock, gpu_steps.Settings(**settings)).compiled()
    assert found["speedup"] == pytest.approx(racing.speedup(found["before_s"], found["after_s"]))
    assert found["reward_moves_by_at_most"] < 1e-4 < found["reward_spread"]


def test_rewards_and_gradients_of_all_ways_are_compared(make_tiny_model, tiny_processor):
    found = gpu_parity.check(make_tiny_model(), tiny_processor, list(SyntheticDialogues(2, mean_s=2.0)))
    assert not found["uses_varlen"]
    assert max(found["reward_differs_by"].values()) < 1e-4 < found["reward_spread"]
    assert found["gradient_cosine"]["packed and float32"] > 0.9999
    assert found["vectors_cosine"]["packed and sdpa"] > 0.9999


def test_a_wrong_gradient_is_found(make_tiny_model, tiny_processor, monkeypatch):
    original = packed_attention.scaled_dot_product_attention

    def attend(query, key, value, **options):
        # Backwards, values get twice their gradient where the fast path would run.
        return original(query, key, 2 * value - value.detach(), **options)

    monkeypatch.setattr(packed_attention, "scaled_dot_product_attention", attend)
    dialogues = list(SyntheticDialogues(2, mean_s=2.0))
    wrong = gpu_parity.find_gradients(make_tiny_model(), tiny_processor, dialogues)
    monkeypatch.setattr(packed_attention, "scaled_dot_product_attention", original)
    right = gpu_parity.find_gradients(make_tiny_model(), tiny_processor, dialogues)
    assert torch.nn.functional.cosine_similarity(wrong, right).item() < 0.99


def test_a_benchmark_that_was_not_run_has_no_section():
    assert render_blocks("results_speed", {"gpu.json": None})["gpu"] == ""


def test_another_result_changes_the_guide_to_speed():
    rows = [
        {"dialogues": 10, "audio_s": 20.0, "seconds": 1.0, "loaded_mib": 500, "peak_mib": 4321},
        {"dialogues": 1000, "audio_s": 2000.0, "seconds": 100.0, "loaded_mib": 500, "peak_mib": 600},
    ]
    result = {"rows": rows, **scoring_scale.measure_growth(rows)}
    guide = render_blocks("results_speed", {"scoring_scale.json": result})["scale"]
    assert "| 10 | 20 s | 1.0 s | 500 MiB | 4321 MiB |" in guide
    assert "Slope of log time against log audio: 1.00; between neighbours 1.00." in guide


@pytest.mark.slow
def test_dtypes_are_compared_with_float32_and_a_matrix_product(monkeypatch, make_tiny_model, tiny_processor):
    monkeypatch.setattr(scoring_dtypes, "load_model", lambda name, seed: (make_tiny_model(), tiny_processor))
    monkeypatch.setattr(scoring_dtypes, "_MATRIX_SIZE", 64)
    monkeypatch.setattr(speed_models, "RELEASED_CHUNK_LENGTH_S", 30)
    found = scoring_dtypes.measure("nano", 1, 1, 0)
    seconds = {name: times[0] for name, times in found["seconds"].items()}
    expected = seconds["plain_float32"] / seconds["ours_bfloat16"]
    assert found["speedup_over_plain"]["bfloat16"]["float32"] == pytest.approx(expected)
    moved = found["largest_difference"]
    assert moved["plain_float32"] < 1e-4 < moved["ours_bfloat16"]
    assert (moved["ours_fast"] > 1e-4) == has_bfloat16("cpu")
    assert found["utilisation"]["float32"] > 0


def test_small_has_no_plain_opponent(monkeypatch, make_tiny_model, tiny_processor):
    model = make_tiny_model()
    model.config.stack_factor = 4
    assert set(scoring_dtypes._contestants(model, tiny_processor)) == {"ours_float32", "ours_bfloat16", "ours_fast"}


def test_the_flops_of_dialogues_exclude_the_prompt(make_tiny_model, tiny_processor, make_dialogue):
    model, dialogue = make_tiny_model(), make_dialogue(0.5, 0.4)
    ids = tiny_processor.prepare(dialogue).input_ids
    start = int(np.flatnonzero(ids == tiny_processor.tokenizer.convert_tokens_to_ids("<|im_start|>"))[1])
    expected = text_flops(model.config.text_config, len(ids) - start, num_before=start)
    expected += sum(audio_flops(model.config.audio_config, frames) for frames in (50, 40))
    assert scoring_dtypes.count_flops(model, tiny_processor, [dialogue]) == expected


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::mkldnn_convolution", "convolutions"),
        ("aten::_to_copy", "memory"),
        ("aten::gelu", "norms and activations"),
        ("aten::rsqrt", "norms and activations"),
        ("aten::mul", "norms and activations"),
    ],
)
def test_operations_are_told_apart_by_their_names(operation, kind):
    assert scoring_parts.name_kind(operation) == kind


@pytest.mark.slow
def test_the_parts_of_a_scoring_run_make_the_whole(monkeypatch, make_tiny_model, tiny_processor):
    monkeypatch.setattr(scoring_parts, "load_model", lambda name, seed: (make_tiny_model(), tiny_processor))
    shares = scoring_parts.measure("nano", "float32", 2, 0)["shares"]
    assert list(shares) == list(scoring_parts.KINDS)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
    assert min(shares.values()) > 0


def test_the_cpu_time_of_a_command_is_that_of_its_process():
    loop = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    assert 0.3 <= start_time.cpu_seconds([sys.executable, "-c", loop]) < 3
    with pytest.raises(subprocess.CalledProcessError):
        start_time.cpu_seconds([sys.executable, "-c", "raise SystemExit(2)"])
