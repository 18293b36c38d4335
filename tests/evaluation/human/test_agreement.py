import json
import math

import pandas as pd
import pytest
from scipy.stats import t

from sdiareward.cli import main
from sdiareward.common.files import write_file
from sdiareward.esdr_accuracy.pairwise import wilson_interval
from sdiareward.evaluation.human.study import measure_raters, score_study, summarise_items


def truth(stratum, margin, chosen_is="a", subset="wild", group=None):
    labels = {"subset": subset, "pair_id": f"{stratum}{margin}", "group_id": group}
    return {"stratum": stratum, "margin": margin, "chosen_is": chosen_is, **labels}


KEY = {
    "study": "s1",
    "form": "dialogues",
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
ANSWERS = {"ann": "a b tie b", "bob": "a a b b", "cho": "tie"}


def write_answers(folder, answers):
    lines = [
        json.dumps({"rater": rater, "item": f"i{number}", "choice": choice, "heard": ["a", "b"]}) + "\n"
        for rater, choices in answers.items()
        for number, choice in enumerate(choices.split(), start=1)
    ]
    (folder / "answers.jsonl").write_text("".join(lines))


@pytest.fixture
def study(tmp_path):
    items = [{"item": item} for item in KEY["items"]]
    content = {"study": "s1", "form": "dialogues", "allow_tie": True, "items": items}
    (tmp_path / "study.json").write_text(json.dumps(content))
    (tmp_path / "key.json").write_text(json.dumps(KEY))
    write_answers(tmp_path, ANSWERS)
    return tmp_path


def rate(*strata, groups=None):
    """Return a row of Table 3 over items of one rater each, who agrees with 1 and not with 0."""
    rows = [{"stratum": stratum, "agreement": value} for stratum, values in enumerate(strata) for value in values]
    items = pd.DataFrame(rows).assign(margin=1.0, num_answers=1, num_cannot_tell=0, pair_id="x")
    return summarise_items(items.assign(group_id=[f"g{group}" for group in groups or range(len(items))]))


def test_agreement_is_the_mean_over_raters_then_over_items_and_overall_is_weighted_by_count(study):
    results = score_study(study)
    rows = {**results["strata"], "overall": results["overall"], **results["subsets"]}
    # i1: right, right, cannot tell: 5/6; i2: right, not: 1/2.
    expected = {
        "high": ((5 / 6 + 1 / 2) / 2, 1.5, (2, 5, 1)),
        "low": (1 / 4, 0.1, (1, 2, 1)),
        "wrong": (1.0, -0.5, (1, 2, 0)),
        "overall": ((5 / 6 + 1 / 2 + 1 / 4 + 1) / 4, 0.65, (4, 9, 2)),
        "scripted": ((1 / 4 + 1) / 2, -0.2, (2, 4, 1)),
        "wild": ((5 / 6 + 1 / 2) / 2, 1.5, (2, 5, 1)),
    }
    assert list(rows) == list(expected)
    for name, (agreement, margin, counts) in expected.items():
        row = rows[name]
        assert (row["agreement"], row["average_margin"]) == pytest.approx((agreement, margin)), name
        assert (row["num_items"], row["num_answers"], row["num_cannot_tell"]) == counts, name
    # ann and bob agree on i1 and i4 of four, ann and cho, bob and cho on none of one.
    assert results["inter_rater"]["percent_agreement"] == pytest.approx(2 / 6)
    unfinished = {"num_answered": 1, "num_missing": 3, "num_cannot_tell": 1, "num_not_heard": 0, "agreement": 0.5}
    assert results["raters"]["cho"] == unfinished


def test_the_last_answer_counts_files_may_be_joined_and_what_nobody_rated_is_left_out(study):
    write_answers(study, {"cho": "tie"})
    with (study / "answers.jsonl").open("a") as file:
        for record in ({"item": "i1", "choice": "a", "heard": ["a"]}, {"texts": {"consent": "yes"}}):
            file.write(json.dumps({"rater": "cho", **record}) + "\n")
    results = score_study(study)
    assert (results["num_rated"], results["num_items"], list(results["raters"])) == (1, 4, ["cho"])
    assert results["raters"]["cho"]["num_not_heard"] == results["strata"]["high"]["agreement"] == 1
    assert results["strata"]["low"]["agreement"] is None
    assert "| Low confidence | 0 | 0 | 0 | 0 | - | - | no interval | - |" in (study / "results.md").read_text()


def test_the_interval_is_wilsons_over_recordings_and_within_strata():
    # Sample variance 0.25, four items: as of 3 trials.
    z, found = t.ppf(0.975, 3), rate([1, 1, 0, 1])
    centre, half = (0.75 + z**2 / 6) / (1 + z**2 / 3), z * math.sqrt(0.75 * 0.25 / 3 + (z / 6) ** 2) / (1 + z**2 / 3)
    assert found["num_groups"] == 4 and found["interval"] == pytest.approx([centre - half, centre + half])
    # Two recordings of the same agreement are no certainty.
    low, high = rate([1, 0, 0, 1, 0, 0], groups=[0, 0, 0, 1, 1, 1])["interval"]
    assert low < 0.05 and high > 0.9 and rate([1, 0], groups=[0, 0])["interval"] is None
    # Without spread inside the strata the recordings are the trials, however far the strata are apart.
    assert rate([1, 1], [0, 0], groups=[0, 1, 0, 1])["interval"] == wilson_interval(0.5, 2)


def test_the_standard_errors_and_the_overall_agreement_are_what_the_paper_prints():
    strata = [[0.883] * 20, [0.783] * 20, [0.767] * 20, [0.933] * 15]
    printed = [round(100 * rate(stratum)["se_binomial"], 1) for stratum in strata]
    assert printed == [7.2, 9.2, 9.5, 6.5]
    row = rate(*strata)
    assert (round(100 * row["agreement"], 1), round(100 * row["se_binomial"], 1)) == (83.5, 4.3)


def as_answers(choices):
    rows = [
        {"rater": rater, "item": item, "choice": each} for rater in choices for item, each in choices[rater].items()
    ]
    return pd.DataFrame(rows)


def test_krippendorffs_alpha_of_his_own_example():
    """Two observers, ten units, binary (Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011, section A)."""
    raters = {"first": "0100000010", "second": "1110010000"}
    choices = {name: dict(enumerate("ab"[int(value)] for value in values)) for name, values in raters.items()}
    found = measure_raters(as_answers(choices))
    assert found["krippendorff_alpha"] == pytest.approx(1 - 19 * 4 / (14 * 6))
    assert found["percent_agreement"] == 0.6
    assert found["pairs"] == [{"raters": ["first", "second"], "num_items": 10, "num_equal": 6}]


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"ann": {"i1": "a"}, "bob": {"i2": "a"}}, "no item has answers of two raters"),
        ({"ann": {"i1": "a"}, "bob": {"i1": "a"}}, "all answers are the same"),
    ],
)
def test_alpha_is_left_undefined_with_a_reason(choices, reason):
    found = measure_raters(as_answers(choices))
    assert (found["krippendorff_alpha"], found["undefined"]) == (None, reason)


def test_the_command_prints_table_3_and_keeps_the_numbers_and_the_key_may_be_elsewhere(study, tmp_path, capsys):
    elsewhere = (study / "key.json").rename(tmp_path / "kept.json")
    assert main(["human", "score", str(study)]) == 2
    assert "name it with --key" in capsys.readouterr().err
    assert main(["human", "score", str(study), "--key", str(elsewhere)]) == 0
    printed = capsys.readouterr().out
    assert "| High confidence | 2 | 2 | 5 | 1 | 1.50 | 66.7 | 2.1-99.5 | ± 33.3 |" in printed
    assert "| Low confidence | 1 | 1 | 2 | 1 | 0.10 | 25.0 | no interval | ± 43.3 |" in printed
    assert "| **Overall (weighted)** | 4 | 4 | 9 | 2 | 0.65 | 64.6 |" in printed
    assert "| cho | 1 of 4 (incomplete) | 1 | 0 | 50.0 |" in printed
    assert "Fewer pairs than requested: wrong (1 of 5)." in printed
    assert (study / "results.md").read_text(encoding="utf-8") == printed
    assert json.loads((study / "results.json").read_text())["overall"]["num_answers"] == 9


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("answers.jsonl", '{"rater": "ann", "item": "i1", "choice": "c", "heard": []}\n', "does not belong to this"),
        ("answers.jsonl", "", "has no answers"),
        ("study.json", "{}", "study.json: not part of a study"),
        ("key.json", json.dumps({**KEY, "study": "s2"}), "is study s1, but the key is for s2"),
    ],
)
def test_what_belongs_to_no_study_is_refused_by_name(study, capsys, file, content, message):
    write_file(study / file, content)
    assert main(["human", "score", str(study)]) == 2
    assert message in capsys.readouterr().err
