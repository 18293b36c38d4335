import copy
import json
from collections import Counter

import pytest

from sdiareward.common.package_files import CHATREWARD
from sdiareward.dataset_builder.chatreward.scenarios import (
    assign_splits,
    make_scenario,
    read_scenarios,
)
from sdiareward.dataset_builder.chatreward.schema import CATEGORIES, PARTS, TOPICS


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
    path = tmp_path / "scenarios.jsonl"
    lines = [json.dumps(BUNDLED[0]), json.dumps({"scenario_id": "x", "part": "content"})]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match="scenarios.jsonl, line 2: scenario 'x'"):
        read_scenarios(path)
    path.write_text(f"{lines[0]}\n{lines[0]}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'content-text-01'.*more than once"):
        read_scenarios(path)


def test_test_gets_its_share_of_every_attribute():
    scenarios = read_scenarios()
    splits = assign_splits(scenarios, test=0.15, seed=0)
    assert Counter(splits.values()) == {"train": 119, "test": 21}
    for attribute in (*CATEGORIES, None):
        own = [splits[scenario.scenario_id] for scenario in scenarios if scenario.attribute == attribute]
        assert abs(own.count("test") - 0.15 * len(own)) <= 1
        assert "test" in own
    assert assign_splits(scenarios[::-1], test=0.15, seed=0) == splits
    assert assign_splits(scenarios, test=0.15, seed=1) != splits
