import json
import re
from collections import Counter

import pytest
from support.chat_server import ChatServer

from sdiareward.dataset_builder.chatreward.scenarios import (
    ScenarioSettings,
    plan_slots,
    read_scenarios,
    write_scenarios,
)
from sdiareward.dataset_builder.chatreward.schema import CATEGORIES, PARTS, are_alike, find_voice_attribute
from sdiareward.pairs.prompts import PromptSet


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


@pytest.mark.slow
def test_every_kind_of_scenario_is_written_and_passes_the_checks(ask, tmp_path):
    path = tmp_path / "scenarios.jsonl"
    with ChatServer(writer) as server:
        skipped = write_scenarios(path, ask(server), ScenarioSettings(60))
    assert skipped == []
    scenarios = read_scenarios(path)
    assert {scenario.part for scenario in scenarios} == set(PARTS)
    assert {scenario.attribute for scenario in scenarios} == {*CATEGORIES, None}
    assert [scenario.scenario_id for scenario in scenarios] == [slot.scenario_id for slot in plan_slots(60)]
    assert {scenario.license for scenario in scenarios} == {"LicenseRef-model-output"}
    spoken = next(scenario for scenario in scenarios if (scenario.part, scenario.attribute) == ("generation", "age"))
    assert spoken.answers[3].text == spoken.answers[5].text
    heard = next(scenario for scenario in scenarios if scenario.part == "understanding")
    assert heard.answers[3].text != heard.answers[5].text


def test_a_rerun_writes_only_missing_scenarios(ask, tmp_path):
    path = tmp_path / "scenarios.jsonl"
    with ChatServer(writer) as server:
        write_scenarios(path, ask(server), ScenarioSettings(10))
        lines = path.read_text().splitlines()
        path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
        write_scenarios(path, ask(server), ScenarioSettings(10))
        assert len(server.requests) == 10
    assert sorted(path.read_text().splitlines()) == sorted(lines)


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
        assert len(server.requests) == 2
        assert remark in server.requests[1]["messages"][-1]["content"]


def test_own_prompts_write_the_scenarios_and_no_file_of_others_or_of_another_model_is_resumed(ask, tmp_path):
    texts = {"scenario_writing": "Write. $rules Fields: $fields", "scenario_labels": "$category of $categories"}
    own = PromptSet({**texts, "scenario_rules_content": "Any of $categories."})
    path = tmp_path / "scenarios.jsonl"
    with ChatServer(writer) as server:
        for _ in range(2):
            assert write_scenarios(path, ask(server), ScenarioSettings(1), prompts=own) == []
        slot = plan_slots(1)[0]
        system = server.requests[0]["messages"][0]["content"]
        assert system.startswith("Write. ") and (slot.category is None or f"{slot.category} of" in system)
        for changes, prompts, named in (({}, None, "prompt_version"), ({"model": "other"}, own, "'writer'")):
            with pytest.raises(ValueError, match=f"line 1: was written with .*{named}"):
                write_scenarios(path, ask(server, **changes), ScenarioSettings(2), prompts=prompts)
