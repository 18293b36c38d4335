import copy
import json
import re
from collections import Counter

import pytest
from support.chat_server import ChatServer

from sdiareward.common.package_files import CHATREWARD
from sdiareward.dataset_builder.chatreward.scenarios import (
    CATEGORIES,
    PARTS,
    TOPICS,
    ScenarioSettings,
    are_alike,
    assign_splits,
    find_voice_attribute,
    make_scenario,
    plan_slots,
    read_scenarios,
    write_scenarios,
)
from sdiareward.pairs.prompts import PromptSet


BUNDLED = [json.loads(line) for line in (CHATREWARD / "scenarios.jsonl").read_text(encoding="utf-8").splitlines()]
ROWS = {row["scenario_id"]: row for row in BUNDLED}


def test_the_bundled_scenarios_have_the_shares_of_the_paper():
    scenarios = read_scenarios()
    assert len(scenarios) == 140
    counts = Counter(scenario.part for scenario in scenarios)
    assert {part: count / 140 for part, count in counts.items()} == PARTS
    assert {scenario.attribute for scenario in scenarios} == {*CATEGORIES, None}
    assert {scenario.topic for scenario in scenarios} == set(TOPICS)
    assert len({scenario.question.text for scenario in scenarios}) == 140
    assert len({scenario.answers[1].text for scenario in scenarios}) == 140


def changed(scenario_id, path, value):
    row = copy.deepcopy(ROWS[scenario_id])
    *parents, last = path.split("/")
    target = row
    for name in parents:
        target = target[name]
    target[last] = value
    return row


GOOD = ROWS["content-text-01"]["answers"]["5"]["text"]


@pytest.mark.parametrize(
    ("scenario_id", "path", "value", "problem"),
    [
        ("content-text-01", "part", "small_talk", "part is 'small_talk'; it must be one of"),
        ("content-text-01", "attribute", "emotion", "attribute is 'emotion'"),
        ("content-text-01", "question/category", "happy", "it must be heard as 'neutral'"),
        ("content-text-01", "answers/1/text", "so " * 36, "answer 1 has 36 words; at most 35 are allowed"),
        ("content-text-01", "answers/1/text", GOOD, "off topic"),
        ("content-text-01", "answers", {"5": {"text": "Yes."}}, "they must be "),
        ("generation-emotion-01", "answers/3/category", "surprised", "clearly another than 'happy'"),
        ("generation-emotion-01", "answers/5/category", "sad", "answer 5 has the category 'sad'; it must be 'happy'"),
        ("generation-emotion-01", "question/text", "Tell him about the sea.", "does not name 'happy'"),
        ("understanding-speed-01", "question/category", "slow", "it must be heard as 'fast'"),
        ("understanding-speed-01", "answers/3/text", "Fast or slow?", r"names \['slow', 'fast'\]"),
        ("implicit-emotion-01", "question/text", "I am so happy!", r"names \['happy'\]; it must not name"),
        ("implicit-audio-01", "question/text", "Is that thunder?", r"names \['thunder'\]"),
        ("understanding-audio-01", "part", "generation", "no voice can be asked for a sound"),
    ],
)
def test_a_broken_rule_names_the_scenario_and_the_value(scenario_id, path, value, problem):
    with pytest.raises(ValueError, match=rf"scenario '{scenario_id}': .*{problem}"):
        make_scenario(changed(scenario_id, path, value))


def test_a_missing_field_or_a_second_scenario_of_an_id_names_the_line_or_the_id(tmp_path):
    path, line = tmp_path / "scenarios.jsonl", json.dumps(BUNDLED[0])
    cases = {'{"scenario_id": "x", "part": "content"}': "scenarios.jsonl, line 2: scenario 'x'"}
    for second, named in {**cases, line: "'content-text-01'.*more than once"}.items():
        path.write_text(f"{line}\n{second}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=named):
            read_scenarios(path)


def test_test_gets_its_share_of_every_attribute():
    scenarios = read_scenarios()
    splits = assign_splits(scenarios, test=0.15, seed=0)
    assert Counter(splits.values()) == {"train": 119, "test": 21}
    for attribute in (*CATEGORIES, None):
        own = [splits[scenario.scenario_id] for scenario in scenarios if scenario.attribute == attribute]
        assert "test" in own and abs(own.count("test") - 0.15 * len(own)) <= 1
    assert assign_splits(scenarios[::-1], test=0.15, seed=0) == splits != assign_splits(scenarios, test=0.15, seed=1)


# A word that names a category, where it is not the category itself.
NAMES = {"children": "child", "middle-aged": "middle aged", "waterfall burbling": "waterfall", "police": "siren"}


def writer(body):
    """Write the scenario that a request asks for, as a careful model would."""
    system, request = (message["content"] for message in body["messages"][:2])
    number, part = re.search(r"number (\d+)\. Part: (\w+)", request).groups()
    label = re.search(r"(\w+): ([\w -]+)\. Topic", request)
    attribute, right = label.groups() if label else ("emotion", "neutral")
    wrong = next(category for category in CATEGORIES[attribute] if not are_alike(attribute, category, right))
    name, other = (NAMES.get(category, category) for category in (right, wrong))
    question = {
        "understanding": f"So here is my sentence number {number}. What do you hear?",
        "generation": f"Please use {name} for sentence number {number}.",
    }.get(part, f"What comes after page {number} in my book?")
    answer = {
        "question": question,
        "good_answer": f"I hear {name}." if part == "understanding" else "The page that follows it.",
        "off_topic_answer": f"My cousin bought {number} green plates.",
        "appropriate_label": right,
        "incorrect_label": wrong,
    }
    if "mistaken_answer" in system:
        answer["mistaken_answer"] = f"I hear {other}."
    return json.dumps(answer)


def test_a_plan_has_the_shares_of_the_paper_and_every_category():
    slots = plan_slots(2000)
    assert [slot.number for slot in slots] == list(range(1, 2001))
    counts = Counter(slot.part for slot in slots)
    assert counts == {part: round(2000 * share) for part, share in PARTS.items()}
    assert plan_slots(70) == slots[:70]
    for attribute, categories in CATEGORIES.items():
        assert {slot.category for slot in slots if slot.attribute == attribute} == set(categories)
    implicit = [slot for slot in slots if slot.part == "implicit"]
    assert not {slot.category for slot in implicit} & {"neutral", "normal"}
    shares = Counter(find_voice_attribute(slot.attribute) for slot in slots)
    assert 100 * shares["emotion"] / 2000 == pytest.approx(33.6, abs=0.5)
    assert plan_slots(2000, seed=1) != slots == plan_slots(2000)


def test_every_kind_of_scenario_is_written_and_a_rerun_writes_only_missing_ones(ask, tmp_path):
    path = tmp_path / "scenarios.jsonl"
    with ChatServer(writer) as server:
        assert write_scenarios(path, ask(server), ScenarioSettings(60)) == []
        lines = path.read_text().splitlines()
        path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
        write_scenarios(path, ask(server), ScenarioSettings(60))
        assert len(server.requests) == 60
    assert sorted(path.read_text().splitlines()) == sorted(lines)
    scenarios = read_scenarios(path)
    assert {scenario.part for scenario in scenarios} == set(PARTS)
    assert {scenario.attribute for scenario in scenarios} == {*CATEGORIES, None}
    assert [scenario.scenario_id for scenario in scenarios] == [slot.scenario_id for slot in plan_slots(60)]
    assert {scenario.license for scenario in scenarios} == {"LicenseRef-model-output"}
    for part, attribute, is_same in (("generation", "age", True), ("understanding", "age", False)):
        answers = next(s.answers for s in scenarios if (s.part, s.attribute) == (part, attribute))
        assert (answers[3].text == answers[5].text) == is_same


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"incorrect_label": "bored"}, "'bored'"),
        ({"appropriate_label": "female"}, "'female'"),
        ({"off_topic_answer": ""}, "texts"),
        ({"why": "because"}, "fields"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_sent_back_with_the_reason(ask, tmp_path, change, remark):
    def careless(body):
        return json.dumps({**json.loads(writer(body)), **change})

    with ChatServer(careless, writer) as server:
        assert write_scenarios(tmp_path / "s.jsonl", ask(server, concurrency=1), ScenarioSettings(1)) == []
        assert len(server.requests) == 2 and remark in server.requests[1]["messages"][-1]["content"]


def test_own_prompts_write_the_scenarios_and_no_file_of_others_or_of_another_model_is_resumed(ask, tmp_path):
    own = PromptSet({"scenario_writing": "Write. $rules", "scenario_rules_implicit": "Any of $categories."})
    path = tmp_path / "scenarios.jsonl"
    with ChatServer(writer) as server:
        write_scenarios(path, ask(server), ScenarioSettings(4), prompts=own)
        assert all(each["messages"][0]["content"].startswith("Write. ") for each in server.requests)
        for changes, prompts, named in (({}, None, "prompt_version"), ({"model": "other"}, own, "'writer'")):
            with pytest.raises(ValueError, match=f"line 1: was written with .*{named}"):
                write_scenarios(path, ask(server, **changes), ScenarioSettings(2), prompts=prompts)
