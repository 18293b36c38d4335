"""Cross-validation of a head: what a fold's head has not seen, and what the command writes of it."""

import json
import re

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import tiny_model

from sdiareward.cards.model_card import write_model_card
from sdiareward.evaluation.folds import deal_units
from sdiareward.pairs.schema import SIDES
from sdiareward.train import main
from sdiareward.training.arguments import RewardTrainingConfig, SDiaRewardModelConfig
from sdiareward.training.batches import FeatureCollator
from sdiareward.training.folds import cross_validate
from sdiareward.training.setup import SDiaRewardHead, TrainingSetup
from sdiareward.training.trainer import EpochOfSampler


HIDDEN = 32


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.lists(st.booleans(), min_size=40), st.integers(2, 6))
@settings(deadline=None, max_examples=60)
def test_no_unit_is_in_two_folds_and_no_fold_is_empty(units, is_modality, num_folds):
    criteria = {unit: ("joint", "modality")[is_modality[unit]] for unit in units}
    labels = [{"criterion": criteria[unit]} for unit in units]
    folds = deal_units(list(map(str, units)), labels, num_folds, seed=1)
    assert folds.tolist() == deal_units(list(map(str, units)), labels, num_folds, seed=1).tolist()
    assert len(set(zip(units, folds.tolist(), strict=True))) == len(set(units))
    assert len(set(folds.tolist())) == min(num_folds, len(set(units)))
    if len(set(units)) > 8:
        assert len({tuple(deal_units(list(map(str, units)), labels, 2, seed).tolist()) for seed in range(9)}) > 1


@pytest.fixture
def validate(tmp_path):
    """Return a function that cross-validates heads on features `(num_pairs, 2, HIDDEN)`, chosen sides first."""

    def run(features, folds):
        keyed = {f"{row} {side}": each[None] for row, pair in enumerate(features) for side, each in enumerate(pair)}
        numbers = range(len(features))
        columns = {"row": list(numbers), "pair_id": [f"p{row}" for row in numbers], "length": [2] * len(numbers)}
        columns |= {f"{side}_key": [f"{row} {n}" for row in numbers] for n, side in enumerate(SIDES)}
        rows = datasets.Dataset.from_dict(columns)
        places = (SDiaRewardHead(tiny_model.make_config()), tiny_model.make_processor(), {"train": rows})
        setup = TrainingSetup(*places, FeatureCollator(keyed), "start", SDiaRewardModelConfig(folds=2))
        needed = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "gradient_checkpointing": False}
        training = RewardTrainingConfig(str(tmp_path), learning_rate=0.05, **needed)
        return cross_validate(setup, training, 4, np.asarray(folds))

    return run


def test_a_head_knows_nothing_of_a_group_that_it_was_trained_without(validate):
    # Each group has an axis of its own: whoever has not seen the group has no weight there, and its pairs tie.
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    features = torch.stack([torch.eye(HIDDEN)[[group, group + 8]] for group in groups])
    heads, start, steps = validate(features, [group % 2 for group in groups])
    assert not heads.any() and not start.any() and steps == [4, 4]
    # The second pairs of the same groups in the other fold.
    leaked, _, _ = validate(features, [0, 1] * 4)
    assert (leaked[:, 0] > leaked[:, 1]).all()


def test_heads_find_a_direction_that_all_pairs_share_and_none_in_permuted_labels(validate):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 2, HIDDEN, generator=generator)
    folds = np.arange(200) % 5
    shown = features.clone()
    shown[:, 0, 0] += 8
    heads, _, _ = validate(shown, folds)
    assert np.mean(heads[:, 0] > heads[:, 1]) > 0.97
    # Which side is the chosen one does not depend on the features: 200 throws of a coin are within 3.3 deviations.
    swapped = torch.rand(200, generator=generator) < 0.5
    permuted = torch.where(swapped[:, None, None], shown.flip(1), shown)
    heads, _, _ = validate(permuted, folds)
    assert 77 <= np.sum(heads[:, 0] > heads[:, 1]) <= 123


@pytest.fixture
def own_pairs(tmp_path, tone_pairs):
    """Return a file of pairs without a group_id: four recordings with two pairs each."""
    rows = tone_pairs.select([0, 0, 1, 1, 2, 2, 3, 3]).remove_columns("criterion")
    rows.add_column("pair_id", [f"p{row}" for row in range(8)]).to_parquet(tmp_path / "own.parquet")
    return tmp_path / "own.parquet"


@pytest.fixture
def train(own_pairs, make_flags):
    def run(folder, *flags, **changes):
        options = {"dataset_name": own_pairs, "criterion": "modality", "max_steps": 4, "save_steps": 1, **changes}
        return main(make_flags(folder, *flags, **options))

    return run


@pytest.mark.slow
def test_folds_are_measured_written_on_the_card_and_the_same_after_a_kill(train, tmp_path, monkeypatch, capsys):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(whole, folds=2) == 0
    printed = capsys.readouterr().out

    def interrupt(self, args, state, control, **kwargs):
        # Only the last training writes checkpoints.
        if state.global_step == 2 and args.save_strategy != "no":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EpochOfSampler, "on_step_begin", interrupt)
        assert train(killed, folds=2) == 130
    for flags in ((), ("--resume",)):
        assert train(killed, *flags, folds=2) == 0
        for name in ("folds.json", "folds.jsonl"):
            assert (killed / name).read_bytes() == (whole / name).read_bytes()
        weights = [load_file(folder / "model.safetensors") for folder in (whole, killed)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

    record = json.loads((whole / "folds.json").read_text())
    rows = list(map(json.loads, (whole / "folds.jsonl").read_text().splitlines()))
    assert (record["num_folds"], record["num_pairs"], record["num_groups"]) == (2, 8, 4)
    assert len({(row["group"], row["fold"]) for row in rows}) == 4
    # All of them from the rewards of the pairs, and nothing else is on the card or the screen.
    card = (whole / "README.md").read_text()
    lines = [line for line in card.splitlines() if re.match(r"\| (heads|acoustic|text)", line)]
    cells = [line.split("|")[1:-1] for line in lines]
    assert len(cells) == 3
    for name, (_, accuracy, interval, _, margin, ties) in zip(("heads", "acoustic", "text"), cells, strict=True):
        margins = [row[name]["chosen"] - row[name]["rejected"] for row in rows]
        measured = record["all"][name]
        assert float(accuracy) == pytest.approx(100 * np.mean(np.array(margins) > 0))
        assert [float(bound) / 100 for bound in interval.split("-")] == pytest.approx(measured["interval"], abs=6e-4)
        assert int(ties) == measured["num_ties"] == margins.count(0)
        assert name != "heads" or float(margin) == pytest.approx(np.mean(margins), abs=0.006)
    assert printed[printed.index("Cross-validation over 8 pairs in 4 groups") :].partition("\n\nModel: ")[0] in card
    assert f"Next: sdiareward push model {whole} " in printed.splitlines()[-1]
    assert json.loads((whole / "run.json").read_text())["trained_on"]["num_pairs"] == 8
    # A later run without folds has no such numbers.
    assert train(whole, mode="head") == 0
    write_model_card(whole)
    assert not (whole / "folds.json").exists() and "Cross-validation" not in (whole / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": 5}, r"folds is 5, but the 8 pairs are of 4 groups: 2 have the same \w+, such as rows 0 and 1;"),
        ({"folds": 2, "eval_strategy": "epoch"}, "eval_strategy cannot be given with folds"),
        ({"folds": 2, "augmentations": "gain"}, "augmentations cannot be given with folds"),
    ],
)
def test_what_cannot_be_cross_validated_is_refused_before_a_model_is_loaded(
    changes, message, train, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("sdiareward.training.setup.resolve_base_model", None)
    assert train(tmp_path / "run", **changes) == 2
    assert re.search(message, capsys.readouterr().err)
