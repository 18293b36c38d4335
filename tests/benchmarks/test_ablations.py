import dataclasses
import json
import signal
import subprocess
import sys
import time

import datasets
import numpy as np
import pytest
import yaml
from support import forked

from benchmarks import ablation_runs, ablations
from benchmarks.ablation_data import choose_rows, load_study
from benchmarks.ablation_features import AllLayersScorer, compute_features
from benchmarks.ablation_recipe import read_recipe
from benchmarks.ablation_runs import HeadRun
from benchmarks.ablation_summary import choose_learning_rates, drift, mean_interval, summarise
from benchmarks.guides.rendering import render_blocks
from sdiareward.common.files import JsonLines
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.channel import encode
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.head_fitting import compute_rewards


pytestmark = pytest.mark.slow


SUBSETS = ("semi_wild", "scripted", "colloquialness")
_WORDS = {"colloquialness": "um, a line"}
TRAINING = {
    "num_train_epochs": 2,
    "learning_rate": 1e-2,
    "center_rewards_coefficient": 0.01,
    "per_device_train_batch_size": 4,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory, make_tone):
    """A data set of which the chosen sides are tones that the rejected sides lack; two groups a subset and split."""

    def side(seed, frequency_hz, text="a line"):
        turns = []
        for turn, role in enumerate(("user", "assistant")):
            wav = encode(make_tone(0.2, frequency_hz + 40 * turn, seed), 16_000, "WAV", "PCM_16", None)
            turns.append({"role": role, "text": text, "audio": {"bytes": wav, "path": None}})
        return turns

    folder = tmp_path_factory.mktemp("pairs")
    for number, (split, count) in enumerate((("train", 2), ("validation", 1), ("test", 2))):
        rows = [
            {
                "pair_id": f"{split} {subset} {group} {pair}",
                "group_id": f"{split} {subset} {group}",
                "subset": subset,
                "criterion": "colloquialness" if subset == "colloquialness" else "modality",
                "synthesizer": "none",
                "chosen": side(100 * number + 10 * group + pair, 200.0 + 50 * group, _WORDS.get(subset, "a line")),
                "rejected": side(100 * number + 10 * group + pair + 5, 900.0 + 50 * pair),
            }
            for subset in SUBSETS
            for group in range(2)
            for pair in range(count)
        ]
        datasets.Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    return folder


@pytest.fixture(scope="module")
def study(data_folder):
    return load_study(str(data_folder))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory, tiny_checkpoint, study):
    from trl import RewardConfig

    from sdiareward.training.arguments import TrainArguments

    folder = tmp_path_factory.mktemp("backbones")
    arguments = TrainArguments("unused", str(tiny_checkpoint))
    found, skipped = compute_features("tiny", arguments, RewardConfig(**TRAINING, output_dir="unused"), study, folder)
    assert skipped == []
    return found


@pytest.fixture
def make_run(backbone, study):
    def make(features="mean", **changes):
        run = HeadRun(backbone, features, 0.01, 1e-2, 0, TRAINING, study.fingerprints())
        return dataclasses.replace(run, **changes)

    return make


def labels_of(**pairs_by_group):
    return [
        {"subset": "wild", "group_id": group, "pair_id": f"{group} {number}"}
        for group, count in pairs_by_group.items()
        for number in range(count)
    ]


def test_a_limit_draws_from_all_groups_and_a_smaller_limit_is_a_subset():
    labels = labels_of(a=3, b=1, c=7, d=3)
    few, more, most = (choose_rows(labels, part / 14) for part in (4, 9, 12))
    assert [len(rows) for rows in (few, more, most)] == [4, 9, 12]
    assert set(few) < set(more) < set(most)
    assert sorted(labels[row]["group_id"] for row in few) == ["a", "b", "c", "d"]
    assert sorted(labels[row]["group_id"] for row in most) == [*"aaa", "b", *"ccccc", *"ddd"]


def test_every_subset_of_every_split_keeps_its_share_and_at_least_one_pair(study):
    taken = study.take(14)
    for split, counts in taken.count_pairs().items():
        whole = study.count_pairs()[split]
        for subset in SUBSETS:
            assert counts[subset]["pairs"] == max(1, round(14 / len(study) * whole[subset]["pairs"]))
            assert counts[subset]["groups"] == min(counts[subset]["pairs"], whole[subset]["groups"])
    assert study.take(None) is study.take(1000) is study


def test_a_group_in_two_splits_is_refused(tmp_path, study):
    for split in ("train", "validation", "test"):
        study.pairs["test"].to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(ValueError, match="group '.*' is in 'train' and in 'validation'"):
        load_study(str(tmp_path))


def test_a_study_on_disk_equals_the_one_in_memory(tmp_path, study):
    few = study.take(14)
    folder = few.write(tmp_path)
    assert load_study(str(folder)).fingerprints() == few.fingerprints() != study.fingerprints()
    assert load_pairs(folder, "test")["chosen"] == few.pairs["test"]["chosen"]


@pytest.fixture(scope="module")
def tiny_scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor)


def test_one_pass_gives_the_features_of_a_pass_per_layer(tiny_scorer, make_dialogue):
    dialogues = [make_dialogue(0.3, 0.2, text=text) for text in ("one", "two two", "three")]
    wide = AllLayersScorer(tiny_scorer.model, tiny_scorer.processor, (0, 1))
    found = {index: features.hidden_states for index, features in wide.iter_features(dialogues)}
    for row, layer in enumerate((0, 1)):
        for index, features in tiny_scorer.iter_features(dialogues, layer=layer):
            np.testing.assert_allclose(found[index][row], features.pooled, atol=1e-6)
    for index, features in tiny_scorer.iter_features(dialogues, per_token=True):
        np.testing.assert_allclose(found[index][2:], features.hidden_states, atol=1e-6)


@pytest.mark.parametrize("features", ["mean", "last_token", "attention"])
def test_a_head_on_features_gives_the_rewards_of_its_model(features, backbone, study, make_tiny_model, tiny_processor):
    model = make_tiny_model(features)
    # The features are those of the checkpoint, which a model with another pooler does not share.
    model.load_state_dict(make_tiny_model().state_dict(), strict=False)
    head, _ = backbone.new_head(features)
    head.load_state_dict({name: t for name, t in model.state_dict().items() if name.startswith(("score", "pooler"))})
    chosen, rejected = compute_rewards(head, backbone.collator(features), backbone.rows_of("test", features))
    pairs = study.pairs["test"]
    criteria = [name for name in pairs["criterion"] for _ in SIDES]
    expected = Scorer(model, tiny_processor).score(Dialogues(pairs, range(len(pairs))), criteria)
    assert set(criteria) < set(DEFAULT_PROMPTS)
    assert chosen == pytest.approx(expected[::2], abs=3e-4)
    assert rejected == pytest.approx(expected[1::2], abs=3e-4)
    assert float(np.std(expected)) > 0.003


@pytest.mark.parametrize("features", ["mean", "attention", "layer_0"])
def test_a_head_learns_to_separate_tones(features, make_run):
    found = make_run(features, learning_rate=0.1, training={**TRAINING, "num_train_epochs": 20}).perform()
    assert found["accuracy"]["overall_micro"] == 1.0
    assert found["accuracy"]["num_pairs"]["overall_micro"] == 12
    assert found["accuracy"]["wild"] is None
    assert found["margin"] == found["chosen"] - found["rejected"] > 0
    assert found["history"][0] == {"step": 0, "chosen": 0.0, "rejected": 0.0}
    assert found["history"][-1]["chosen"] > found["history"][-1]["rejected"]


def test_centering_keeps_the_sum_of_the_rewards_near_zero(make_run):
    training = {**TRAINING, "num_train_epochs": 20}
    without, strong = (
        make_run("layer_0", coefficient=value, learning_rate=0.1, training=training).perform() for value in (0.0, 10.0)
    )
    assert abs(strong["chosen"] + strong["rejected"]) < abs(without["chosen"] + without["rejected"]) / 2


def test_the_head_is_selected_by_validation_loss(make_run, backbone):
    swapped = [
        {**row, "chosen_key": row["rejected_key"], "rejected_key": row["chosen_key"]}
        for row in backbone.rows["validation"]
    ]
    against = dataclasses.replace(backbone, rows={**backbone.rows, "validation": swapped})
    training = {**TRAINING, "num_train_epochs": 20, "lr_scheduler_type": "constant"}
    run = make_run(learning_rate=0.05, training=training)
    found, found_against = run.perform(), dataclasses.replace(run, backbone=against).perform()
    # What makes the training pairs likelier makes swapped ones less likely: their best head is the first one.
    assert found_against["best_step"] == found_against["history"][1]["step"] < found["best_step"]
    assert found_against["margin"] < found["margin"]


def test_runs_with_the_same_seed_are_identical(make_run):
    margins = [make_run(seed=seed).perform()["margin"] for seed in (0, 0, 1)]
    assert margins[0] == margins[1] != margins[2]


@pytest.mark.parametrize(
    "change",
    [
        {"coefficient": 0.0},
        {"learning_rate": 1e-3},
        {"features": "layer_1"},
        {"pairs": {"train": "others"}},
        {"training": {**TRAINING, "weight_decay": 0.1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_key_of_a_run_covers_all_its_settings(change, make_run):
    assert ablation_runs.key_of(make_run(**change)) != ablation_runs.key_of(make_run())
    assert ablation_runs.key_of(make_run()) == ablation_runs.key_of(make_run())


def test_the_interval_over_seeds_is_students_t():
    # s = 1 and t(0.975; 2) = 4.302653, over the square root of 3.
    assert mean_interval([1.0, 2.0, 3.0]) == {"mean": 2.0, "half_width": pytest.approx(2.484138, abs=1e-6)}
    assert mean_interval([2.0]) == {"mean": 2.0, "half_width": None}


def record_of(key, **changes):
    counts = dict.fromkeys(("wild", "semi_wild", "scripted", "modality_micro", "modality_macro"), 2)
    counts |= dict.fromkeys(("colloquialness", "overall_micro", "overall_macro"), 2)
    accuracy = {**dict.fromkeys(counts, 0.5), "num_pairs": counts, "num_ties": counts}
    settings = {"backbone": "b", "features": "mean", "lambda": 0.01, "learning_rate": 0.1, "seed": 0}
    numbers = dict.fromkeys(("chosen", "rejected", "margin", "eval_loss", "seconds"), 1.0)
    return {
        "key": key,
        "settings": {**settings, **changes.pop("settings", {})},
        "accuracy": {**accuracy, "interval": {}, **changes.pop("accuracy", {})},
        "history": [{"step": 0, "chosen": 0.0, "rejected": 0.0}, {"step": 5, "chosen": 3.0, "rejected": 1.0}],
        **numbers,
        **changes,
    }


def test_a_row_summarises_runs_that_differ_only_in_the_seed():
    records = [
        record_of("a", accuracy={"wild": None, "scripted": 0.4}),
        record_of("b", accuracy={"wild": None, "scripted": 0.6}, chosen=3.0),
        record_of("c", settings={"lambda": 0.0}),
        record_of("a"),
    ]
    centered, plain = summarise(records, ("backbone", "features", "lambda"))
    assert (centered["lambda"], centered["num_seeds"], plain["num_seeds"]) == (0.01, 2, 1)
    assert centered["accuracy"]["wild"] is None
    assert centered["accuracy"]["scripted"]["mean"] == pytest.approx(0.5)
    assert centered["chosen"]["mean"] == 2.0
    assert plain["accuracy"]["scripted"] == {"mean": 0.5, "half_width": None}


def test_the_lowest_validation_loss_chooses_the_learning_rate():
    records = [
        record_of(str(rate), settings={"learning_rate": rate}, eval_loss=loss)
        for rate, loss in ((0.001, 0.6), (0.01, 0.4), (0.1, 0.5))
    ]
    assert choose_learning_rates(records) == {("b", "mean"): 0.01}


def test_a_curve_has_the_mean_and_range_of_the_seeds():
    other = [{"step": 0, "chosen": 0.0, "rejected": 0.0}, {"step": 5, "chosen": 5.0, "rejected": 1.0}]
    (curve,) = drift([record_of("a"), record_of("b", history=other)])
    assert curve["step"] == [0, 5]
    assert curve["chosen"] == {"mean": [0.0, 4.0], "least": [0.0, 3.0], "most": [0.0, 5.0]}
    assert curve["margin"]["mean"] == [0.0, 3.0]


@pytest.fixture
def command(tmp_path, tiny_checkpoint, data_folder):
    """Return a function giving the flags of a run on the tiny checkpoint in a folder."""
    recipe = {**TRAINING, "model_name_or_path": str(tiny_checkpoint), "dataset": str(data_folder), "train": "full"}
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump({**recipe, "output_dir": "unused", "seed": 3}), encoding="utf-8")

    def make(folder, *flags):
        places = ("--output_dir", str(tmp_path / folder), "--result", str(tmp_path / folder / "tiny.json"))
        options = ("--seeds", "1", "--freeze_seeds", "1", "--freeze_pairs", "12", "--workers", "0")
        return ["--config", str(config), *places, *options, *flags]

    return make


def test_the_command_renders_every_table_and_figure(command, tmp_path):
    path = ablations.main(command("whole"))
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = found["rows"]
    assert {part: len(members) for part, members in rows.items()} == {
        "table6": 6,
        "lambda": 5,
        "layers": 3,
        "freeze": 5,
        "learning_rates": 5,
    }
    assert [row["features"] for row in rows["layers"]] == ["layer_0", "layer_1", "mean"]
    assert {row["mode"] for row in rows["freeze"]} == set(ablation_runs.FREEZE_MODES)
    assert all(row["num_seeds"] == 1 for row in rows["table6"])
    assert found["baselines"]["text"]["accuracy"]["num_ties"]["modality_micro"] == 8
    assert found["num_runs"] == 6 + 3 + 2 + 5
    assert list(found["cost"]) == ["baselines", "features", "heads", "freeze"]
    assert found["versions"]["torch"]
    assert str(tmp_path) not in json.dumps({name: found[name] for name in ("rows", "drift", "recipe")})
    report = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "Not run" not in report
    assert report.count("| acoustic | baseline |") == 5
    for name in ("drift", "lambda", "layers"):
        assert path.with_name(f"tiny_{name}.png").read_bytes().startswith(b"\x89PNG")
    blocks = render_blocks("results_ablations", {"ablations_nano.json": {**found, "rows": {}}})
    assert blocks["layers"] == "Not run: `--only layers` does it."


def test_a_killed_command_resumes(command, tmp_path):
    options = ("--only", "layers", "--seeds", "3")
    log = JsonLines(tmp_path / "killed" / "runs.jsonl")
    program = [sys.executable, "-m", "benchmarks.ablations", *command("killed", *options)]
    process = forked.Popen(program, cwd=ablations.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and (not log.path.exists() or log.path.read_bytes().count(b"\n") < 2):
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = log.read()
    assert process.returncode == -signal.SIGKILL
    assert 2 <= len(before) < 9
    resumed = json.loads(ablations.main(command("killed", *options)).read_text(encoding="utf-8"))
    after = log.read()
    assert after[: len(before)] == before
    assert len(after) == len({record["key"] for record in after}) == 9
    undisturbed = json.loads(ablations.main(command("whole", *options)).read_text(encoding="utf-8"))
    for rows in (resumed["rows"], undisturbed["rows"]):
        for row in (*rows["layers"], *rows["learning_rates"]):
            del row["seconds"]
    assert resumed["rows"] == undisturbed["rows"]
    assert resumed["num_runs"] == 9


@pytest.mark.parametrize("name", ["nano", "3b", "7b"])
def test_the_recipes_can_be_read(name):
    recipe = read_recipe(ablations.ROOT / "configs" / f"{name}.yaml", ["learning_rate=0.5"])
    assert recipe.coefficient == 0.01
    assert recipe.training["learning_rate"] == 0.5
    assert "output_dir" not in recipe.training
