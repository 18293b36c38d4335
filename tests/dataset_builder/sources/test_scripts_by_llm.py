import json
from collections import Counter
from dataclasses import replace

import pytest
from support.chat_server import ChatServer

from sdiareward.common.llm import ChatClient
from sdiareward.common.package import SCRIPTS
from sdiareward.common.settings import make_settings
from sdiareward.dataset_builder.episodes import ScriptPair, validate_episode
from sdiareward.dataset_builder.sources import read_source, scripts_by_llm
from sdiareward.dataset_builder.sources.scripts_by_llm import Scenario, ScriptSettings, write_scripts
from sdiareward.pairs.prompts import PromptSet


SCENARIO = Scenario("travel-s01", "travel", "Missing the tram to the glacier")
SHORT = ScriptSettings(variations=1, min_rounds=1, max_rounds=2)


def dialogue(*contents):
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


WRITTEN = dialogue("I have missed the tram.", "The next one departs in an hour.")
SPOKEN = dialogue("Oh no, the tram, it's, um, it's gone!", "Yeah... next one's in like an hour.")


def spoken_answer(dialogue=SPOKEN, **changes):
    labels = {"domain": "travel", "topic": SCENARIO.topic, "style": "spoken", "sample_id": 1}
    return {**labels, "dialogue": dialogue, **changes}


def writer(body):
    """Write and speak whatever is asked for, each variation in words of its own."""
    request = body["messages"][1]["content"]
    if not request.startswith("{"):
        return json.dumps(dialogue(f"I request this: {request.splitlines()[0]}", "It shall be done."))
    given = json.loads(request)
    given["style"] = "spoken"
    for turn in given["dialogue"]:
        turn["content"] = f"Um, so, {turn['content'].lower()}"
    return json.dumps(given)


@pytest.fixture
def make_pairs(tmp_path):
    """Return a function that writes scripts and reads them back: pairs first, then what was skipped."""

    def make(client, settings=SHORT):
        path = tmp_path / "scripts.jsonl"
        skipped = write_scripts(path, client, [SCENARIO], settings)
        return [*(read_source("colloquial_scripts", path) if path.exists() else ()), *skipped]

    return make


def test_250_scenarios_in_the_ten_domains_of_the_bundled_scripts_make_a_plan_of_2500_scripts():
    scenarios = scripts_by_llm.read_scenarios()
    assert Counter(Counter(scenario.domain for scenario in scenarios).values()) == {25: 10}
    plan = scripts_by_llm.plan_scripts(scenarios, ScriptSettings().variations)
    assert len(plan) == len(set(plan)) == 2500
    bundled = [json.loads(line) for line in (SCRIPTS / "colloquial_scripts.jsonl").open(encoding="utf-8")]
    assert not {scenario.topic for scenario in scenarios} & {row["topic"] for row in bundled}
    assert {scenario.domain for scenario in scenarios} == {row["domain"] for row in bundled}


def test_a_scenario_is_written_and_then_spoken_with_the_same_labels(ask, make_pairs):
    with ChatServer(WRITTEN, spoken_answer()) as server:
        (pair,) = make_pairs(ask(server))
    assert [turn.text for turn in pair.written.turns] == [turn["content"] for turn in WRITTEN]
    assert [turn.text for turn in pair.spoken.turns] == [turn["content"] for turn in SPOKEN]
    assert pair.written.name == "travel-s01-v01/written"
    assert pair.spoken.group == "travel-s01" and pair.spoken.split_group == "travel"
    validate_episode(pair.spoken)
    first, second = (request["messages"] for request in server.requests)
    assert SCENARIO.topic in first[1]["content"] and "1 to 2 rounds" in first[1]["content"]
    assert json.loads(second[1]["content"]) == spoken_answer(WRITTEN, style="written")


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        (({"dialogue": WRITTEN},), "list"),
        ((WRITTEN[::-1],), "the roles are"),
        ((WRITTEN * 3,), "there are 3 rounds; write 1 to 2"),
        ((dialogue("Hello.", "  "),), "1.content"),
        ((dialogue("Hello \U0001f600", "Good day."),), "turn 1 has '\U0001f600'"),
        ((dialogue("Hello :-)", "Good day."),), "turn 1 has ':-)'"),
        ((dialogue("Hello.", "Run ```ls```."),), "turn 2 has '```'"),
        ((dialogue("Hello.", "word " * 111),), "turn 2 has 111 words"),
        ((WRITTEN, SPOKEN), "exactly the fields"),
        ((WRITTEN, spoken_answer(style="written")), "'style': 'spoken'"),
        ((WRITTEN, spoken_answer(SPOKEN * 2)), "there are 4 turns; the written dialogue has 2"),
        ((WRITTEN, spoken_answer(dialogue("Oh no!", WRITTEN[1]["content"].upper()))), "1 of 2 turns are unchanged"),
        # Counting separates the sides.
        ((WRITTEN, spoken_answer()), "of the spoken and the written dialogue, the sides have 15 and 12 words"),
    ],
)
def test_an_answer_against_the_rules_is_asked_for_again_with_the_fault(ask, make_pairs, answers, fault):
    good = spoken_answer(dialogue("The tram, I have missed.", "An hour, then the next departs."))
    with ChatServer(*answers, *([WRITTEN] if len(answers) == 1 else []), good) as server:
        (pair,) = make_pairs(ask(server), replace(SHORT, balanced=True))
    assert isinstance(pair, ScriptPair)
    assert fault in server.requests[len(answers)]["messages"][-1]["content"]


@pytest.mark.parametrize("answers", [("no",), (WRITTEN, "no")])
def test_a_script_that_never_comes_is_skipped_and_asked_for_again_by_the_next_run(ask, make_pairs, answers):
    # Its punctuation and numbers are not emoticons.
    harmless = dialogue('See item 8) and "x:y"; the ratio was 3:0.', "It costs 5 EUR (net): do you agree?")
    with ChatServer(*answers[:-1], *["no"] * 2, harmless, spoken_answer()) as server:
        client = ask(server, concurrency=1)
        (skip,) = make_pairs(client)
        assert (skip.kind, skip.item) == ("script_failed", "colloquial_scripts travel-s01-v01")
        (pair,) = make_pairs(client)
    assert isinstance(pair, ScriptPair)


def test_the_second_of_two_equal_dialogues_is_dropped_also_by_a_later_run(ask, make_pairs):
    def same(body):
        request = body["messages"][1]["content"]
        return json.dumps(WRITTEN if not request.startswith("{") else json.loads(writer(body)))

    with ChatServer(same) as server:
        first, second = make_pairs(ask(server), replace(SHORT, variations=2))
        assert make_pairs(ask(server), replace(SHORT, variations=2)) == [first, second]
    assert isinstance(first, ScriptPair) and second.kind == "duplicate_script"


def test_a_run_that_was_stopped_in_the_middle_ends_with_the_same_file_and_asks_for_the_rest_only(ask, tmp_path):
    whole, torn, settings = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl", replace(SHORT, variations=3)
    scenarios = [SCENARIO, Scenario("travel-s02", "travel", "Lost mittens")]
    with ChatServer(writer) as server:
        assert write_scripts(whole, ask(server), scenarios, settings) == []
        lines = whole.read_bytes().splitlines(keepends=True)
        torn.write_bytes(b"".join(lines[:2]) + lines[2][:50])
        calls = len(server.requests)
        write_scripts(torn, ChatClient(ask(server).settings, tmp_path / "no_answers_yet"), scenarios, settings)
        assert len(server.requests) - calls == 2 * 4
    assert torn.read_bytes() == whole.read_bytes()
    assert len({pair.written.name for pair in read_source("colloquial_scripts", whole)}) == 6


def test_settings_beyond_the_data_contract_and_a_faulty_file_of_scenarios_are_refused(tmp_path):
    for changes in ({"max_rounds": 9}, {"min_rounds": 5, "max_rounds": 4}, {"variations": 0}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            make_settings(ScriptSettings, changes, "scripts")
    row = '{"scenario_id": "a", "domain": "b", "topic": "c"}\n'
    cases = {row.replace("topic", "topc"): "line 1: .*topic", "{": "line 1: ", row * 2: r"scenario_id \['a'\]"}
    for text, place in cases.items():
        (tmp_path / "scenarios.jsonl").write_text(text)
        with pytest.raises(ValueError, match=place):
            scripts_by_llm.read_scenarios(tmp_path / "scenarios.jsonl")


def test_own_prompts_write_the_scripts_and_a_file_of_other_prompts_or_another_model_is_not_resumed(ask, tmp_path):
    request = "You are generating variation $number of $count for the topic: $topic. $style"
    own = PromptSet({"script_writing_request": request, "script_written_style": "formal", "script_speaking": "Speak."})
    path = tmp_path / "scripts.jsonl"
    with ChatServer(WRITTEN, spoken_answer()) as server:
        for _ in range(2):
            assert write_scripts(path, ask(server), [SCENARIO], SHORT, own) == []
        first, second = (request["messages"] for request in server.requests)
        asked = f"You are generating variation 1 of 1 for the topic: {SCENARIO.topic}. formal"
        assert (first[1]["content"], second[0]["content"]) == (asked, "Speak.")
        for changes, prompts in (({}, None), ({"model": "other"}, own)):
            with pytest.raises(ValueError, match="line 1: was written with"):
                write_scripts(path, ask(server, **changes), [SCENARIO], SHORT, prompts)
