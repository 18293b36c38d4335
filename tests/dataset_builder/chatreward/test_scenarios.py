import copy
import json
import re
from collections import Counter

import pytest
from support.chat_server import ChatServer

from sdiareward.dataset_builder.chatreward import scenarios
from sdiareward.dataset_builder.chatreward.scenarios import CATEGORIES, PARTS, ScenarioSettings, write_scenarios


BUNDLED = scenarios.read_scenarios()
ROWS = {scenario.scenario_id: scenario.as_row() for scenario in BUNDLED}


def test_the_bundled_scenarios_have_the_shares_of_the_paper_and_test_gets_its_share_of_every_attribute():
    counts = Counter(scenario.part for scenario in BUNDLED)
    assert {part: count / 140 for part, count in counts.items()} == PARTS
    assert {scenario.topic for scenario in BUNDLED} == set(scenarios.TOPICS)
    for texts in ({each.question.text for each in BUNDLED}, {each.answers[1].text for each in BUNDLED}):
        assert len(texts) == len(BUNDLED) == 140
    splits = scenarios.assign_splits(BUNDLED, test=0.15, seed=0)
    assert Counter(splits.values()) == {"train": 119, "test": 21}
    for attribute in (*CATEGORIES, None):
        own = [splits[scenario.scenario_id] for scenario in BUNDLED if scenario.attribute == attribute]
        assert "test" in own and abs(own.count("test") - 0.15 * len(own)) <= 1
    again, other = (scenarios.assign_splits(BUNDLED[::-1], test=0.15, seed=seed) for seed in (0, 1))
    assert again == splits != other


@pytest.mark.parametrize(
    ("scenario_id", "path", "value", "problem"),
    [
        ("content-text-01", "part", "small_talk", "part is 'small_talk'"),
        ("content-text-01", "question/category", "happy", "heard as 'neutral'"),
        ("content-text-01", "answers/1/text", "so " * 36, "answer 1 has 36 words"),
        ("content-text-01", "answers/1/text", ROWS["content-text-01"]["answers"]["5"]["text"], "off topic"),
        ("content-text-01", "answers", {"5": {"text": "Yes."}}, "they must be "),
        ("generation-emotion-01", "answers/3/category", "surprised", "differ clearly from 'happy'"),
        ("generation-emotion-01", "answers/5/category", "sad", "answer 5 has the category 'sad'"),
        ("generation-emotion-01", "answers/5/tone", "sad", "answers.5.tone"),
        ("generation-emotion-01", "question/text", "Tell him about the sea.", "does not name 'happy'"),
        ("understanding-speed-01", "question/category", "slow", "heard as 'fast'"),
        ("understanding-speed-01", "answers/3/text", "Fast or slow?", r"names \['slow', 'fast'\]"),
        ("implicit-emotion-01", "question/text", "I am so happy!", r"names \['happy'\]"),
        ("implicit-audio-01", "question/text", "Is that thunder?", r"names \['thunder'\]"),
        ("understanding-audio-01", "part", "generation", "'audio'"),
    ],
)
def test_a_broken_rule_names_the_scenario_and_the_value(scenario_id, path, value, problem):
    changed = row = copy.deepcopy(ROWS[scenario_id])
    *parents, last = path.split("/")
    for name in parents:
        changed = changed[name]
    changed[last] = value
    with pytest.raises(ValueError, match=rf"scenario '{scenario_id}': .*{problem}"):
        scenarios.make_scenario(row)


# A word that names a category, where it is not the category itself.
NAMES = {"children": "child", "middle-aged": "middle aged", "waterfall burbling": "waterfall", "police": "siren"}


def writer(body, **changes):
    """Write the scenario that a request asks for, as a careful model would."""
    system, request = (message["content"] for message in body["messages"][:2])
    number, part = re.search(r"number (\d+)\. Part: (\w+)", request).groups()
    label = re.search(r"(\w+): ([\w -]+)\. Topic", request)
    attribute, right = label.groups() if label else ("emotion", "neutral")
    wrong = next(name for name in CATEGORIES[attribute] if not scenarios.are_alike(attribute, name, right))
    name, other = (NAMES.get(category, category) for category in (right, wrong))
    questions = {"understanding": f"Sentence {number}. What do you hear?", "generation": f"Use {name} for {number}."}
    answer = {
        "question": questions.get(part, f"What comes after page {number} in my book?"),
        "good_answer": f"I hear {name}." if part == "understanding" else "The page that follows it.",
        "off_topic_answer": f"My cousin bought {number} green plates.",
        "appropriate_label": right,
        "incorrect_label": wrong,
    }
    mistaken = {"mistaken_answer": f"I hear {other}."} if "mistaken_answer" in system else {}
    return json.dumps({**answer, **mistaken, **changes})


def test_a_plan_has_the_shares_of_the_paper_and_every_category():
    slots = scenarios.plan_slots(2000)
    assert [slot.number for slot in slots] == list(range(1, 2001)) and scenarios.plan_slots(70) == slots[:70]
    counts = Counter(slot.part for slot in slots)
    assert counts == {part: round(2000 * share) for part, share in PARTS.items()}
    for attribute, categories in CATEGORIES.items():
        assert {slot.category for slot in slots if slot.attribute == attribute} == set(categories)
    implicit = [slot for slot in slots if slot.part == "implicit"]
    assert not {slot.category for slot in implicit} & {"neutral", "normal"}
    shares = Counter(slot.attribute or scenarios.CONTENT_VOICES for slot in slots)
    assert 100 * shares["emotion"] / 2000 == pytest.approx(33.6, abs=0.5)
    assert scenarios.plan_slots(2000, seed=1) != slots == scenarios.plan_slots(2000)


def test_every_kind_of_scenario_is_written_and_a_longer_plan_writes_only_missing_ones(ask, tmp_path):
    path = tmp_path / "scenarios.jsonl"
    with ChatServer(writer) as server:
        for count in (30, 60):
            assert write_scenarios(path, ask(server), ScenarioSettings(count)) == []
        assert len(server.requests) == 60
    written = scenarios.read_scenarios(path)
    assert {scenario.part for scenario in written} == set(PARTS)
    assert {scenario.attribute for scenario in written} == {*CATEGORIES, None}
    assert [scenario.scenario_id for scenario in written] == [slot.scenario_id for slot in scenarios.plan_slots(60)]
    assert {scenario.license for scenario in written} == {"LicenseRef-model-output"}
    for part, attribute, is_same in (("generation", "age", True), ("understanding", "age", False)):
        answers = next(s.answers for s in written if (s.part, s.attribute) == (part, attribute))
        assert (answers[3].text == answers[5].text) == is_same


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"incorrect_label": "bored"}, "'bored'"),
        ({"appropriate_label": "female"}, "'female'"),
        ({"off_topic_answer": ""}, "off_topic_answer"),
        ({"why": "because"}, "fields"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_sent_back_with_the_reason(ask, tmp_path, change, remark):
    with ChatServer(lambda body: writer(body, **change), writer) as server:
        assert write_scenarios(tmp_path / "s.jsonl", ask(server, concurrency=1), ScenarioSettings(1)) == []
        assert len(server.requests) == 2 and remark in server.requests[1]["messages"][-1]["content"]
