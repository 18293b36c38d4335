import json

import datasets
import numpy as np
import pytest
import torch

from sdiareward.audit.leave_one_out import LeftOutSettings, measure_left_out
from sdiareward.audit.leave_one_out_folds import describe_folds, plan_folds
from sdiareward.common.files import JsonLines
from sdiareward.evaluation.baselines import read_features, score_baseline, score_features
from sdiareward.perturbations.channel import encode
from sdiareward.training.head_fitting import fit_head


pytestmark = pytest.mark.slow


SETTINGS = LeftOutSettings(learning_rates=(1e-6, 0.1), num_epochs=5, batch_size=4, min_pairs=2)


def label(pair_id, synthesizer, source="asterisk", criterion="modality"):
    subset = "colloquialness" if criterion == "colloquialness" else "scripted"
    about = {"pair_id": pair_id, "criterion": criterion, "subset": subset}
    return {**about, "source": source, "synthesizer": synthesizer, "group_id": pair_id}


def labels_of(**names):
    """Labels by split: `piper=3` makes three pairs of a synthesizer."""
    return [label(f"{name} {number}", name) for name, count in names.items() for number in range(count)]


def test_a_fold_leaves_out_each_synthesizer_and_source_of_the_test_pairs():
    labels = {
        "train": labels_of(piper=3, flite=3),
        "validation": labels_of(piper=1, flite=1),
        "test": [*labels_of(piper=2, hibari=2), label("x", None, "queen"), label("y", None, "queen")],
    }
    folds, refused = plan_folds(labels, 2)
    assert [(fold.kind, fold.name, fold.criteria) for fold in folds] == [
        (None, None, ("modality",)),
        ("synthesizer", "hibari", ("modality",)),
        ("synthesizer", "piper", ("modality",)),
        ("source", "queen", ("modality",)),
    ]
    (source,) = refused
    assert (source["kind"], source["name"], source["criterion"]) == ("source", "asterisk", "modality")
    assert source["reason"] == "0 training pairs are left without it; at least 2 are needed"


def test_what_has_too_few_pairs_is_named_with_the_reason():
    labels = {
        "train": labels_of(piper=3, flite=2),
        "validation": labels_of(piper=1),
        "test": labels_of(piper=2, flite=1),
    }
    reasons = {(each["kind"], each["name"]): each["reason"] for each in plan_folds(labels, 2)[1]}
    assert reasons["synthesizer", "flite"] == "1 test pairs; at least 2 are needed"
    assert reasons["synthesizer", "piper"] == "no validation pair is left without it"


def test_synthesizers_are_crossed_with_sources_and_pairs_across_voices_are_of_neither():
    voices, sources = ("piper", "flite"), ("asterisk", "queen")
    pure = [label(f"{voice} {source}", voice, source) for voice in voices for source in sources]
    across = label("across", "piper+flite", "queen")
    folds, refused = plan_folds(dict.fromkeys(("train", "validation", "test"), [*pure, across]), 1)
    assert refused == []
    assert [fold.name for fold in folds[-4:]] == [
        f"{voice} x {source}" for voice in sorted(voices) for source in sources
    ]
    crossed = folds[-1]
    assert (crossed.kind, crossed.held_out) == ("synthesizer and source", {"synthesizer": "piper", "source": "queen"})
    assert [each["pair_id"] for each in pure if crossed.measures(each)] == ["piper queen"]
    assert [each["pair_id"] for each in pure if not crossed.leaves_out(each)] == ["flite asterisk"]
    alone = next(fold for fold in folds if fold.name == "piper")
    assert alone.leaves_out(across) and not alone.measures(across)
    whole = {each["pair_id"]: 1 for each in [*pure, across]}
    records = [
        record(None, None, whole),
        record(alone.kind, alone.name, whole),
        record(crossed.kind, crossed.name, whole),
    ]
    rows = describe_folds(records, [*pure, across], num_bootstrap=20)["rows"]
    assert [(row["name"], row["pairs"], row["num_pairs"]) for row in rows] == [
        ("piper", "left_out", 2),
        ("piper", "rest", 2),
        ("piper x queen", "left_out", 1),
        ("piper x queen", "rest", 1),
    ]


def test_a_criterion_without_enough_pairs_is_left_out_of_a_fold_that_has_others():
    scripts = [label(f"s {n}", "piper", "scripts", "colloquialness") for n in range(3)]
    labels = {
        "train": [*labels_of(piper=3, flite=3), *scripts],
        "validation": [*labels_of(flite=1), scripts[0]],
        "test": [*labels_of(piper=2), *scripts],
    }
    folds, refused = plan_folds(labels, 2)
    assert folds[0].criteria == ("colloquialness", "modality")
    assert folds[1].criteria == ("modality",)
    assert ("synthesizer", "piper", "colloquialness") in [(r["kind"], r["name"], r["criterion"]) for r in refused]


def record(kind, name, head, acoustic=None, saw=False):
    """A record whose margins are given by pair."""
    sides = {
        scorer: {pair_id: {"chosen": float(margin), "rejected": 0.0} for pair_id, margin in margins.items()}
        for scorer, margins in (("head", head), ("acoustic", acoustic or head))
    }
    return {"kind": kind, "name": name, "backbone_saw": saw, **sides}


def test_rows_say_what_is_lost_on_what_was_left_out_and_on_the_rest():
    labels = labels_of(piper=4, flite=2)
    everything = {each["pair_id"]: 1 for each in labels}
    without = {**everything, "piper 0": -1, "piper 1": 0, "flite 0": -1}
    acoustic = {**everything, "piper 0": -1, "piper 1": -1, "piper 2": -1}
    records = [record(None, None, everything), record("synthesizer", "piper", without, acoustic, saw=True)]
    found = describe_folds(records, labels, num_bootstrap=50)
    left, rest = found["rows"]
    assert (left["pairs"], left["num_pairs"], left["criterion"]) == ("left_out", 4, "modality")
    assert (left["head"]["accuracy"], left["head"]["num_ties"], left["head"]["num_groups"]) == (0.5, 1, 4)
    assert (left["head_heard"]["accuracy"], left["acoustic"]["accuracy"]) == (1.0, 0.25)
    assert left["change"]["difference"] == -0.5
    assert left["change"]["interval"][0] < -0.5 < left["change"]["interval"][1]
    assert left["backbone_saw"] is True
    assert (rest["pairs"], rest["num_pairs"], rest["head"]["accuracy"]) == ("rest", 2, 0.5)
    summary = found["summary"]
    assert (summary["synthesizer"]["head"], summary["synthesizer"]["acoustic"]) == (0.5, 0.25)
    assert summary["synthesizer"]["lowest"] == {"accuracy": 0.5, "name": "piper", "criterion": "modality"}
    assert summary["source"] is None


def test_pairs_that_a_fold_did_not_score_count_nowhere():
    labels = labels_of(piper=3)
    found = describe_folds(
        [
            record(None, None, {"piper 0": 1, "piper 1": 1}),
            record("synthesizer", "piper", {"piper 0": 1, "piper 2": 1}),
        ],
        labels,
        num_bootstrap=20,
    )
    assert [row["num_pairs"] for row in found["rows"]] == [1]


@pytest.fixture(scope="module")
def splits(make_tone):
    """Three voices: the chosen side is a tone that the rejected side lacks, of whatever voice."""

    def side(seed, frequency_hz):
        return [
            {
                "role": role,
                "text": "a line",
                "audio": {
                    "bytes": encode(make_tone(0.2, frequency_hz + 40 * turn, seed), 16_000, "WAV", "PCM_16", None),
                    "path": None,
                },
            }
            for turn, role in enumerate(("user", "assistant"))
        ]

    def make(split, voices, count):
        rows = [
            {
                **label(f"{split} {voice} {number}", voice),
                "chosen": side(10 * number, 200.0),
                "rejected": side(10 * number + 1, 700.0 + 150 * ("piper", "flite", "hibari").index(voice)),
            }
            for voice in voices
            for number in range(count)
        ]
        return datasets.Dataset.from_list(rows)

    seen = ("piper", "flite")
    return {
        "train": make("train", seen, 4),
        "validation": make("validation", seen, 1),
        "test": make("test", (*seen, "hibari"), 2),
    }


@pytest.fixture(scope="module")
def measured(tmp_path_factory, tiny_checkpoint, splits):
    folder = tmp_path_factory.mktemp("left_out")
    found = measure_left_out(str(tiny_checkpoint), splits, folder, settings=SETTINGS, num_bootstrap=20)
    return folder, found


def test_heads_learn_a_difference_that_a_voice_left_out_shares(measured):
    _, found = measured
    assert [(fold["kind"], fold["name"], fold["num_train"]) for fold in found["folds"]] == [
        (None, None, 8),
        ("synthesizer", "flite", 4),
        ("synthesizer", "hibari", 8),
        ("synthesizer", "piper", 4),
    ]
    rows = {(row["name"], row["pairs"]): row for row in found["rows"]}
    assert {key: row["num_pairs"] for key, row in rows.items()} == {
        (name, pairs): count
        for name in ("flite", "hibari", "piper")
        for pairs, count in (("left_out", 2), ("rest", 4))
    }
    assert all(row["head"]["accuracy"] == row["acoustic"]["accuracy"] == 1.0 for row in rows.values())
    # One millionth learns nothing in ten steps.
    assert {fold["learning_rate"] for fold in found["folds"]} == {0.1}
    assert found["num_pairs"] == {"train": 8, "validation": 2, "test": 6}
    assert [(each["kind"], each["name"]) for each in found["not_measured"]] == [("source", "asterisk")]
    json.dumps(found)


def test_a_voice_that_training_never_had_has_the_head_that_left_nothing_out(measured):
    folder, _ = measured
    records = {record["name"]: record for record in JsonLines(folder / "folds.jsonl").read()}
    assert records["hibari"]["head"] == records[None]["head"] != records["piper"]["head"]
    # The head of the checkpoint is not at zero, so its backbone may have heard all of its training split.
    saw = {name: record["backbone_saw"] for name, record in records.items()}
    assert saw == {None: True, "flite": True, "hibari": False, "piper": True}


def test_folds_that_are_done_are_not_done_again(measured, tiny_checkpoint, splits, monkeypatch):
    folder, found = measured
    log = folder / "folds.jsonl"
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    # Killed while the last line was written.
    log.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    num_fitted = []
    monkeypatch.setattr(
        "sdiareward.training.head_fitting.fit_head", lambda *args: num_fitted.append(1) or fit_head(*args)
    )
    again = measure_left_out(str(tiny_checkpoint), splits, folder, settings=SETTINGS, num_bootstrap=20)
    assert again == found
    assert log.read_bytes() == whole
    assert len(num_fitted) == len(SETTINGS.learning_rates)
    measure_left_out(str(tiny_checkpoint), splits, folder, settings=SETTINGS, num_bootstrap=20)
    assert len(num_fitted) == len(SETTINGS.learning_rates)


def test_a_folder_of_other_settings_is_refused(measured, tiny_checkpoint, splits):
    folder, _ = measured
    with pytest.raises(ValueError, match="holds results of another run .settings was"):
        measure_left_out(str(tiny_checkpoint), splits, folder, settings=LeftOutSettings(min_pairs=2))


def test_torch_keeps_its_threads(measured):
    assert torch.get_num_threads() == 1
    assert not list(measured[0].glob(".*"))


def test_all_three_splits_are_needed(tmp_path, tiny_checkpoint, splits):
    with pytest.raises(ValueError, match="no split validation"):
        measure_left_out(str(tiny_checkpoint), {"train": splits["train"], "test": splits["test"]}, tmp_path)
    with pytest.raises(ValueError, match="nothing can be held out: modality: 6 test pairs; at least 20 are needed"):
        measure_left_out(str(tiny_checkpoint), splits, tmp_path)
    assert not list(tmp_path.iterdir())


def test_baselines_on_features_read_before_are_those_of_the_pairs(splits):
    rows = [0, 2, 5, 7]
    features = {split: read_features("acoustic", splits[split]) for split in ("train", "test")}
    few, criteria = splits["train"].select(rows), ["modality"] * 6
    expected = score_baseline("acoustic", few, ["modality"] * 4, splits["test"], criteria)
    found = score_features(features["train"].select(rows), ["modality"] * 4, features["test"], criteria)
    np.testing.assert_array_equal(found.chosen, expected.chosen)
    np.testing.assert_array_equal(found.rejected, expected.rejected)
    assert found.num_train == {"modality": 4}
