import json
import re

import pytest
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
    for key in (*DIMENSIONS[criterion], "scores", "overall_preference", "reason"):
        assert f'"{key}"' in form
    assert DIMENSIONS[criterion] == judge_world.DIMENSIONS[criterion]
    assert len({PromptSet().compute_version(*names) for names in PROMPTS.values()}) == len(PROMPTS)


def test_a_valid_answer_is_parsed_without_repairs():
    found = read_text(json.dumps(verdict("B", "colloquialness", 2, 5)), "colloquialness")
    assert found.preference == "B"
    assert set(found.scores.values()) == {(2, 5)}
    assert (found.sum_scores("A"), found.sum_scores("B")) == (10, 25)
    assert (found.reason, found.repairs, found.is_contradictory) == ("It is how it sounds.", (), False)


def by_version(answer):
    scores = {version: {name: both[version] for name, both in answer["scores"].items()} for version in "AB"}
    return {**answer, "scores": scores}


@pytest.mark.parametrize(
    ("text", "repair"),
    [
        ("Here you are:\n" + json.dumps(verdict("A")) + "\nI hope it helps.", "text around the JSON"),
        ("```json\n" + json.dumps(verdict("A")) + "\n```", "text around the JSON"),
        (json.dumps([verdict("A")]), "text around the JSON"),
        (json.dumps(by_version(verdict("A"))), "scores by version"),
        (json.dumps(verdict("A", first="4")), "a score that was no whole number by its type"),
        (json.dumps(verdict("A", first=4.0)), "a score that was no whole number by its type"),
        (json.dumps(verdict("Version A")), "a preference in other words"),
        (json.dumps(verdict("a")), "a preference in other words"),
        (json.dumps({**verdict("A"), "reason": None}), "no reason"),
        (json.dumps({key: value for key, value in verdict("A").items() if key != "reason"}), "no reason"),
    ],
)
def test_clear_errors_of_form_are_repaired_and_recorded(text, repair):
    found = read_text(text, "modality")
    assert found.repairs == (repair,)
    assert (found.preference, found.sum_scores("A"), found.sum_scores("B")) == ("A", 12, 6)


def without(answer, dimension):
    return {**answer, "scores": {name: both for name, both in answer["scores"].items() if name != dimension}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1], "must be a JSON object"),
        ({"overall_preference": "A", "reason": ""}, "must be a JSON object with 'scores'"),
        ({"scores": verdict("A")["scores"]}, "lacks \\['overall_preference'\\]"),
        (without(verdict("A"), "final_turn_content"), "'scores' lacks \\['final_turn_content'\\]"),
        (verdict("A", "colloquialness"), "'scores' lacks"),
        ({**verdict("A"), "confidence": 0.9}, "the answer has \\['confidence'\\], which nobody asked for"),
        ({**verdict("A"), "scores": {**verdict("A")["scores"], "humour": {"A": 1, "B": 2}}}, "has \\['humour'\\]"),
        ({**verdict("A"), "scores": dict.fromkeys(DIMENSIONS["modality"], 3)}, "'final_turn_content' is 3"),
        ({**verdict("A"), "scores": dict.fromkeys(DIMENSIONS["modality"], {"A": 3})}, "lacks \\['B'\\]"),
        ({**verdict("A"), "scores": dict.fromkeys(DIMENSIONS["modality"], {"A": 3, "C": 3})}, "lacks \\['B'\\]"),
        ({**verdict("A"), "scores": {"A": 4, "B": 2}}, "must hold the dimensions"),
        (verdict("A", first=7), "of version A is 7"),
        (verdict("A", second=0), "of version B is 0"),
        (verdict("A", first=3.5), "of version A is 3.5"),
        (verdict("A", first=True), "of version A is True"),
        (verdict("A", first="four"), "of version A is 'four'"),
        (verdict("both"), "'overall_preference' is 'both'"),
        (verdict(None), "'overall_preference' is None"),
    ],
)
def test_missing_or_wrong_scores_and_preferences_are_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        read_verdict(answer, "modality")


def test_an_answer_that_was_cut_off_is_refused():
    whole = json.dumps(verdict("A"))
    with pytest.raises(ValueError, match="not complete"):
        read_text(whole[:-20], "modality")
    with pytest.raises(ValueError, match="cut off at the token limit"):
        read_text(f"Sure: {whole} and", "modality", is_cut=True)


def test_a_refusal_is_recognised_by_its_beginning():
    refusals = ["I'm sorry, but I can't listen to audio.", "I’m sorry, but I can’t help with that."]
    refusals += ["Sorry, I cannot judge this.", "Unfortunately, I am unable to process recordings."]
    refusals += ["As an AI language model, I have no ears.", "I can't compare these."]
    others = ["Version A is better; sorry, B.", "", "I prefer A.", "A sounds like an AI."]
    assert [text for text in (*refusals, *others) if is_refusal(text)] == refusals


def test_a_preference_that_contradicts_the_scores_is_kept_and_noted():
    found = read_verdict(verdict("B", first=5, second=1), "modality")
    assert (found.preference, found.is_contradictory) == ("B", True)
    assert not read_verdict(verdict("B", first=3, second=3), "modality").is_contradictory


def answer(preference, first, second, dimensions=3):
    """Return a usable answer with the same scores in every dimension."""
    return Answer(Verdict(preference, {f"d{number}": (first, second) for number in range(dimensions)}))


@pytest.mark.parametrize(
    ("chosen_first", "rejected_first", "expected"),
    [
        # Both name the chosen side: (4 + 5) / 2 against (2 + 1) / 2.
        (("A", 4, 2), ("B", 1, 5), (4.5, 1.5, "verdict")),
        # Both name the rejected side.
        (("B", 2, 4), ("A", 4, 2), (2.0, 4.0, "verdict")),
        # Both name the chosen side, whose scores are lower, or the same: the sign is the verdict's.
        (("A", 2, 4), ("B", 4, 2), (3 + VERDICT_MARGIN / 2, 3 - VERDICT_MARGIN / 2, "verdict")),
        (("A", 3, 3), ("B", 3, 3), (3 + VERDICT_MARGIN / 2, 3 - VERDICT_MARGIN / 2, "verdict")),
        (("B", 3, 3), ("A", 3, 3), (3 - VERDICT_MARGIN / 2, 3 + VERDICT_MARGIN / 2, "verdict")),
        # They name different sides: the scores decide, or nothing does.
        (("A", 4, 2), ("A", 3, 3), (3.5, 2.5, "scores")),
        (("A", 4, 2), ("A", 4, 2), (3.0, 3.0, "tie")),
        (("B", 2, 3), ("B", 2, 4), (3.0, 2.5, "scores")),
    ],
)
def test_the_verdict_decides_if_both_orders_agree_else_the_scores(chosen_first, rejected_first, expected):
    found = decide({"chosen_first": answer(*chosen_first), "rejected_first": answer(*rejected_first)})
    assert (found.chosen, found.rejected, found.decided_by) == (
        pytest.approx(expected[0]),
        pytest.approx(expected[1]),
        expected[2],
    )


def test_the_verdict_margin_is_smaller_than_any_difference_of_scores():
    one = {f"d{number}": (3, 3) for number in range(4)} | {"d4": (4, 3)}
    found = decide({"chosen_first": Answer(Verdict("A", one)), "rejected_first": answer("A", 3, 3, 5)})
    assert found.decided_by == "scores"
    assert VERDICT_MARGIN < found.chosen - found.rejected == pytest.approx(0.1)


def test_a_pair_with_one_answer_has_no_reward():
    failed = Answer(None, "I cannot.", "refused", "refused")
    found = decide({"chosen_first": answer("A", 4, 2), "rejected_first": failed})
    assert found.as_record() == {"chosen": None, "rejected": None, "margin": None, "decided_by": "failed"}


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


GUIDE = ROOT / "docs" / "judges.md"


def test_the_guide_lists_every_judge_and_setting_and_its_python_runs():
    import dataclasses

    import yaml

    guide = GUIDE.read_text()
    for name in yaml.safe_load(JUDGES_FILE.read_text()):
        assert f"`{name}`" in guide, name
    for backend in BACKENDS.values():
        for field in dataclasses.fields(backend):
            assert f"`{field.name}`" in guide, field.name
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    found = {}
    exec(compile(example, "judges.md", "exec"), found)
    assert found["found"].decided_by == "tie"
