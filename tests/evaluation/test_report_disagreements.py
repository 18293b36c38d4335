import json
import math
import re

import pytest
from support import report_world

from sdiareward.evaluation import summary
from sdiareward.evaluation.report import write_page
from sdiareward.evaluation.report.disagreements import find_disagreements
from sdiareward.evaluation.report.inputs import ComparedEvaluation
from sdiareward.evaluation.statistics import describe_share


pytestmark = pytest.mark.slow


def labels(count):
    return [{"pair_id": f"pair-{number}", "subset": "wild", "group_id": None} for number in range(count)]


def scores(margins):
    return {
        f"pair-{number}": {"chosen": margin, "rejected": None if margin is None else 0.0}
        for number, margin in enumerate(margins)
    }


def other(margins, name="judge b"):
    return ComparedEvaluation("runs/b", name, scores(margins), {})


def test_pairs_that_exactly_one_has_right_come_with_both_margins_most_confident_first():
    # Right in: 0, 1, 4 here; 0, 2, 3 there. They differ in 1 to 4.
    own, theirs = [9.0, 0.5, -3.0, 0.0, 2.0], [0.1, -0.4, 0.3, 0.05, 0.0]
    (found,) = find_disagreements(labels(5), scores(own), [other(theirs)], "error")
    assert (found["title"], found["folder"], found["num_pairs"]) == ("judge b", "runs/b", 4)
    # Shares of smaller |margin|, of five pairs: here 4 1 3 0 2, there 2 4 3 1 0.
    expected = [("pair-2", 0.6, False), ("pair-1", 0.5, True), ("pair-4", 0.2, True), ("pair-3", 0.1, False)]
    rows = found["rows"]
    assert [(row["pair_id"], row["confidence"], row["is_right"]) for row in rows] == [
        (name, pytest.approx(confidence), is_right) for name, confidence, is_right in expected
    ]
    assert [(row["margin"], row["other_margin"]) for row in rows[:2]] == [(-3.0, 0.3), (0.5, -0.4)]


def test_a_pair_without_a_reward_is_wrong_and_the_least_confident():
    (found,) = find_disagreements(labels(3), scores([0.1, 0.2, 0.3]), [other([None, math.nan, 0.0])], "wrong", count=2)
    assert (found["num_pairs"], len(found["rows"])) == (3, 2)
    assert [(row["pair_id"], row["other_margin"]) for row in found["rows"]] == [("pair-2", 0.0), ("pair-1", None)]
    with pytest.raises(ValueError, match="2 pairs have a reward that is missing"):
        find_disagreements(labels(3), scores([1, 1, 1]), [other([None, math.nan, 0.0])], "error")


def test_a_share_has_the_interval_of_its_recordings_and_wilsons_where_that_has_no_spread():
    groups = [f"group-{number // 2}" for number in range(20)]
    found = describe_share([True] * 5 + [False] * 15, groups, ["wild"] * 20, num_bootstrap=200, seed=0)
    assert (found["num_values"], found["share"]) == (20, 0.25)
    low, high = found["interval"]
    assert 0 <= low < 0.25 < high < 0.7
    certain = describe_share([True] * 20, groups, ["wild"] * 20, num_bootstrap=50)
    # Wilson's lower bound with ten recordings: 10 / (10 + 1.96 ** 2).
    assert certain["interval"] == pytest.approx([0.7225, 1.0], abs=1e-4)
    assert describe_share([], [], []) == {"num_values": 0, "share": None, "interval": None, "num_groups": 0}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Write the page of a judge that is compared with a model, some of its pairs without an answer."""
    pairs, labels, by_scorer = report_world.make_evaluation()
    judge_scores = {
        label["pair_id"]: {**by_scorer["model"][label["pair_id"]], "decided_by": "verdict"} for label in labels
    }
    judge_scores["pair-05"] = {"chosen": None, "rejected": None, "margin": None, "decided_by": "failed"}
    model = ComparedEvaluation("runs/model", "checkpoints/tiny", report_world.make_scores(labels, 7, 0.5), {})
    results = report_world.make_results(labels, {"model": judge_scores}, nan="wrong")
    results["config"] |= {"model": None, "judge": "ear"}
    results["judge"] = judge = report_world.make_judge()
    results["disagreements"] = find_disagreements(labels, judge_scores, [model], "wrong")
    page = write_page(
        tmp_path_factory.mktemp("judged"), results, pairs, labels, {"model": judge_scores}, others=[model]
    )
    return results, judge, page


def words_of(path):
    from html.parser import HTMLParser

    words = []
    parser = HTMLParser()
    parser.handle_data = words.append
    parser.feed(path.read_text())
    return " ".join(" ".join(words).split())


def test_the_page_of_a_judge_says_how_it_decided_and_where_it_differs(judged):
    results, _, page = judged
    words = words_of(page)
    for expected in ("The judge heard every pair twice", "−25.0", "0.12 US dollars", "I <can't>.", "Retries: 4."):
        assert expected in words, expected
    found = results["disagreements"][0]
    assert f"{found['num_pairs']} of 48 pairs; {len(found['rows'])} of them are here." in words
    assert "With checkpoints/ tiny" in words
    assert "judge ear" in words
    report = json.loads((page.parent / "report.json").read_text())
    assert report["model"] == "judge ear"
    (entry,) = report["disagreements"]
    assert entry["scorer"] == "compared_1"
    assert [row["pair_id"] for row in entry["rows"]] == [row["pair_id"] for row in found["rows"]]
    assert entry["rows"][0]["chosen"][0]["clips"][0]["clip"]
    assert {"margin", "other_margin", "confidence", "is_right"} <= set(entry["rows"][0])
    assert any("judge: 1 of 48 pairs got no usable answer" in note for note in report["notes"])


def test_the_page_of_a_model_alone_has_neither_section(tmp_path):
    pairs, labels, scores = report_world.make_evaluation(license="unknown")
    page = write_page(tmp_path, report_world.make_results(labels, scores), pairs, labels, scores)
    text = page.read_text()
    assert 'id="judge"' not in text and 'id="disagreements"' not in text
    assert 'href="#judge"' not in text and 'href="#disagreements"' not in text


def test_two_that_are_right_and_wrong_together_are_said_to_agree(tmp_path):
    pairs, labels, scores = report_world.make_evaluation(license="unknown")
    twin = ComparedEvaluation("runs/twin", "twin", scores["model"], {})
    page = write_page(tmp_path, report_world.make_results(labels, scores), pairs, labels, scores, others=[twin])
    assert "None: of every pair, both are right or both are wrong." in words_of(page)


def test_the_markdown_has_the_judge_and_the_disagreements_too(judged):
    results, judge, _ = judged
    text = summary.render_report(results)
    assert text.startswith("# judge ear on made/up, split test")
    assert "96 answers (95 usable, 1 refused) in 99 replies: 9600 tokens in, 960 out, 0.12 US dollars." in text
    assert re.search(r"\| position bias +\| -25.0 \(-40.0 to -10.0\) \|", text)
    assert "## Disagreements with checkpoints/tiny (runs/model)" in text
    first = results["disagreements"][0]["rows"][0]
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first['pair_id']} ")]
    assert f"{first['margin']:+.3f}" in line and f"{first['other_margin']:+.3f}" in line


def test_a_judge_of_single_answers_has_no_orders(judged):
    judge = {**report_world.make_judge(), "kind": "pointwise", "usd": None}
    judge["groups"] = [{key: judge["groups"][0][key] for key in ("criterion", "num_pairs", "decided_by", "ties")}]
    text = summary.render_judge(judge)
    assert "position bias" not in text and "dollars" not in text
