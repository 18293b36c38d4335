"""The ablations at a tiny size: every head and every way of freezing, from a recipe to both tables."""

import json

import datasets
import pytest
import yaml

from benchmarks import ablations
from sdiareward.perturbations.channel import encode


pytestmark = pytest.mark.slow
TRAINING = {
    **{"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "num_train_epochs": 2},
    **{"learning_rate": 1e-2, "center_rewards_coefficient": 0.01, "per_device_train_batch_size": 4},
}


@pytest.fixture
def data(tmp_path, make_tone):
    """Write pairs of which the chosen sides are low tones and the rejected ones high tones."""

    def side(seed, frequency_hz):
        turns = []
        for turn, role in enumerate(("user", "assistant")):
            wav = encode(make_tone(0.2, frequency_hz + 40 * turn, seed), 16_000, "WAV", "PCM_16", None)
            turns.append({"role": role, "text": "a line", "audio": {"bytes": wav, "path": None}})
        return turns

    (tmp_path / "pairs").mkdir()
    for number, (split, count) in enumerate((("train", 4), ("validation", 2), ("test", 4))):
        rows = [
            {
                "pair_id": f"{split} {subset} {pair}",
                "group_id": f"{split} {subset} {pair // 2}",
                "subset": subset,
                "criterion": "colloquialness" if subset == "colloquialness" else "modality",
                "synthesizer": "none",
                "chosen": side(100 * number + pair, 200.0 + 20 * pair),
                "rejected": side(100 * number + pair + 50, 900.0 + 20 * pair),
            }
            for subset in ("semi_wild", "scripted", "colloquialness")
            for pair in range(count)
        ]
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "pairs" / f"{split}.parquet")
    return tmp_path / "pairs"


def test_every_pooling_lambda_and_way_of_freezing_is_in_the_tables(data, tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(ablations, "LAMBDAS", (0.0, 0.01, 1.0))
    for name in ("eval_steps", "save_steps"):
        monkeypatch.setitem(ablations._SELECTION, name, 0.5)
    recipe = {**TRAINING, "model_name_or_path": str(tiny_checkpoint), "dataset_name": str(data)}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**recipe, "output_dir": "unused", "seed": 3}))
    output = tmp_path / "ablations.json"
    options = ["--recipe", tmp_path / "tiny.yaml", "--models", tiny_checkpoint, "--output", output]
    sizes = ["--seeds", 1, "--learning_rates", 0.3, "--epochs", 8, "--freeze_limit", 15]
    ablations.main(list(map(str, [*options, *sizes, "--output_dir", tmp_path / "work"])))
    found = json.loads(output.read_text())

    poolings = [(row["pooling"], row["lambda"]) for row in found["heads"]]
    unlearned = [(name, value) for name in ("last_token", "attention") for value in (0.0, 0.01)]
    assert poolings == [*unlearned, *(("mean", value) for value in ablations.LAMBDAS)]
    means = [row for row in found["heads"] if row["pooling"] == "mean"]
    # The tones are separated, and a strong centering keeps the two rewards around zero.
    assert {row["accuracy"]["overall_micro"]["mean"] for row in means} == {1.0}
    assert {row["num_pairs"]["overall_micro"] for row in means} == {12}
    plain, *_, strong = means
    assert abs(strong["chosen"]["mean"] + strong["rejected"]["mean"]) < 0.3 < plain["margin"]["mean"]
    assert [row["trained"] for row in found["frozen"]] == list(ablations.FROZEN)
    assert found["num_pairs"]["frozen"] == {"train": 6, "validation": 3, "test": 6}
    assert found["baselines"]["acoustic"]["accuracy"]["overall_micro"] == 1.0
    assert found["baselines"]["text"]["accuracy"]["num_ties"]["overall_micro"] == 12

    report = output.with_suffix(".md").read_text()
    assert report == ablations.render(found) + "\n"
    assert report.count("| acoustic baseline |") == report.count("| text baseline |") == 2


def test_the_interval_over_seeds_is_students_t():
    # s = 1 and t(0.975; 2) = 4.302653, over the square root of 3.
    assert ablations.mean_interval([1.0, 2.0, 3.0]) == {"mean": 2.0, "half_width": pytest.approx(2.484138, abs=1e-6)}
    assert ablations.mean_interval([2.0]) == {"mean": 2.0, "half_width": None}
