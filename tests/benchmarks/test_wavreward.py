import json

import pytest
import yaml
from support import wavreward_eval_world
from support.paths import CONFIGS

from benchmarks import wavreward_ablations, wavreward_speed, wavreward_toy_data
from benchmarks.guides.rendering import render_blocks
from sdiareward.dataset_builder.recipes.chatreward.loading import load_samples
from sdiareward.judges.thinker import ThinkerProcessor
from sdiareward.judges.wavreward.answers import follows_format
from sdiareward.judges.wavreward.score_metrics import summarise_scores
from sdiareward.judges.wavreward.score_samples import read_samples


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return wavreward_eval_world.write_chatreward(tmp_path_factory.mktemp("chatreward"))


@pytest.fixture
def ablate(tmp_path, data, tiny_judge):
    """Return a function running the ablations of two recipes of few steps, and giving the result."""
    recipe = {"model_name_or_path": str(tiny_judge), "dataset": str(data), "output_dir": "unused", "max_steps": 1}
    recipe |= {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "learning_rate": 1e-2}
    recipe |= {"gradient_checkpointing": False}
    (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump({**recipe, "per_device_train_batch_size": 4}))

    def run(*more):
        arguments = ["--config", tmp_path / "grpo.yaml", "--sft_config", tmp_path / "sft.yaml"]
        arguments += ["--output_dir", tmp_path / "work", "--result", tmp_path / "result.json", "--max_new_tokens", 2]
        path = wavreward_ablations.main([str(argument) for argument in (*arguments, *more)])
        return json.loads(path.read_text())

    return run


@pytest.mark.slow
def test_finished_variants_are_not_trained_again(ablate, tmp_path):
    found = ablate("--only", "direct,sft_full")
    assert [row["variant"] for row in found["rows"]] == ["direct", "sft_full"]
    direct, tuned = found["rows"]
    assert (direct["training_s"], direct["reasoning"], tuned["reasoning"]) == (None, True, False)
    assert tuned["training_s"] > 0
    assert direct["scores"]["overall_micro"]["num_samples"] == 12
    assert list(found["baselines"]) == ["most_frequent", "text", "acoustic"]
    trained = json.loads((tmp_path / "work" / "sft_full" / "model" / "run.json").read_text())
    assert (trained["arguments"]["train"], trained["training"]["max_steps"]) == ("full", 1)
    # A launcher that always fails: finished variants are not started again.
    again = ablate("--only", "direct,sft_full", "--launcher", "false")
    assert again["rows"] == found["rows"]
    report = (tmp_path / "result.md").read_text()
    assert "| **I. direct inference: what all start from** |" in report
    with pytest.raises(ValueError, match="results of another run .*warm_up_steps was 0, is 5"):
        ablate("--only", "direct", "--warm_up_steps", "5")


def test_each_variant_changes_only_its_own_setting(tmp_path):
    grpo, sft = tmp_path / "g.yaml", tmp_path / "s.yaml"
    grpo.write_text("model_name_or_path: m\ndataset: d\nreasoning: true\nlearning_rate: 1.0e-6\n")
    sft.write_text("model_name_or_path: m\ndataset: d\nreasoning: true\n")
    args = wavreward_ablations._parse_arguments(
        ["--config", str(grpo), "--sft_config", str(sft), "--set", "max_steps=7", "--dataset", "other"]
    )
    recipes = {name: wavreward_ablations.read_recipe(name, args) for name in wavreward_ablations.VARIANTS}
    whole = recipes["wavreward"]
    assert whole == {
        "model_name_or_path": "m",
        "dataset": "other",
        "reasoning": True,
        "learning_rate": 1e-6,
        "max_steps": 7,
        "seed": 0,
    }
    changed = {name: dict(recipe.items() - whole.items()) for name, recipe in recipes.items()}
    assert changed["no_reasoning"] == {"reasoning": False}
    assert changed["no_multi_sample"] == {"multi_sample": False}
    assert changed["no_nonlinear_reward"] == {"accuracy_reward": "exact"}
    assert changed["direct"] == {}
    assert recipes["sft_lora"] == {
        "model_name_or_path": "m",
        "dataset": "other",
        "reasoning": False,
        "train": "lora",
        "seed": 0,
    }


def test_the_warm_up_has_random_scores_in_the_exact_form(tmp_path, data):
    for reasoning in (True, False):
        target = tmp_path / f"warm_{reasoning}"
        wavreward_ablations._write_random_answers(str(data), target, reasoning, seed=0)
        samples = load_samples(target, "train")
        assert samples["sample_id"] == load_samples(data, "train")["sample_id"]
        assert all(follows_format(answer, reasoning) for answer in samples["target"])
        right = [
            f"<score>{score}</score>" in answer
            for score, answer in zip(samples["score"], samples["target"], strict=True)
        ]
        assert 0.1 < sum(right) / len(right) < 0.6


def test_the_toy_recipe_leaves_room_for_an_answer(nano_judge):
    limit = yaml.safe_load((CONFIGS / "wavreward-toy.yaml").read_text())["max_completion_length"]
    answer = wavreward_ablations._THOUGHTFUL.format(5) + "<|im_end|>"
    assert len(ThinkerProcessor.from_pretrained(nano_judge).encode_text(answer)) <= limit / 2
    assert f"--max_new_tokens {limit}" in wavreward_ablations.__doc__


def test_the_splits_of_the_toy_task_share_no_recording(tmp_path):
    clips = [(f"dialogue {number // 2}", wavreward_eval_world.noise(0.1, number)) for number in range(8)]
    folder = wavreward_toy_data.write_toy_data(tmp_path / "toy", clips, 3, 2, seed=0)
    train, test = (read_samples(folder, split) for split in ("train", "test"))
    assert [label["score"] for label in train.labels] == [5, 3, 1] * 3
    assert (len(test), {label["attribute"] for label in test.labels}) == (6, {"volume"})
    assert not {label["scenario_id"] for label in train.labels} & {label["scenario_id"] for label in test.labels}


@pytest.mark.slow
def test_speed_is_measured_with_and_without_thoughts_at_fixed_lengths(tmp_path, data, tiny_judge):
    arguments = ["--model", tiny_judge, "--dataset", data, "--limit", 4, "--rounds", 2, "--batch_size", 2]
    arguments += ["--reasoning_tokens", 6, "--score_tokens", 2, "--result", tmp_path / "speed.json"]
    found = json.loads(wavreward_speed.main([str(argument) for argument in arguments]).read_text())
    assert list(found["ways"]) == [
        "with thoughts, batch 1",
        "without thoughts, batch 1",
        "with thoughts, batch 2",
        "without thoughts, batch 2",
    ]
    assert [way["mean_tokens"] for way in found["ways"].values()] == [6, 2, 6, 2]
    assert all(len(way["seconds"]) == 2 for way in found["ways"].values())
    assert found["audio_s"] == 6.0
    way = found["ways"]["with thoughts, batch 1"]
    assert way["real_time_factor"] == pytest.approx(sum(sorted(way["seconds"])) / 2 / 6.0)
    assert (
        "The number of tokens is set" in render_blocks("results_wavreward", {"wavreward_speed.json": found})["speed"]
    )


@pytest.fixture
def result():
    """A made-up result of the ablations: WavReward all right, direct inference all wrong."""

    def scores(predicted):
        cost = {"follows_format": True, "num_tokens": 10, "seconds": 1.0, "duration_s": 2.0, "expected_score": None}
        records = [wavreward_eval_world.prediction(0, score, predicted or score, **cost) for score in (5, 3, 1)]
        return summarise_scores(records, num_bootstrap=10)

    ahead = {"difference": 1.0, "interval": [0.25, 1.0], "p_value": 0.25}
    rows = [
        {"variant": "direct", "training_s": None, "scores": scores(4), "difference": ahead},
        {"variant": "wavreward", "training_s": 61.4, "scores": scores(None), "difference": None},
    ]
    rows = [{**row, "reasoning": True} for row in rows]
    return {"settings": {"config": "configs/made_up.yaml"}, "rows": rows, "baselines": {"text": scores(5)}}


def test_the_table_has_the_sections_of_table_1_and_what_answers_cost(result):
    lines = render_blocks("results_wavreward", {"wavreward_ablations.json": result})["ablations"].splitlines()
    titles = [line.split("**")[1] for line in lines if line.startswith("| **")]
    assert titles == [
        "I. direct inference: what all start from",
        "III. WavReward: WavReward",
        "IV. baseline: words alone",
    ]
    assert "| **III. WavReward: WavReward** | 100.00 | 100.00 | 100.00 |" in lines
    assert "| WavReward | - | - | - | yes | 100.00 | 100.00 | 10.0 | 61 s |" in lines
    assert "| what all start from | +100.00 | +25.0 to +100.0 | 0.250 | yes | 100.00 | 100.00 | 10.0 | - |" in lines


def test_variants_are_compared_with_wavreward_on_the_same_samples(tmp_path):
    def write(variant, predicted):
        folder = tmp_path / variant / "eval"
        folder.mkdir(parents=True)
        records = [wavreward_eval_world.prediction(number, 5, score) for number, score in enumerate(predicted)]
        (folder / "predictions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "results.json").write_text("{}")
        return {"variant": variant}

    rows = [write("direct", (5, 1, 1, None)), write("wavreward", (1, 5, 5, 5))]
    wavreward_ablations.compare_with_wavreward(rows, tmp_path)
    found = rows[0]["difference"]
    # Only direct inference has one right, only WavReward three: (3 - 1) / 4, and 2 * (1 + 4) / 2**4.
    assert (found["num_only_first"], found["num_only_second"], found["difference"]) == (3, 1, 0.5)
    assert found["p_value"] == pytest.approx(0.625)
    assert rows[1]["difference"] is None
    wavreward_ablations.compare_with_wavreward(rows[:1], tmp_path)
    assert rows[0]["difference"] is None
