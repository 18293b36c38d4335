import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sdiareward.audit.ties import CODEC_COPIES, _Ranks, describe_ties, measure_identical
from sdiareward.perturbations.decoded_pairs import AuditPair, Turn
from sdiareward.perturbations.registry import PERTURBATIONS
from sdiareward.scoring.scorer import Scorer


def pair(name, *levels, make, subset="semi_wild"):
    criterion = "colloquialness" if subset == "colloquialness" else "modality"
    sides = [
        [Turn("user", "hi", make(0.3, 200.0)), Turn("assistant", "yes", np.float32(level) * make(0.3, 300.0, seed=1))]
        for level in levels
    ]
    return AuditPair(name, criterion, subset, "source", "piper", f"group of {name}", None, *sides)


def loudness(dialogues, criteria):
    """The level of each dialogue; the last digits do not depend on the company."""
    return [
        float(
            np.mean([np.square(item["audio"]["array"], dtype=np.float64).mean() for item in items if "audio" in item])
        )
        for items in ([item for message in dialogue for item in message["content"]] for dialogue in dialogues)
    ]


def labels_of(*names, subset="semi_wild"):
    criterion = "colloquialness" if subset == "colloquialness" else "modality"
    return [{"pair_id": name, "subset": subset, "criterion": criterion, "group_id": name} for name in names]


def rewards_of(**pairs):
    return {name: dict(zip(("chosen", "rejected"), sides, strict=True)) for name, sides in pairs.items()}


@pytest.fixture
def few():
    """Natural margins 4, -1, 0.5 and 0; codec copies are off by 1 to 8 eighths."""
    natural = rewards_of(a=(4.0, 0.0), b=(0.0, 1.0), c=(0.5, 0.0), d=(1.0, 1.0))
    copies = {
        "mp3": rewards_of(a=(4.125, 0.25), b=(0.375, 1.5), c=(0.5, 0.0), d=(1.625, 1.75)),
        "opus": rewards_of(a=(4.875, 1.0), b=(0.0, 1.0), c=(0.5, 0.0), d=(1.0, 1.0)),
    }
    return labels_of("a", "b", "c", "d"), natural, copies


def test_twins_are_described_by_the_size_of_their_margins(few):
    (row,) = describe_ties(*few, num_bootstrap=50)["rows"]
    assert (row["column"], row["num_pairs"]) == ("overall_micro", 4)
    assert {name: (found["num_twins"], found["num_equal"]) for name, found in row["twins"].items()} == {
        "mp3": (8, 2),
        "opus": (8, 6),
        "all": (16, 8),
    }
    assert row["twins"]["mp3"]["quantiles"]["1"] == 0.75
    assert row["natural"]["quantiles"]["0.5"] == 0.75
    json.dumps(row)


def test_the_tie_auroc_counts_natural_margins_above_those_of_twins(few):
    (row,) = describe_ties(*few, num_bootstrap=50)["rows"]
    # MP3's copies: 0, 0, 1/8, 2/8, 3/8, 4/8, 5/8, 6/8. Of natural 4 and 1 all 8 are smaller, of 0.5 five and one is
    # equal, of 0 two are equal.
    assert row["twins"]["mp3"]["auroc"] == (8 + 8 + 5.5 + 1) / 32
    # Opus's: six times 0, 7/8, 1.
    assert row["twins"]["opus"]["auroc"] == (8 + 7.5 + 6 + 3) / 32
    assert row["twins"]["all"]["auroc"] == (22.5 + 24.5) / 64
    low, high = row["twins"]["all"]["interval"]
    assert low < row["twins"]["all"]["auroc"] < high


def test_the_tie_auroc_is_that_of_scikit_learn_under_any_weights():
    generator = np.random.default_rng(5)
    natural, copies = generator.integers(0, 6, 30) / 4, generator.integers(0, 4, (2, 30)) / 4
    weights = generator.integers(0, 4, (3, 30))
    expected = [
        roc_auc_score(
            np.repeat([1, 0, 0], 30),
            np.concatenate([natural, *copies]),
            sample_weight=np.concatenate([one, one, one]),
        )
        for one in weights
    ]
    assert _Ranks(natural, copies).auroc(weights) == pytest.approx(expected)


def test_the_threshold_abstains_from_at_least_95_percent_of_the_twins():
    # A hundred pairs with one codec copy a side: sizes 0.01 to 1.00 twice; 95% of the 200 are up to 0.95.
    names = [str(number) for number in range(1, 101)]
    natural = rewards_of(**{name: (float(name) * 0.02, 0.0) for name in names})
    twin = {
        name: {"chosen": natural[name]["chosen"] + int(name) / 100, "rejected": -int(name) / 100} for name in names
    }
    (row,) = describe_ties(labels_of(*names), natural, {"mp3": twin}, num_bootstrap=100)["rows"]
    found = row["at_95"]
    assert found["threshold"] == pytest.approx(0.95)
    # Natural margins 0.02 to 2.00: those above 0.95 begin with pair 48.
    assert found["coverage"] == 0.53
    assert found["accuracy"] == 1.0
    low, high = found["threshold_interval"]
    assert low < 0.95 < high <= 1.0
    assert found["coverage_interval"][0] < 0.53 < found["coverage_interval"][1]
    assert found["accuracy_interval"] is None


def test_the_curve_begins_with_no_abstention_and_then_leaves_out_ties(few):
    (row,) = describe_ties(*few, num_bootstrap=50)["rows"]
    first, second = row["curve"][:2]
    assert (first["threshold"], first["coverage"], first["accuracy"], first["abstained_twins"]) == (
        None,
        1.0,
        0.5,
        0.0,
    )
    assert (second["threshold"], second["coverage"], second["abstained_twins"]) == (0.0, 0.75, 0.5)
    assert second["accuracy"] == pytest.approx(2 / 3)
    at_half = next(point for point in row["curve"] if point["threshold"] == 0.5)
    assert (at_half["coverage"], at_half["accuracy"]) == (0.5, 0.5)
    thresholds = [point["threshold"] for point in row["curve"][1:]]
    assert thresholds == sorted(set(thresholds))
    coverages = [point["coverage"] for point in row["curve"]]
    assert coverages == sorted(coverages, reverse=True)


def test_criteria_have_rows_of_their_own(few):
    labels, natural, copies = few
    labels = labels[:2] + labels_of("c", "d", subset="colloquialness")
    rows = {row["column"]: row for row in describe_ties(labels, natural, copies, num_bootstrap=20)["rows"]}
    assert {name: row["num_pairs"] for name, row in rows.items()} == {
        "overall_micro": 4,
        "modality_micro": 2,
        "colloquialness": 2,
    }
    assert rows["colloquialness"]["twins"]["mp3"]["quantiles"]["1"] == 0.75
    assert rows["modality_micro"]["curve"][0]["accuracy"] == 0.5


def test_where_all_twins_are_as_far_apart_as_pairs_nothing_is_decided():
    natural = rewards_of(a=(1.0, 0.0), b=(2.0, 1.0))
    copies = {"mp3": rewards_of(a=(3.0, 2.0), b=(4.0, 3.0))}
    (row,) = describe_ties(labels_of("a", "b"), natural, copies, num_bootstrap=20)["rows"]
    assert (row["at_95"]["coverage"], row["at_95"]["accuracy"]) == (0.0, None)
    assert row["twins"]["all"]["auroc"] == 0.0


def test_twins_are_the_mildest_usual_codings():
    assert {name: PERTURBATIONS[name].severities[0] for name in CODEC_COPIES} == CODEC_COPIES
    assert all(abs(severity) == max(PERTURBATIONS[name].severities) for name, severity in CODEC_COPIES.items())


def test_a_reward_that_depends_on_when_it_is_asked_for_is_found_out(make_tone):
    asked = []

    def drifting(dialogues, criteria):
        asked.append(None)
        return [value + 0.25 * len(asked) for value in loudness(dialogues, criteria)]

    found = measure_identical([pair("a", 1.0, 0.5, make=make_tone)], drifting)
    assert (found["as_pair"], found["lossless"]) == (0.0, 0.0)
    assert found["separate_calls"] == pytest.approx(0.25)
    assert found["worst"]["separate_calls"] in ("pair a, chosen", "pair a, rejected")
    # The second dialogue is asked for alone in the sixth call, among others in the first.
    assert found["among_others"] == pytest.approx(0.25 * 5)
    assert found["worst"]["among_others"] == "pair a, rejected"


def test_a_reward_that_depends_on_the_place_in_a_call_is_found_out(make_tone):
    def counting(dialogues, criteria):
        return [float(number) for number in range(len(dialogues))]

    found = measure_identical([pair("a", 1.0, 0.5, make=make_tone)], counting)
    assert found["as_pair"] == found["lossless"] == 1.0
    assert found["separate_calls"] == 0.0
    assert found["among_others"] == 3.0


def test_what_16_bits_cannot_hold_is_rounded_before_it_is_compared(make_tone):
    # Louder than full scale, which 16 bits cut off.
    found = measure_identical([pair("a", 9.0, 0.5, make=make_tone)], loudness)
    assert found["lossless"] == found["as_pair"] == 0.0
    assert found["worst"] == {}


def test_a_model_gives_identical_dialogues_the_same_reward(make_tiny_model, tiny_processor, make_tone):
    pairs = [pair("a", 1.0, 0.5, make=make_tone), pair("b", 0.25, 2.0, make=make_tone)]
    found = measure_identical(pairs, Scorer(make_tiny_model(), tiny_processor).score)
    assert found["num_dialogues"] == 4
    assert (found["as_pair"], found["separate_calls"], found["lossless"]) == (0.0, 0.0, 0.0)
    assert found["among_others"] < 1e-6
    assert set(found["worst"]) <= {"among_others"}
