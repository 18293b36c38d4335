import json

import pytest

from sdiareward.judges.wavreward.prompts import (
    PROMPT_FILE,
    JudgingPrompt,
    choose_prompt,
    load_prompt_of_judge,
    read_judging_prompt,
)


OWN = JudgingPrompt(system="", task="How loud? ", with_reasoning="Think first.", without_reasoning="A number.")


def test_a_prompt_saved_with_a_judge_is_loaded_unchanged(tmp_path):
    OWN.save(tmp_path)
    assert load_prompt_of_judge(tmp_path) == OWN
    (tmp_path / PROMPT_FILE).unlink()
    assert load_prompt_of_judge(tmp_path) == JudgingPrompt()


def test_different_prompts_have_different_versions():
    assert JudgingPrompt().version == "1"
    assert len({OWN.version, JudgingPrompt(system="").version, "1"}) == 3
    assert len(OWN.version) == 16


def test_the_task_follows_the_recording():
    (user,) = OWN.make_conversation("a.wav")
    assert user == {
        "role": "user",
        "content": [{"type": "audio", "audio": "a.wav"}, {"type": "text", "text": "How loud? Think first."}],
    }
    assert OWN.make_conversation("a.wav", reasoning=False)[-1]["content"][1]["text"] == "How loud? A number."
    assert [message["role"] for message in JudgingPrompt().make_conversation("a.wav")] == ["system", "user"]


def test_missing_fields_of_a_prompt_file_take_the_defaults(tmp_path):
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps({"task": "Louder? "}))
    assert read_judging_prompt(path) == JudgingPrompt(task="Louder? ")


@pytest.mark.parametrize("content", ['{"tusk": "b"}', '["task"]', '{"task": " "}', '{"system": 1}', "task"])
def test_an_invalid_prompt_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "prompt.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"prompt\.json: .*"):
        read_judging_prompt(path)


def test_the_prompt_can_come_from_the_file_of_all_prompts(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text("wavreward_system: ''\nwavreward_task: 'Louder? '\nfilter: Listen.\n")
    assert read_judging_prompt(path) == JudgingPrompt(system="", task="Louder? ")
    OWN.save(tmp_path)
    assert choose_prompt(tmp_path, None) == OWN
    assert choose_prompt(tmp_path, path) == choose_prompt(None, path) == read_judging_prompt(path)
    assert choose_prompt(None, None) == JudgingPrompt()
    path.write_text("filter: Listen.\n")
    with pytest.raises(ValueError, match=r"has no prompt of WavReward; give some of \['wavreward_system'"):
        read_judging_prompt(path)
