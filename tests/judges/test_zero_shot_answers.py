import dataclasses
import json
import re

import pytest
import yaml
from support import judge_world
from support.judge_world import verdict
from support.paths import ROOT

from sdiareward.judges.settings import JUDGES_FILE
from sdiareward.judges.zero_shot.answers import (
    DIMENSIONS,
    PROMPTS,
    VERDICT_MARGIN,
    Answer,
    Verdict,
    decide,
    is_refusal,
    read_text,
    read_verdict,
)
from sdiareward.judges.zero_shot.judging import find_criterion
from sdiareward.judges.zero_shot.settings import BACKENDS
from sdiareward.pairs.prompts import PromptSet


@pytest.mark.parametrize("criterion", DIMENSIONS)
def test_the_prompts_name_every_key_of_a_valid_answer(criterion):
    system, _ = map(PromptSet().fill, PROMPTS[criterion])
    form = system[system.index("{") :]
    assert all(f'"{key}"' in form for key in (*DIMENSIONS[criterion], "scores", "overall_preference", "reason"))
    assert DIMENSIONS[criterion] == judge_world.DIMENSIONS[criterion]


def by_version(answer):
    scores = {version: {name: both[version] for name, both in answer["scores"].items()} for version in "AB"}
    return {**answer, "scores": scores}


SAID = json.dumps(verdict("A"))


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        (SAID, ()),
        (f"Here you are:\n{SAID}\nI hope it helps.", ("text around the JSON",)),
        (f"```json\n{SAID}\n```", ("text around the JSON",)),
        (f"[{SAID}]", ("text around the JSON",)),
        (json.dumps(by_version(verdict("A"))), ("scores by version",)),
        (json.dumps(verdict("A", first="4")), ("a score that was no whole number by its type",)),
        (json.dumps(verdict("A", first=4.0)), ("a score that was no whole number by its type",)),
        (json.dumps(verdict("Version A")), ("a preference in other words",)),
        (json.dumps(verdict("a")), ("a preference in other words",)),
        (json.dumps({**verdict("A"), "reason": None}), ("no reason",)),
        (json.dumps({key: value for key, value in verdict("A").items() if key != "reason"}), ("no reason",)),
    ],
)
def test_a_valid_answer_is_parsed_and_clear_errors_of_form_are_repaired_and_recorded(text, repairs):
    found = read_text(text, "modality")
    assert found.repairs == repairs
    assert (found.preference, found.sum_scores("A"), found.sum_scores("B")) == ("A", 12, 6)
    assert found.reason == ("" if "no reason" in repairs else "It is how it sounds.")


def with_scores(**changes):
    answer = verdict("A")
    scores = {**answer["scores"], **changes}
    return {**answer, "scores": {name: both for name, both in scores.items() if both is not None}}


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([1], "dictionary"),
        ({"overall_preference": "A", "reason": ""}, "scores"),
        ({"scores": verdict("A")["scores"]}, "overall_preference"),
        (with_scores(final_turn_content=None), "final_turn_content"),
        (verdict("A", "colloquialness"), "final_turn_content"),
        ({**verdict("A"), "confidence": 0.9}, "confidence"),
        (with_scores(humour={"A": 1, "B": 2}), "humour"),
        (with_scores(final_turn_content=3), "final_turn_content is 3"),
        (with_scores(final_turn_content={"A": 3}), "final_turn_content.B"),
        (with_scores(final_turn_content={"A": 3, "B": 3, "C": 3}), "final_turn_content.C"),
        ({**verdict("A"), "scores": {"A": 4, "B": 2}}, "scores"),
        *((verdict("A", first=bad), f"A is {bad!r}") for bad in (7, 0, 3.5, True, "four")),
        (verdict("both"), "overall_preference is 'both'"),
        (verdict(None), "overall_preference is None"),
    ],
)
def test_missing_or_wrong_scores_and_preferences_are_refused(answer, named):
    with pytest.raises(ValueError, match=named):
        read_verdict(answer, "modality")


@pytest.mark.parametrize(("text", "is_cut"), [(SAID[:-20], False), (f"Sure: {SAID} and", True)])
def test_an_answer_that_was_cut_off_is_refused(text, is_cut):
    with pytest.raises(ValueError, match="not complete|cut off"):
        read_text(text, "modality", is_cut=is_cut)


def test_a_refusal_is_recognised_by_its_beginning():
    refusals = ["I'm sorry, but I can't listen to audio.", "I’m sorry, but I can’t help with that."]
    refusals += ["Sorry, I cannot judge this.", "Unfortunately, I am unable to process recordings."]
    refusals += ["As an AI language model, I have no ears.", "I can't compare these."]
    others = ["Version A is better; sorry, B.", "", "I prefer A.", "A sounds like an AI."]
    assert [text for text in (*refusals, *others) if is_refusal(text)] == refusals


def answer(preference, first, second, dimensions=3):
    """Return a usable answer with the same scores in every dimension."""
    return Answer(Verdict(preference, {f"d{number}": (first, second) for number in range(dimensions)}))


def test_a_preference_that_contradicts_the_scores_is_noted():
    found = [answer("B", *scores).verdict.is_contradictory for scores in ((5, 1), (3, 3), (1, 5))]
    assert found == [True, False, False]


HALF = VERDICT_MARGIN / 2


@pytest.mark.parametrize(
    ("chosen_first", "rejected_first", "expected"),
    [
        # Both name the chosen side: (4 + 5) / 2 against (2 + 1) / 2.
        (answer("A", 4, 2), answer("B", 1, 5), (4.5, 1.5, "verdict")),
        # Both name the rejected side.
        (answer("B", 2, 4), answer("A", 4, 2), (2.0, 4.0, "verdict")),
        # Both name the chosen side, whose scores are lower, or the same: the sign is the verdict's.
        (answer("A", 2, 4), answer("B", 4, 2), (3 + HALF, 3 - HALF, "verdict")),
        (answer("A", 3, 3), answer("B", 3, 3), (3 + HALF, 3 - HALF, "verdict")),
        (answer("B", 3, 3), answer("A", 3, 3), (3 - HALF, 3 + HALF, "verdict")),
        # They name different sides: the scores decide, or nothing does.
        (answer("A", 4, 2), answer("A", 3, 3), (3.5, 2.5, "scores")),
        (answer("A", 4, 2), answer("A", 4, 2), (3.0, 3.0, "tie")),
        (answer("B", 2, 3), answer("B", 2, 4), (3.0, 2.5, "scores")),
        (answer("A", 4, 2), Answer(None, "I cannot.", "refused", "refused"), (None, None, "failed")),
    ],
)
def test_the_verdict_decides_if_both_orders_agree_else_the_scores(chosen_first, rejected_first, expected):
    found = decide({"chosen_first": chosen_first, "rejected_first": rejected_first})
    assert (found["chosen"], found["rejected"], found["decided_by"]) == pytest.approx(expected)
    assert found["margin"] == (None if expected[0] is None else pytest.approx(expected[0] - expected[1]))


def test_the_verdict_margin_is_smaller_than_any_difference_of_scores():
    one = {f"d{number}": (3, 3) for number in range(4)} | {"d4": (4, 3)}
    found = decide({"chosen_first": Answer(Verdict("A", one)), "rejected_first": answer("A", 3, 3, 5)})
    assert found["decided_by"] == "scores"
    assert VERDICT_MARGIN < found["margin"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("criterion", "subset", "expected"),
    [
        ("modality", "wild", "modality"),
        ("colloquialness", "colloquialness", "colloquialness"),
        ("joint", "scripted", "modality"),
        ("joint", "colloquialness", "colloquialness"),
    ],
)
def test_the_subset_decides_the_criterion_of_a_pair_of_the_released_form(criterion, subset, expected):
    assert find_criterion({"criterion": criterion, "subset": subset}) == expected


def test_the_guide_lists_every_judge_and_setting_and_its_python_runs():
    guide = (ROOT / "docs" / "judges.md").read_text()
    fields = {field.name for backend in BACKENDS.values() for field in dataclasses.fields(backend)}
    names = {*yaml.safe_load(JUDGES_FILE.read_text()), *fields}
    assert [name for name in names if f"`{name}`" not in guide] == []
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    found = {}
    exec(compile(example, "judges.md", "exec"), found)
    assert found["found"]["decided_by"] == "tie"
