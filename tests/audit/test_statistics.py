import json

import numpy as np
import pytest
from support.audit_world import make_label

from sdiareward.audit.conditions import ATTACKED, NATURAL, make_attack_key, make_perturbation_key
from sdiareward.audit.statistics import (
    BOTH,
    Pairs,
    describe_change,
    describe_natural,
    measure_attacks,
    measure_changes,
    measure_perturbations,
    sum_up,
)
from sdiareward.perturbations.attacks import Attack


# Margins 2, 1, 0 and -1: two of four right, natural margin 1.
CHOSEN, REJECTED = [2.0, 2.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]
SUBSETS = ["scripted", "semi_wild", "colloquialness", "colloquialness"]
LABELS = [make_label(f"p{row}", subset=subset, group=f"g{row}") for row, subset in enumerate(SUBSETS)]


def lines(**by_name):
    """Return the lines of a condition; None stands for a pair without rewards."""
    rows = zip(*by_name.values(), strict=True)
    return {
        f"p{row}": {"error": "it broke"} if None in values else {"rewards": dict(zip(by_name, values, strict=True))}
        for row, values in enumerate(rows)
    }


def natural(**conditions):
    return {NATURAL: lines(chosen=CHOSEN, rejected=REJECTED), **conditions}


def test_a_change_is_measured_on_either_side_and_on_both():
    # The change takes 1.5 from every chosen side and gives 0.5 to every rejected one.
    changed = lines(chosen=[0.5, 0.5, -0.5, -1.5], rejected=[0.5, 1.5, 1.5, 1.5])
    pairs = Pairs(LABELS, natural(x=changed))
    found = {place: describe_change(pairs, change) for place, change in measure_changes(pairs, "x").items()}
    # Chosen alone: margins 0.5, -0.5, -1.5, -2.5; one of two right pairs is lost.
    assert (found["chosen"]["accuracy_before"], found["chosen"]["accuracy"]) == (0.5, 0.25)
    assert (found["chosen"]["accuracy_change"], found["chosen"]["flip_rate"]) == (-0.25, 0.25)
    assert (found["chosen"]["num_lost"], found["chosen"]["num_won"]) == (1, 0)
    assert (found["chosen"]["mean_shift"], found["chosen"]["absolute_shift"]) == (-1.5, 1.5)
    # Rejected alone: margins 1.5, 0.5, -0.5, -1.5; nothing turns.
    assert (found["rejected"]["accuracy"], found["rejected"]["flip_rate"]) == (0.5, 0.0)
    assert (found["rejected"]["mean_shift"], found["rejected"]["relative_shift"]) == (0.5, 0.5)
    # Both: margins 0, -1, -2, -3; a tie is not right. Shifts of -1.5 and 0.5: mean -0.5, by size 1.
    assert (found[BOTH]["accuracy"], found[BOTH]["num_lost"]) == (0.0, 2)
    shifts = [found[BOTH][name] for name in ("mean_shift", "absolute_shift", "relative_shift")]
    assert shifts == [-0.5, 1.0, 1.0]


def test_a_pair_may_flip_to_right_as_well_and_both_directions_count():
    changed = lines(chosen=[0.0, 2.0, 1.0, 2.0], rejected=REJECTED)
    pairs = Pairs(LABELS, natural(x=changed))
    found = describe_change(pairs, measure_changes(pairs, "x")["chosen"])
    assert (found["num_lost"], found["num_won"]) == (1, 1)
    assert (found["accuracy_change"], found["flip_rate"]) == (0.0, 0.5)
    assert found["mean_shift"] == 0.0
    assert found["absolute_shift"] == 1.0


def test_a_pair_without_rewards_under_a_change_counts_nowhere_in_it():
    changed = lines(chosen=[2.0, None, 1.0, 2.0], rejected=REJECTED)
    pairs = Pairs(LABELS, natural(x=changed))
    found = describe_change(pairs, measure_changes(pairs, "x")["chosen"])
    assert (found["num_pairs"], found["accuracy_before"], found["flip_rate"]) == (3, 1 / 3, 1 / 3)
    nobody = Pairs(LABELS, natural(x={}))
    assert describe_change(nobody, measure_changes(nobody, "x")["chosen"]) == {"num_pairs": 0}


def test_a_pair_that_cannot_be_scored_as_it_is_is_left_out_of_everything():
    rewards = natural(x=lines(chosen=CHOSEN, rejected=REJECTED))
    rewards[NATURAL]["p0"] = {"error": "it broke"}
    pairs = Pairs(LABELS, rewards)
    assert [label["pair_id"] for label in pairs.labels] == ["p1", "p2", "p3"]
    assert describe_change(pairs, measure_changes(pairs, "x")["chosen"])["num_pairs"] == 3
    with pytest.raises(ValueError, match="no pair could be scored"):
        Pairs(LABELS, {NATURAL: {}})


def test_natural_pairs_are_described_by_column():
    found = describe_natural(Pairs(LABELS, natural()))
    assert list(found) == ["all", "semi_wild", "scripted", "colloquialness", "modality_micro"]
    assert (found["all"]["accuracy"], found["all"]["num_ties"], found["all"]["natural_margin"]) == (0.5, 1, 1.0)
    assert (found["modality_micro"]["accuracy"], found["modality_micro"]["num_groups"]) == (1.0, 2)
    assert (found["colloquialness"]["accuracy"], found["colloquialness"]["natural_margin"]) == (0.0, 0.5)
    # All right says nothing of the spread: Wilson's interval of two groups.
    assert found["modality_micro"]["interval"] == pytest.approx([0.342, 1.0], abs=1e-3)


def test_pairs_of_no_subset_are_a_column_beside_others_and_all_pairs_where_they_are_alone():
    labels = [
        make_label(f"p{row}", subset=subset, group=f"g{row}") for row, subset in enumerate(["scripted", *["all"] * 3])
    ]
    found = describe_natural(Pairs(labels, natural()))
    assert {name: row["num_pairs"] for name, row in found.items()} == {"all": 4, "scripted": 1, "no_subset": 3}
    labels = [make_label(f"p{row}", subset="all", group=f"g{row}") for row in range(4)]
    assert list(describe_natural(Pairs(labels, natural()))) == ["all"]


def test_every_nuisance_counts_alike_however_many_severities_it_has():
    row = {"severity": 1.0, "place": BOTH, "accuracy_change": 0.0, "flip_rate": 0.0, "relative_shift": None}
    rows = [{**row, "nuisance": "gain"}] * 3 + [
        {**row, "nuisance": "noise", "accuracy_change": -0.1, "flip_rate": 0.3, "relative_shift": 0.5},
        {**row, "nuisance": "noise", "accuracy_change": 0.2, "flip_rate": 0.5, "relative_shift": 0.7},
    ]
    found = sum_up(rows)
    # Changes count by their size: (0 + (0.1 + 0.2) / 2) / 2.
    assert found["accuracy_change"] == pytest.approx(0.075)
    assert found["flip_rate"] == pytest.approx(0.2)
    assert found["relative_shift"] == pytest.approx(0.6)
    assert (found["worst"]["nuisance"], found["worst"]["flip_rate"]) == ("noise", 0.5)
    assert sum_up([])["flip_rate"] is None


def test_nuisances_are_measured_by_place_and_column_and_summed_up():
    same = lines(chosen=CHOSEN, rejected=REJECTED)
    turned = lines(chosen=REJECTED, rejected=CHOSEN)
    rewards = natural(**{make_perturbation_key("polarity", 0.0): turned})
    rewards |= {make_perturbation_key("resampling", severity): same for severity in (44_100.0, 11_025.0)}
    found = measure_perturbations(Pairs(LABELS, rewards), ["polarity", "resampling"])
    assert len(found["rows"]) == 3 * (1 + 2)
    by_place = {row["place"]: row for row in found["rows"] if row["nuisance"] == "polarity"}
    # Turned round on both sides: the margins -2, -1, 0, 1 in place of 2, 1, 0, -1.
    assert (by_place[BOTH]["accuracy"], by_place[BOTH]["flip_rate"]) == (0.25, 0.75)
    # On one side alone: both sides equal, all ties.
    assert (by_place["chosen"]["accuracy"], by_place["chosen"]["flip_rate"]) == (0.0, 0.5)
    assert by_place[BOTH]["columns"]["colloquialness"]["num_won"] == 1
    rates = {row["nuisance"]: row["flip_rate"] for row in found["by_nuisance"]}
    assert rates == {"polarity": pytest.approx((0.75 + 0.5 + 0.5) / 3), "resampling": 0.0}
    assert found["total"]["flip_rate"] == pytest.approx(rates["polarity"] / 2)
    low, high = found["total"]["flip_interval"]
    assert low <= found["total"]["flip_rate"] <= high
    json.dumps(found, allow_nan=False)


ATTACKS = {
    "lift": Attack("lift the rejected side", "rejected", "chosen", "nothing", lambda pair, context: None),
    "break": Attack("break the chosen side", "chosen", "self", "nothing", lambda pair, context: None),
}


def test_an_attack_on_the_rejected_side_pays_where_it_reaches_the_chosen_one_and_did_not_before():
    # The tie and the wrong pair were ahead before: they do not count. The first pair reaches its chosen side exactly.
    rewards = natural(**{make_attack_key("lift"): lines(**{ATTACKED: [2.0, 1.5, 3.0, 3.0]})})
    (found,) = measure_attacks(Pairs(LABELS, rewards), {"lift": ATTACKS["lift"]})
    assert (found["num_pairs"], found["paid"], found["paid_before"], found["reaches"]) == (4, 0.5, 0.5, 0.75)
    assert found["gain"] == pytest.approx(np.mean([2.0, 0.5, 2.0, 2.0]))
    assert found["relative_gain"] == found["gain"]
    assert found["columns"]["modality_micro"]["paid"] == 0.5
    assert found["columns"]["colloquialness"]["paid"] is None and found["columns"]["colloquialness"]["num_pairs"] == 2


def test_a_broken_dialogue_pays_where_it_is_not_rewarded_less_than_the_intact_one():
    rewards = natural(**{make_attack_key("break"): lines(**{ATTACKED: [1.9, 2.0, 1.5, -1.0]})})
    (found,) = measure_attacks(Pairs(LABELS, rewards), {"break": ATTACKS["break"]})
    assert (found["paid"], found["paid_before"]) == (0.5, None)
    assert found["gain"] == pytest.approx((-0.1 + 0.0 + 0.5 - 1.0) / 4)


def test_pairs_to_which_an_attack_does_not_apply_are_counted_by_reason():
    tried = lines(**{ATTACKED: [0.0, 0.0, 0.0, 0.0]})
    tried |= {"p1": {"reason": "needs a twin"}, "p2": {"reason": "needs a twin"}, "p3": {"error": "it broke"}}
    (found,) = measure_attacks(
        Pairs(LABELS, natural(**{make_attack_key("break"): tried})), {"break": ATTACKS["break"]}
    )
    assert (found["num_pairs"], found["not_applicable"]) == (1, {"needs a twin": 2})
    (nothing,) = measure_attacks(Pairs(LABELS, natural()), {"break": ATTACKS["break"]})
    assert (nothing["num_pairs"], nothing["columns"]["scripted"]) == (0, {"num_pairs": 0, "num_groups": 0})


def test_intervals_draw_recordings_and_not_pairs():
    """A hundred pairs of one recording are no more evidence than one, and two recordings are little."""
    labels = [make_label(f"p{row}", group=f"g{min(row, 1)}") for row in range(101)]
    rewards = {NATURAL: lines(chosen=[1.0] * 101, rejected=[2.0] + [0.0] * 100)}
    (low, high) = describe_natural(Pairs(labels, rewards))["all"]["interval"]
    assert low < 0.001 and high > 0.999
    alone = describe_natural(Pairs([{**label, "group_id": "g"} for label in labels], rewards))["all"]
    assert (alone["interval"], alone["num_groups"]) == (None, 1)
