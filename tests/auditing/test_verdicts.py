import json

import numpy as np
import pytest
from support.audit_world import make_label

from sdiareward.auditing import verdicts
from sdiareward.auditing.conditions import ATTACKED, NATURAL, make_attack_key, make_perturbation_key
from sdiareward.auditing.verdicts import (
    BOTH,
    FAIL,
    NOT_MEASURED,
    PASS,
    Measured,
    Pairs,
    describe_change,
    describe_natural,
    judge,
    measure_attacks,
    measure_changes,
    measure_checks,
    measure_modalities,
    measure_perturbations,
    read_trained_with,
)
from sdiareward.checkpoint_io import models
from sdiareward.common.machine import write_provenance
from sdiareward.common.package import SMALL
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import HELD_OUT, PERTURBATIONS


# Margins 2, 1, 0 and -1: two of four right, natural margin 1.
CHOSEN, REJECTED = [2.0, 2.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]
SUBSETS = ["scripted", "semi_wild", "colloquialness", "colloquialness"]


def make_labels(subsets, groups=None):
    groups = groups or [f"g{row}" for row in range(len(subsets))]
    pairs = enumerate(zip(subsets, groups, strict=True))
    return [make_label(f"p{row}", subset=subset, group=group) for row, (subset, group) in pairs]


LABELS = make_labels(SUBSETS)


def lines(**by_name):
    """Return the lines of a condition; None stands for a pair without rewards."""
    rows = zip(*by_name.values(), strict=True)
    return {
        f"p{row}": {"error": "it broke"} if None in values else {"rewards": dict(zip(by_name, values, strict=True))}
        for row, values in enumerate(rows)
    }


def make_pairs(labels=LABELS, chosen=CHOSEN, rejected=REJECTED, **conditions):
    return Pairs(labels, {NATURAL: lines(chosen=chosen, rejected=rejected), **conditions})


def describe(pairs, place="chosen"):
    return describe_change(pairs, measure_changes(pairs, "x")[place], pairs.everyone)


# Rewards of the four pairs after a change, the place, and what is found.
CHANGES = [
    # The change takes 1.5 from every chosen side and gives 0.5 to every rejected one.
    # Chosen alone: margins 0.5, -0.5, -1.5, -2.5; one of two right pairs is lost.
    (
        {"chosen": [0.5, 0.5, -0.5, -1.5], "rejected": [0.5, 1.5, 1.5, 1.5]},
        {
            "chosen": {"accuracy_before": 0.5, "accuracy": 0.25, "accuracy_change": -0.25, "flip_rate": 0.25}
            | {"num_lost": 1, "num_won": 0, "mean_shift": -1.5, "absolute_shift": 1.5},
            # Margins 1.5, 0.5, -0.5, -1.5; nothing turns.
            "rejected": {"accuracy": 0.5, "flip_rate": 0.0, "mean_shift": 0.5, "relative_shift": 0.5},
            # Margins 0, -1, -2, -3; a tie is not right. Shifts of -1.5 and 0.5: mean -0.5, by size 1.
            BOTH: {"accuracy": 0.0, "num_lost": 2, "mean_shift": -0.5, "absolute_shift": 1.0, "relative_shift": 1.0},
        },
    ),
    # A pair may flip to right as well, and both directions count.
    (
        {"chosen": [0.0, 2.0, 1.0, 2.0], "rejected": REJECTED},
        {
            "chosen": {"num_lost": 1, "num_won": 1, "accuracy_change": 0.0, "flip_rate": 0.5}
            | {"mean_shift": 0.0, "absolute_shift": 1.0}
        },
    ),
    # A pair without rewards under a change counts nowhere in it.
    (
        {"chosen": [2.0, None, 1.0, 2.0], "rejected": REJECTED},
        {"chosen": {"num_pairs": 3, "accuracy_before": 1 / 3, "flip_rate": 1 / 3}},
    ),
    ({"chosen": [None] * 4, "rejected": REJECTED}, {"chosen": {"num_pairs": 0}}),
]


@pytest.mark.parametrize(("changed", "expected"), CHANGES)
def test_a_change_is_measured_on_either_side_and_on_both(changed, expected):
    pairs = make_pairs(x=lines(**changed))
    for place, values in expected.items():
        found = describe(pairs, place)
        assert {name: found[name] for name in values} == values


def test_a_pair_that_cannot_be_scored_as_it_is_is_left_out_of_everything():
    pairs = make_pairs(chosen=[None, *CHOSEN[1:]], x=lines(chosen=CHOSEN, rejected=REJECTED))
    assert [label["pair_id"] for label in pairs.labels] == ["p1", "p2", "p3"]
    assert describe(pairs)["num_pairs"] == 3
    with pytest.raises(ValueError, match="no unchanged pair could be scored"):
        Pairs(LABELS, {NATURAL: {}})


def test_natural_pairs_are_described_by_column():
    found = describe_natural(make_pairs())
    assert list(found) == ["all", "semi_wild", "scripted", "colloquialness", "modality_micro"]
    assert (found["all"]["accuracy"], found["all"]["num_ties"], found["all"]["natural_margin"]) == (0.5, 1, 1.0)
    assert (found["modality_micro"]["accuracy"], found["modality_micro"]["num_groups"]) == (1.0, 2)
    assert (found["colloquialness"]["accuracy"], found["colloquialness"]["natural_margin"]) == (0.0, 0.5)
    # All right says nothing of the spread: Wilson's interval of two groups.
    assert found["modality_micro"]["interval"] == pytest.approx([0.342, 1.0], abs=1e-3)
    # Pairs of no subset are a column beside others, and all pairs where they are alone.
    found = describe_natural(make_pairs(make_labels(["scripted", *["all"] * 3])))
    assert {name: row["num_pairs"] for name, row in found.items()} == {"all": 4, "scripted": 1, "no_subset": 3}
    assert list(describe_natural(make_pairs(make_labels(["all"] * 4)))) == ["all"]


def test_perturbations_are_measured_by_place_and_column_and_count_alike_in_the_sum():
    same, turned = lines(chosen=CHOSEN, rejected=REJECTED), lines(chosen=REJECTED, rejected=CHOSEN)
    changes = {make_perturbation_key("resampling", severity): same for severity in (44_100.0, 11_025.0)}
    pairs = make_pairs(**{make_perturbation_key("polarity", 0.0): turned}, **changes)
    found = measure_perturbations(pairs, ["polarity", "resampling"])
    assert len(found["rows"]) == 3 * (1 + 2)
    by_place = {row["place"]: row for row in found["rows"] if row["nuisance"] == "polarity"}
    # Turned round on both sides: the margins -2, -1, 0, 1 in place of 2, 1, 0, -1; on one side alone: all ties.
    assert (by_place[BOTH]["accuracy"], by_place[BOTH]["flip_rate"]) == (0.25, 0.75)
    assert (by_place["chosen"]["accuracy"], by_place["chosen"]["flip_rate"]) == (0.0, 0.5)
    assert by_place[BOTH]["columns"]["colloquialness"]["num_won"] == 1
    rates = {row["nuisance"]: row["flip_rate"] for row in found["by_nuisance"]}
    assert rates == {"polarity": pytest.approx((0.75 + 0.5 + 0.5) / 3), "resampling": 0.0}
    # However many severities they have; changes count by their size.
    total, (low, high) = found["total"], found["total"]["flip_interval"]
    assert total["flip_rate"] == pytest.approx(rates["polarity"] / 2) and low <= total["flip_rate"] <= high
    assert total["accuracy_change"] == pytest.approx((0.25 + 0.5 + 0.5) / 3 / 2)
    assert (total["worst"]["nuisance"], total["worst"]["place"]) == ("polarity", BOTH)
    assert verdicts.sum_up([])["flip_rate"] is None
    json.dumps(found, allow_nan=False)


def attack(name, attacked, **reasons):
    pairs = make_pairs(**{make_attack_key(name): {**lines(**{ATTACKED: attacked}), **reasons}})
    (found,) = measure_attacks(pairs, [name])
    return found


def test_an_attack_succeeds_where_it_reaches_what_it_is_compared_with_and_did_not_before():
    # On the rejected side. The tie and the wrong pair were ahead before: they do not count. The first pair reaches its
    # chosen side exactly.
    found = attack("loudest", [2.0, 1.5, 3.0, 3.0])
    assert (found["num_pairs"], found["paid"], found["paid_before"], found["reaches"]) == (4, 0.5, 0.5, 0.75)
    assert found["gain"] == found["relative_gain"] == pytest.approx(np.mean([2.0, 0.5, 2.0, 2.0]))
    assert found["columns"]["modality_micro"]["paid"] == 0.5
    assert found["columns"]["colloquialness"]["paid"] is None and found["columns"]["colloquialness"]["num_pairs"] == 2
    # On the chosen side: the broken dialogue is not rewarded less than the intact one.
    found = attack("silence", [1.9, 2.0, 1.5, -1.0])
    assert (found["paid"], found["paid_before"]) == (0.5, None)
    assert found["gain"] == pytest.approx((-0.1 + 0.0 + 0.5 - 1.0) / 4)
    needs = {"reason": "needs a twin"}
    found = attack("silence", [0.0] * 4, p1=needs, p2=needs, p3={"error": "it broke"})
    assert (found["num_pairs"], found["not_applicable"]) == (1, {"needs a twin": 2})
    (nothing,) = measure_attacks(make_pairs(), ["silence"])
    assert (nothing["num_pairs"], nothing["columns"]["scripted"]) == (0, {"num_pairs": 0, "num_groups": 0})


def make_scores(*margins):
    return {f"p{row}": {"chosen": margin, "rejected": 0.0} for row, margin in enumerate(margins)}


def hear(both, baselines=(), **margins):
    """Compare modalities by the margins of two pairs with each."""
    labels = make_labels(["semi_wild", "colloquialness"], ["g", "h"])
    rewards = {f"hearing/{name}": lines(chosen=values, rejected=[0.0] * 2) for name, values in margins.items()}
    pairs = Pairs(labels, {NATURAL: lines(chosen=both, rejected=[0.0] * 2), **rewards}, num_bootstrap=20)
    found = measure_modalities(pairs, list(margins), dict(baselines))
    return found and {row["column"]: row for row in found["rows"]}


def test_modalities_are_compared_by_accuracy_and_by_the_share_of_the_margin_that_stays():
    acoustic = {"acoustic": make_scores(-1.0, 1.0)}
    rows = hear([0.25, 0.45], acoustic, audio_only=[0.25, 0.5], text_only=[0.0, -0.05])
    assert list(rows) == ["semi_wild", "colloquialness", "modality_micro", "overall_micro"]
    found = rows["overall_micro"]["conditions"]
    accuracies = {name: (row["accuracy"], row["num_ties"]) for name, row in found.items()}
    assert accuracies == {BOTH: (1.0, 0), "audio_only": (1.0, 0), "text_only": (0.0, 1)}
    kept = {name: row["margin_kept"] for name, row in found.items()}
    assert kept == pytest.approx({BOTH: 1.0, "audio_only": 0.75 / 0.7, "text_only": -0.05 / 0.7})
    assert found["text_only"]["mean_margin"] == pytest.approx(-0.025)
    assert rows["semi_wild"]["conditions"]["text_only"]["margin_kept"] == 0.0
    accuracy = {column: row["baselines"]["acoustic"]["accuracy"] for column, row in rows.items()}
    assert accuracy == {"semi_wild": 0.0, "colloquialness": 1.0, "modality_micro": 0.0, "overall_micro": 0.5}
    found = hear([0.0, 0.0], audio_only=[0.1, 0.1])["overall_micro"]["conditions"]["audio_only"]
    assert found["margin_kept"] is found["margin_kept_interval"] is None
    # A pair without a reward with one modality is not compared.
    assert list(hear([0.1, 0.1], audio_only=[0.1, None])) == ["semi_wild", "modality_micro", "overall_micro"]
    assert hear([0.1, 0.1]) is None


def test_every_check_has_a_limit_and_every_limit_a_check_and_the_limit_itself_passes():
    names = verdicts.list_checks()
    assert {f"nuisance.{name}" for name in PERTURBATIONS} | {f"attack.{name}" for name in ATTACKS} <= set(names)
    used = [verdicts.find_limit(name) for name in names]
    assert all(limit in used for limit in verdicts.read_limits().values())
    assert all((limit.get("at_most") is None) != (limit.get("at_least") is None) for limit in used)
    values = {"nuisance.gain": 0.03, "nuisance.noise": 0.0301, "baselines.modality": 0.95 - 0.9, "attack.clicks": None}
    found = judge({name: Measured(value) for name, value in values.items()})
    assert [verdict["status"] for verdict in found] == [PASS, FAIL, PASS, NOT_MEASURED]
    assert (found[0]["unit"], found[0]["at_most"], found[2]["at_least"]) == ("share", 0.03, 0.05)


def given(**statuses):
    return [{"name": name.replace("_", "."), "status": status} for name, status in statuses.items()]


@pytest.mark.parametrize(
    ("patterns", "failing"),
    [([], []), (["any"], ["b", "c.y"]), (["a", "c.*"], ["c.x", "c.y"]), (["any", "c.x"], ["b", "c.x", "c.y"])],
)
def test_any_fails_on_what_failed_and_a_name_also_on_what_was_not_measured(patterns, failing):
    found = verdicts.select(given(a=PASS, b=FAIL, c_x=NOT_MEASURED, c_y=FAIL), patterns)
    assert [verdict["name"] for verdict in found] == failing
    # `any` does not pass where nothing was measured.
    assert len(verdicts.select(given(a=NOT_MEASURED), ["any"])) == 1
    # `d` is gone: what is not looked at is not known to hold.
    lost = verdicts.find_regressions(given(a=PASS, b=FAIL, c=FAIL), given(a=PASS, b=FAIL, c=PASS, d=PASS))
    assert [(verdict["name"], verdict["status"]) for verdict in lost] == [("c", FAIL), ("d", NOT_MEASURED)]


def of_perturbations(*rates, num_pairs=(10, 10), **more):
    """What an audit of ten pairs measured: by perturbation the flip rate, the first of them by two severities."""
    worst = {"nuisance": "gain", "severity": 6.0, "place": "both", "flip_rate": 0.5}
    rows = [
        {"nuisance": name, "flip_rate": rate, "worst": worst} for name, rate in zip(PERTURBATIONS, rates, strict=False)
    ]
    cells = [{"nuisance": row["nuisance"], "num_pairs": count} for row in rows for count in num_pairs]
    nuisances = {"rows": cells, "by_nuisance": rows, "total": {"flip_rate": 0.1, "worst": worst}}
    return measure_checks({"attacks": None, "hearing": None, "num_pairs": 10, "nuisances": nuisances, **more})


def test_a_verdict_says_over_what_it_is_and_whether_the_model_was_trained_with_it():
    first, second, *_ = PERTURBATIONS
    attack = {"attack": "silence", "num_pairs": 4, "paid": 0.0, "paid_before": None, "gain": 0.5}
    attacks = [
        attack,
        {**attack, "attack": "loudest", "paid_before": 0.25},
        {**attack, "attack": "longest", "paid": None},
    ]
    trained = {"nuisances": [second], "attacks": ["silence"]}
    found = of_perturbations(0.1, 0.1, num_pairs=(10, 4), trained_with=trained, attacks=attacks)
    over = f"over 2 of {len(PERTURBATIONS)} changes; 1 of 2 in training"
    details = {
        "nuisances.flip_rate": over,
        "nuisances.worst_flip_rate": f"level 6 dB, on both sides; {over}",
        # Pairs that could not be scored under a change are not counted in it.
        f"nuisance.{first}": "at worst 50.0%: level 6 dB, on both sides; a severity on 4 of 10 pairs only",
        "attack.silence": "on 4, mean gain +0.50; trained with it",
        "attack.loudest": "on 4, the 25.0% ahead without it excluded, mean gain +0.50",
        # An attack on sides that are all ahead already passes nothing.
        "attack.longest": "all 4 were ahead without it",
    }
    assert {name: found[name].detail for name in details} == details
    assert found[f"nuisance.{second}"].detail.endswith("; trained with it") and found["attack.longest"].value is None


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ([], (pytest.approx(1.0 / 3), "over pink noise, narrow band, opus")),
        (["narrow_band", "pink_noise"], (0.2, "over opus")),
        (list(HELD_OUT), (None, "all of them in training")),
    ],
)
def test_the_held_out_channels_have_a_mean_of_their_own_without_those_of_training(trained, expected):
    rates = [0.2 if name == "opus" else 0.4 if name in HELD_OUT else 0.0 for name in PERTURBATIONS]
    found = of_perturbations(*rates, trained_with={"nuisances": trained, "attacks": []})
    assert found["nuisances.held_out_flip_rate"] == expected


def test_what_a_model_was_trained_with_is_read_from_its_record(tmp_path, monkeypatch):
    assert read_trained_with(str(tmp_path)) is None
    record = tmp_path / "run.json"
    write_provenance(record, arguments={"augmentations": ["channel", "speed"], "hard_negatives": ["silence"]})
    found = read_trained_with(str(tmp_path))
    assert found["attacks"] == ["silence"] and {"gain", "speed"} <= set(found["nuisances"])
    write_provenance(record, arguments={"train": "full"})
    assert read_trained_with(str(tmp_path)) == {"nuisances": [], "attacks": []}
    for text in ("{", '{"arguments": {"augmentations": ["none such"]}}'):
        record.write_text(text)
        assert read_trained_with(str(tmp_path)) is None
    # Of the package's own, of all stages.
    monkeypatch.setattr(models, "_find_small", str)
    assert set(read_trained_with(str(SMALL))["attacks"]) == {"foreign_ending", "foreign_transcript", "silence"}
