import json
import math

import pytest
from scipy.stats import t

from sdiareward.cli import main
from sdiareward.esdr_accuracy.pairwise import wilson_interval
from sdiareward.evaluation.human.agreement import (
    RatedItem,
    measure_raters,
    render_study,
    score_study,
    summarise_items,
)


def truth(stratum, margin, chosen_is="a", subset="wild", group=None):
    return {
        "stratum": stratum,
        "margin": margin,
        "chosen_is": chosen_is,
        "subset": subset,
        "pair_id": f"{stratum}{margin}",
        "group_id": group,
    }


KEY = {
    "study": "s1",
    "seed": 0,
    "asked": {"high": 2, "low": 1, "random": 0, "wrong": 5},
    "drawn": {"high": 2, "low": 1, "random": 0, "wrong": 1},
    "items": {
        "i1": truth("high", 2.0, "a"),
        "i2": truth("high", 1.0, "b"),
        "i3": truth("low", 0.1, "a", "scripted"),
        "i4": truth("wrong", -0.5, "b", "scripted"),
    },
}
ANSWERS = {
    "ann": {"i1": "a", "i2": "b", "i3": "tie", "i4": "b"},
    "bob": {"i1": "a", "i2": "a", "i3": "b", "i4": "b"},
    "cho": {"i1": "tie"},
}


@pytest.fixture
def study(tmp_path):
    (tmp_path / "answers").mkdir()
    (tmp_path / "study.json").write_text(json.dumps({"study": "s1", "allow_tie": True, "items": []}))
    (tmp_path / "key.json").write_text(json.dumps(KEY))
    for rater, choices in ANSWERS.items():
        records = [{"item": item, "choice": choice, "heard": ["a", "b"]} for item, choice in choices.items()]
        (tmp_path / "answers" / f"{rater}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def rated(values, groups=None):
    """Return items of one rater each, who agrees with 1, not with 0 and cannot tell with 0.5."""
    choices = {1: "a", 0: "b", 0.5: "tie"}
    pairs = zip(values, groups or range(len(values)), strict=True)
    return [RatedItem(truth("high", 1.0, group=f"g{group}"), [choices[value]]) for value, group in pairs]


def test_agreement_is_the_mean_over_raters_then_over_items_and_overall_is_weighted_by_count(study):
    results = score_study(study)
    high, low, wrong = (results["strata"][name] for name in ("high", "low", "wrong"))
    # i1: right, right, cannot tell: 5/6; i2: right, not: 1/2.
    assert high["agreement"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert low["agreement"] == pytest.approx((0.5 + 0.0) / 2)
    assert wrong["agreement"] == 1.0
    assert [row["average_margin"] for row in (high, low, wrong)] == pytest.approx([1.5, 0.1, -0.5])
    assert (high["num_items"], high["num_answers"], high["num_cannot_tell"]) == (2, 5, 1)
    assert "random" not in results["strata"]
    overall, subsets = results["overall"], results["subsets"]
    assert overall["agreement"] == pytest.approx((5 / 6 + 1 / 2 + 1 / 4 + 1) / 4)
    assert overall["average_margin"] == pytest.approx((2.0 + 1.0 + 0.1 - 0.5) / 4)
    assert (overall["num_items"], overall["num_answers"], overall["num_cannot_tell"]) == (4, 9, 2)
    assert list(subsets) == ["scripted", "wild"]
    assert subsets["scripted"]["agreement"] == pytest.approx((1 / 4 + 1) / 2)


def test_a_rater_who_did_not_finish_counts_and_is_named(study):
    results = score_study(study)
    assert results["raters"]["cho"] == {
        "num_answered": 1,
        "num_missing": 3,
        "num_cannot_tell": 1,
        "num_not_heard": 0,
        "agreement": 0.5,
    }
    assert results["raters"]["bob"]["agreement"] == 0.5
    assert "| cho | 1 of 4 (incomplete) | 1 | 0 | 50.0 |" in render_study(results)


def test_an_item_that_nobody_rated_is_left_out_and_counted(study):
    for name in ("ann", "bob"):
        (study / "answers" / f"{name}.jsonl").unlink()
    results = score_study(study)
    assert (results["num_rated"], results["num_items"]) == (1, 4)
    assert results["strata"]["low"]["agreement"] is None
    assert "| Low confidence | 0 | 0 | 0 | 0 | - | - | - | - |" in render_study(results)


def test_the_last_answer_to_an_item_counts(study):
    with (study / "answers" / "bob.jsonl").open("a") as file:
        file.write(json.dumps({"item": "i2", "choice": "b", "heard": ["a"]}) + "\n")
    results = score_study(study)
    assert results["strata"]["high"]["agreement"] == pytest.approx((5 / 6 + 1) / 2)
    assert results["raters"]["bob"]["num_not_heard"] == 1


def test_the_interval_is_wilsons_with_the_variance_of_the_items_and_students_quantile():
    # Sample variance 0.25, four items: as of 3 trials.
    z, found = t.ppf(0.975, 3), summarise_items([rated([1, 1, 0, 1])])
    centre, half = (0.75 + z**2 / 6) / (1 + z**2 / 3), z * math.sqrt(0.75 * 0.25 / 3 + (z / 6) ** 2) / (1 + z**2 / 3)
    assert found["num_groups"] == 4
    assert found["interval"] == pytest.approx([centre - half, centre + half])


def test_items_of_one_recording_count_as_one_cluster():
    few, many = (summarise_items([rated([1, 1, 0, 0], groups)])["interval"] for groups in ([0, 0, 1, 1], None))
    assert few[1] - few[0] > 0.99 > 0.9 > many[1] - many[0]
    # Two recordings of the same agreement are no certainty either.
    low, high = summarise_items([rated([1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 1])])["interval"]
    assert low < 0.05 and high > 0.9
    assert summarise_items([rated([1, 0], [0, 0])])["interval"] is None


def test_the_overall_interval_is_within_strata():
    # Without spread inside the strata the recordings are the trials, however far the strata are apart.
    found = summarise_items([rated([1, 1]), rated([0, 0])])
    assert found["interval"] == wilson_interval(0.5, 2)


@pytest.mark.parametrize(
    ("agreement", "num_items", "printed"),
    [(0.883, 20, 7.2), (0.783, 20, 9.2), (0.767, 20, 9.5), (0.933, 15, 6.5), (0.835, 75, 4.3)],
)
def test_the_binomial_standard_error_is_what_the_paper_prints(agreement, num_items, printed):
    """A thousand raters make up any agreement of three digits; what is tested is the formula, over items."""
    raters = 1000
    choices = ["a"] * round(agreement * raters) + ["b"] * round((1 - agreement) * raters)
    row = summarise_items([[RatedItem(truth("high", 1.0, group=f"g{n}"), choices) for n in range(num_items)]])
    assert round(100 * row["se_binomial"], 1) == printed


def test_the_weighted_overall_of_the_paper_follows_from_its_strata():
    table = [(20, 0.883, 1.65), (20, 0.783, 0.06), (20, 0.767, 0.77), (15, 0.933, -0.19)]
    strata = []
    for count, agreement, margin in table:
        choices = ["a"] * round(1000 * agreement) + ["b"] * round(1000 - 1000 * agreement)
        strata.append([RatedItem(truth("high", margin, group="g"), choices)] * count)
    row = summarise_items(strata)
    assert (round(100 * row["agreement"], 1), round(row["average_margin"], 2)) == (83.5, 0.62)


def test_krippendorffs_alpha_of_his_own_example():
    """Two observers, ten units, binary (Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011, section A)."""
    first, second = "0100000010", "1110010000"
    choices = {
        name: {f"unit {index}": "ab"[int(value)] for index, value in enumerate(values)}
        for name, values in (("first", first), ("second", second))
    }
    found = measure_raters(choices)
    assert found["krippendorff_alpha"] == pytest.approx(1 - 19 * 4 / (14 * 6))
    assert found["percent_agreement"] == 0.6
    assert found["pairs"] == [{"raters": ["first", "second"], "num_items": 10, "num_equal": 6}]


def test_who_cannot_tell_gives_an_answer_of_its_own_to_the_agreement_among_raters(study):
    among = score_study(study)["inter_rater"]
    # ann and bob agree on i1 and i4 of four, ann and cho, bob and cho on none of one.
    assert among["percent_agreement"] == pytest.approx(2 / 6)
    assert among["krippendorff_alpha"] < 0.3


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"ann": {"i1": "a"}}, "no item has answers of two raters"),
        ({"ann": {"i1": "a"}, "bob": {"i2": "a"}}, "no item has answers of two raters"),
        ({"ann": {"i1": "a"}, "bob": {"i1": "a"}}, "all answers are the same"),
    ],
)
def test_alpha_is_left_undefined_with_a_reason(choices, reason):
    found = measure_raters(choices)
    assert (found["krippendorff_alpha"], found["undefined"]) == (None, reason)


def test_the_command_prints_table_3_and_keeps_the_numbers(study, capsys):
    assert main(["human", "score", str(study)]) == 0
    printed = capsys.readouterr().out
    assert "| High confidence | 2 | 2 | 5 | 1 | 1.50 | 66.7 | 2.1-99.5 | ± 33.3 |" in printed
    assert "| Low confidence | 1 | 1 | 2 | 1 | 0.10 | 25.0 | no interval | ± 43.3 |" in printed
    assert "| **Overall (weighted)** | 4 | 4 | 9 | 2 | 0.65 | 64.6 |" in printed
    assert "Fewer pairs than asked for: wrong (1 of 5)." in printed
    assert (study / "results.md").read_text(encoding="utf-8") == printed
    assert json.loads((study / "results.json").read_text())["overall"]["num_answers"] == 9


def test_the_key_may_lie_elsewhere(study, tmp_path_factory, capsys):
    elsewhere = (study / "key.json").rename(tmp_path_factory.mktemp("safe") / "key.json")
    assert main(["human", "score", str(study)]) == 2
    assert "name it with --key" in capsys.readouterr().err
    assert main(["human", "score", str(study), "--key", str(elsewhere)]) == 0


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("answers/ann.jsonl", '{"item": "i9", "choice": "a"}\n', "is no answer to this study"),
        ("answers/ann.jsonl", '{"item": "i1", "choice": "c"}\n', "is no answer to this study"),
        ("answers/ann.jsonl", "a\n", "line 1: not JSON"),
        ("key.json", json.dumps({**KEY, "study": "s2"}), "is study s1, the key is of s2"),
    ],
)
def test_what_belongs_to_no_study_is_refused_by_name(study, capsys, file, content, message):
    (study / file).write_text(content)
    assert main(["human", "score", str(study)]) == 2
    assert message in capsys.readouterr().err
