import math

import numpy as np
import pytest

from sdiareward.esdr_accuracy.pairwise import COLUMNS, NO_SUBSET
from sdiareward.evaluation import summary
from sdiareward.evaluation.report import figures
from sdiareward.evaluation.report.sections import render_markdown
from sdiareward.evaluation.scores import Evaluation, find_disagreements
from sdiareward.evaluation.summary import ALL_LEFT_OUT, sum_timing, summarise


TIMING = sum_timing([{"num_pairs": 4, "audio_s": 20.0, "scoring_s": 2.0}])
CONFIG = {"model": "m", "dataset": "d", "split": "test"}


def label(number, subset="wild", synthesizer="known", group=None, source="made_up"):
    criterion = "colloquialness" if subset == "colloquialness" else "modality"
    about = {"pair_id": f"pair-{number}", "criterion": criterion, "subset": subset, "source": source}
    return {**about, "synthesizer": synthesizer, "group_id": group}


def scores(margins):
    sides = [{"chosen": margin, "rejected": None if margin is None else 0.0} for margin in margins]
    return {f"pair-{number}": each for number, each in enumerate(sides)}


def render(labels, by_scorer, heard=None, skipped=(), **options):
    """Return the numbers of an evaluation, its Markdown and the rows of the tables in it."""
    results = summarise(labels, by_scorer, heard, skipped, **{"num_bootstrap": 20, **options})
    text = render_markdown({**results, "timing": TIMING, "config": CONFIG})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return results, text, rows


def test_the_table_has_columns_with_pairs_and_ties_and_the_notes_name_what_is_missing():
    labels = [label(0), label(1, "wild", "new"), label(2, "scripted"), label(3, "colloquialness", "new")]
    by_scorer = {"model": scores([1, 1, -1, 1]), "text": scores([0, 0, 0, 1])}
    skipped = [{**label(9, "scripted"), "reason": "chosen, turn 0: cannot be decoded"}]
    results, text, rows = render(labels, by_scorer, {"known"}, skipped)
    cells = {row[0]: row[1:] for row in rows[:10]}
    assert len(cells["scorer"]) == 7 and "semi-wild" not in cells["scorer"]
    assert cells["pairs"] == ["2", "1", "3", "3", "1", "4", "4"]
    assert cells["model"] == ["100.00", "0.00", "66.67", "50.00", "100.00", "75.00", "75.00"]
    assert cells["skipped"] == ["0", "1", "1", "1", "0", "1", "1"]
    ties = "text baseline: 3 of 3 modality pairs tie; 50.00 if"
    assert all(note in text for note in ("No pairs of semi_wild", ties, "1 pairs were skipped"))
    assert "real-time factor 0.1000" in text and sum_timing([])["real_time_factor"] is None
    names = ("known", "new", "all seen in training", ALL_LEFT_OUT, "new", ALL_LEFT_OUT)
    expected = list(zip(names, (2, 1, 2, 1, 1, 1), strict=True))
    assert [(row["synthesizer"], row["num_pairs"]) for row in results["by_synthesizer"]] == expected
    assert text.count("new (held out)") == 2 and "known (held out)" not in text


def test_a_baseline_that_is_above_chance_is_pointed_out():
    labels = [label(number) for number in range(20)]
    _, text, _ = render(labels, {"model": scores([1] * 20), "acoustic": scores([1] * 20), "text": scores([0] * 20)})
    assert "- acoustic baseline: 100.00 on modality micro. It hears no words" in text and "hears nothing" not in text


@pytest.mark.parametrize("usable", [(), (0,), (0, 1, 2)])
def test_an_accuracy_of_no_usable_reward_is_absent_and_not_zero(usable):
    subsets = ("wild", "scripted", "colloquialness")
    labels = [label(number, subset) for number, subset in enumerate(subsets)]
    found = {f"pair-{n}": {"chosen": 1.0 if n in usable else None, "rejected": 0.0} for n in range(3)}
    results, _, rows = render(labels, {"model": found}, {"known"}, nan="wrong")
    accuracies = results["accuracies"]["model"]
    assert [accuracies[name] for name in subsets] == [1.0 if number in usable else None for number in range(3)]
    assert accuracies["overall_micro"] == (len(usable) / 3 or None)
    shown = [accuracies[name] for name in COLUMNS if name != "semi_wild"]
    assert rows[2][1:] == ["-" if value is None else f"{100 * value:.2f}" for value in shown]
    # An average over a column without an accuracy would count it as 0, or hide it.
    assert (accuracies["overall_macro"] is None) == (accuracies["modality_macro"] is None) == (len(usable) < 3)


def test_pairs_of_no_subset_count_in_the_micro_average_alone_and_their_ties_are_noted():
    labels = [label(0), label(1, "colloquialness"), label(2, NO_SUBSET), label(3, NO_SUBSET)]
    results, text, _ = render(labels, {"model": scores([1, 1, 0, -1])})
    found = results["accuracies"]["model"]
    assert (found["num_pairs"]["overall_micro"], found["num_pairs"]["overall_macro"]) == (4, 2)
    assert (found["num_correct"]["overall_macro"], found["num_ties"]["overall_macro"]) == (2, 0)
    assert "model: 1 of 2 pairs of no subset tie." in text


def test_across_voices_a_pair_is_held_out_if_one_of_them_is():
    names, heard = {"other+known", "new+known", "new", "other"}, {"known+other", "known"}
    assert summary.find_left_out(names, heard) == {"new+known", "new"}
    unknown = render([label(0, synthesizer=None)], {"model": scores([1])})[0]
    assert (unknown["left_out_synthesizers"], unknown["by_synthesizer"], unknown["by_held_out"]) == (None, [], [])


@pytest.mark.parametrize(("num_groups", "shown"), [(1, "50.00 (no interval)"), (2, "50.00 (5.2-94.8)")])
def test_intervals_by_synthesizer_are_over_groups_and_their_number_is_shown(num_groups, shown):
    labels = [label(number, group=f"recording {number % num_groups}") for number in range(40)]
    rows = render(labels, {"model": scores([1] * 20 + [-1] * 20)})[2]
    assert rows[-1] == ["modality", "known", "40", str(num_groups), shown]


def test_held_out_synthesizers_are_crossed_with_sources():
    places = [("new", "queen"), ("new", "queen"), ("new", "heard"), ("newer", "queen"), ("known", "queen")]
    labels = [label(number, "scripted", name, source=source) for number, (name, source) in enumerate(places)]
    options, everything = {"heard_sources": {"heard"}}, ALL_LEFT_OUT
    results, _, rows = render(labels, {"model": scores([1, -1, 1, 1, -1])}, {"known"}, **options)
    found = results["by_held_out"]
    assert results["left_out_sources"] == ["queen"]
    assert {(row["synthesizer"], row["source"]): (row["num_pairs"], row["model"]["accuracy"]) for row in found} == {
        ("new", "heard"): (1, 1.0),
        ("new", "queen"): (2, 0.5),
        ("new", everything): (2, 0.5),
        ("newer", "queen"): (1, 1.0),
        ("newer", everything): (1, 1.0),
        (everything, "heard"): (1, 1.0),
        (everything, "queen"): (3, 2 / 3),
        (everything, everything): (3, 2 / 3),
    }
    *_, head, _, _, newer, last = rows
    assert head[2:] == ["heard", "queen (held out)", "all held out of training"]
    low, high = (f"{100 * bound:.1f}" for bound in found[-1]["model"]["interval"])
    assert (last[1], last[4]) == ("all held out of training (model)", f"66.67 ({low}-{high}, 3 pairs, 3 recordings)")
    assert (newer[1], newer[2]) == ("newer (model)", "-") and newer[3].endswith(
        " (no interval, 1 pairs, 1 recordings)"
    )


def test_the_figure_is_drawn_for_constant_single_and_missing_values(tmp_path):
    generator = np.random.default_rng(0)
    records = [{"subset": "wild", "chosen": value, "rejected": -value} for value in generator.normal(1, 1, 50)]
    records += [{"subset": "scripted", "chosen": 1.0, "rejected": None}]
    records += [{"subset": "colloquialness", "chosen": 2.0, "rejected": 0.5}] * 3
    figures.plot_rewards(records, tmp_path / "rewards.png")
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["rewards.png"]


def other(margins):
    records = [{"pair_id": pair_id, **score} for pair_id, score in scores(margins).items()]
    return Evaluation("runs/b", records, {"config": {"judge": "b"}})


def test_pairs_that_exactly_one_has_right_have_both_margins_most_confident_first():
    # Right in: 0, 1, 4 here; 0, 2, 3 there. They differ in 1 to 4.
    labels, own = [label(number) for number in range(5)], scores([9.0, 0.5, -3.0, 0.0, 2.0])
    (found,) = find_disagreements(labels, own, [other([0.1, -0.4, 0.3, 0.05, 0.0])], "error")
    assert (found["title"], found["folder"], found["num_pairs"]) == ("judge b", "runs/b", 4)
    # Shares of smaller |margin|, of five pairs: here 4 1 3 0 2, there 2 4 3 1 0.
    expected = [("pair-2", 0.6, False), ("pair-1", 0.5, True), ("pair-4", 0.2, True), ("pair-3", 0.1, False)]
    rows = [(row["pair_id"], pytest.approx(row["confidence"]), row["is_right"]) for row in found["rows"]]
    assert rows == expected and (found["rows"][0]["margin"], found["rows"][0]["other_margin"]) == (-3.0, 0.3)
    # A pair without a reward is wrong and the least confident.
    broken = other([None, math.nan, 0.0])
    (found,) = find_disagreements(labels[:3], scores([0.1, 0.2, 0.3]), [broken], "wrong", count=2)
    assert found["num_pairs"] == 3
    assert [(row["pair_id"], row["other_margin"]) for row in found["rows"]] == [("pair-2", 0.0), ("pair-1", None)]
    with pytest.raises(ValueError, match="runs/b: 2 pairs have a missing or non-finite reward"):
        find_disagreements(labels[:3], scores([1, 1, 1]), [broken], "error")
    lacking = Evaluation("runs/b", broken.scores[:1], broken.results, [{"pair_id": "pair-1", "reason": "broken"}])
    with pytest.raises(ValueError, match=r"lacks 2 of 3 pairs, first: 'pair-1' \(skipped there: broken"):
        find_disagreements(labels[:3], scores([1, 1, 1]), [lacking], "error")
