"""Folders of dialogues in every form; nothing in them is decoded."""

import json
import re
from pathlib import Path

import pytest

from sdiareward.chat_sdiareward import ROLES
from sdiareward.pairs.dialogue_folders import compile_pattern, holds_dialogues, read_dialogue_folder


@pytest.fixture
def make(tmp_path):
    """Return a function making empty files in a folder."""

    def write(name, *files):
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
        return tmp_path / name

    return write


def shape(found):
    """Return role and file name of each turn, by dialogue."""
    return {
        name: [(turn.role, Path(turn.audio.source).name) for turn in dialogue.turns]
        for name, dialogue in found.dialogues.items()
    }


@pytest.mark.parametrize(
    ("files", "turns"),
    [
        # A folder is a dialogue: with roles in the names, else with the user first.
        ("x/0.wav x/1.wav notes.txt .hidden/0.wav", {"x": "user:0.wav assistant:1.wav"}),
        ("y/turn2.flac y/turn10.flac", {"y": "user:turn2.flac assistant:turn10.flac"}),
        ("x/user.wav x/assistant.wav", {"x": "user:user.wav assistant:assistant.wav"}),
        (
            "y/2_user.wav y/1_assistant.wav y/1_user.wav y/2_assistant.wav",
            {"y": "user:1_user.wav assistant:1_assistant.wav user:2_user.wav assistant:2_assistant.wav"},
        ),
        # The name of a person is not a role. Turns that do not alternate are refused where they are used.
        ("x/user12_turn0.wav x/user12_turn1.wav", {"x": "user:user12_turn0.wav assistant:user12_turn1.wav"}),
        ("y/user_0.wav y/user_1.wav", {"y": "user:user_0.wav user:user_1.wav"}),
        # Recordings are joined by their names; numbers count turns or exchanges.
        ("call-User.WAV call-Assistant.WAV", {"call": "user:call-User.WAV assistant:call-Assistant.WAV"}),
        (
            "c_0_user.wav c_1_assistant.wav c_2_user.wav c_3_assistant.wav",
            {"c": "user:c_0_user.wav assistant:c_1_assistant.wav user:c_2_user.wav assistant:c_3_assistant.wav"},
        ),
        (
            "c_0_assistant.wav c_0_user.wav c_10_user.wav c_2_user.wav c_2_assistant.wav",
            {"c": "user:c_0_user.wav assistant:c_0_assistant.wav user:c_2_user.wav assistant:c_2_assistant.wav "
                  "user:c_10_user.wav"},
        ),
        (
            "run_3_0_user.wav run_3_1_assistant.wav run_4_user.wav",
            {"run_3": "user:run_3_0_user.wav assistant:run_3_1_assistant.wav", "run": "user:run_4_user.wav"},
        ),
    ],
)  # fmt: skip
def test_recordings_are_joined_by_their_folder_or_their_names(make, files, turns):
    found = shape(read_dialogue_folder(make("a", *files.split())))
    assert {name: " ".join(map(":".join, each)) for name, each in found.items()} == turns


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ("x/0_assistant.wav x/1.wav", "0_assistant.wav would be the user's turn"),
        ("x/0.wav x/1.wav x/2.m4a x/3.m4a", "m4a: recordings of this format are not read"),
        ("x_0_user.wav x_0_assistant.wav x_1_user.m4a", "m4a: recordings of this format are not read"),
    ],
)
def test_a_recording_that_cannot_be_a_turn_costs_its_dialogue(make, files, reason):
    others = "y/0.wav y/1.wav" if "/" in files else "y_user.wav y_assistant.wav"
    found = read_dialogue_folder(make("a", *files.split(), *others.split()))
    assert list(found.dialogues) == ["y"]
    assert reason in found.skipped["x"]


def test_a_json_dialogue_is_named_after_its_file_and_its_paths_begin_there(make, tmp_path):
    folder = make("a", "audio/0.wav")
    turns = [{"role": "user", "audio": "audio/0.wav"}, {"role": "assistant", "audio": "audio/1.wav", "text": "Hi."}]
    (folder / "call.json").write_text(json.dumps({"turns": turns}))
    found = read_dialogue_folder(folder)
    answer = found.dialogues["call"].turns[1]
    assert (answer.text, answer.audio.source) == ("Hi.", str(tmp_path / "a" / "audio/1.wav"))


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("{dialogue}_{turn}_{role}.wav", ("call_0_user.wav", "call_1_assistant.wav")),
        ("{role}-{dialogue}", ("user-call.flac", "assistant-call.flac")),
        ("{dialogue}/{turn}.wav", ("call/0.wav", "call/1.wav")),
        ("{dialogue}.{turn}.wav", ("call.1.wav", "call.2.wav")),
    ],
)
def test_a_pattern_tells_dialogue_turn_and_role(make, pattern, files):
    found = read_dialogue_folder(make("a", *files, "other.ogg"), pattern)
    assert shape(found) == {
        "call": [(role, Path(file).name) for role, file in zip(("user", "assistant"), files, strict=True)]
    }
    assert list(found.skipped) == ["other.ogg"]


@pytest.mark.parametrize(
    "pattern", ["{turn}_{role}.wav", "{dialogue}_{speaker}.wav", "{dialogue}_{dialogue}.wav", "{dialogue"]
)
def test_a_malformed_pattern_is_refused_and_other_letters_stand_for_themselves(pattern):
    with pytest.raises(ValueError, match=re.escape(pattern)):
        compile_pattern(pattern)
    assert compile_pattern("{dialogue}.wav").fullmatch("a.wav") and not compile_pattern("{dialogue}.wav").fullmatch(
        "axwav"
    )


def test_recordings_beside_json_dialogues_or_in_folders_are_theirs(make):
    folder = make(
        "a", "x_user.wav", "x_assistant.wav", "wav/y0.wav", "wav/y1.wav", "z/0.wav", "z/1.wav", "alone_user.wav"
    )
    turns = {"x": ["x_user.wav", "x_assistant.wav"], "y": ["wav/y0.wav", "../a/wav/y1.wav"]}
    for name, audio in turns.items():
        written = [{"role": role, "audio": file, "text": "Hi."} for role, file in zip(ROLES, audio, strict=True)]
        (folder / f"{name}.json").write_text(json.dumps(written))
    assert holds_dialogues(folder)
    found = read_dialogue_folder(folder)
    assert list(shape(found)) == ["x", "y", "z"]
    assert found.dialogues["x"].turns[0].text == "Hi."
    assert found.skipped == {"alone_user.wav": "no JSON dialogue beside it names this recording."}
    # A pattern asks for the names of the recordings.
    assert list(read_dialogue_folder(folder, "{dialogue}_{role}.wav").dialogues) == ["alone", "x"]


def test_shared_turns_in_a_folder_have_the_roles_in_their_names(make):
    user = make("user", "c/user_1.wav", "c/assistant_1.wav", "c/user_2.wav", "d/0_assistant.wav", "d/1.wav")
    found = read_dialogue_folder(make("a", "c.wav", "d.wav"), user_turns=user)
    context = [("user", "user_1.wav"), ("assistant", "assistant_1.wav"), ("user", "user_2.wav")]
    assert shape(found) == {"c": [*context, ("assistant", "c.wav")]}
    assert "0_assistant.wav would be the user's turn by the order of the names" in found.skipped["d"]


def test_the_users_turns_may_be_shared(make):
    user = make("user", "one.wav", "two_user.wav", "three/0.wav", "three/1.wav", "three/2.wav", "four_0.wav")
    folder = make("a", "one.wav", "two.wav", "three_assistant.wav", "five.wav")
    found = read_dialogue_folder(folder, user_turns=user)
    context = [("user", "0.wav"), ("assistant", "1.wav"), ("user", "2.wav")]
    assert shape(found) == {
        "one": [("user", "one.wav"), ("assistant", "one.wav")],
        "two": [("user", "two_user.wav"), ("assistant", "two.wav")],
        "three": [*context, ("assistant", "three_assistant.wav")],
    }
    assert found.dialogues["one"].turns[0].audio.source.startswith(str(user))
    assert list(found.skipped) == ["five"]


def test_several_answers_follow_as_many_shared_turns_of_the_user(make):
    user = make("user", "c_0_user.wav", "c_2_user.wav")
    expected = [("user", "c_0_user.wav"), ("assistant", "0.wav"), ("user", "c_2_user.wav"), ("assistant", "1.wav")]
    assert shape(read_dialogue_folder(make("a", "c/0.wav", "c/1.wav"), user_turns=user)) == {"c": expected}
    found = read_dialogue_folder(make("b", "c/0.wav", "c/1.wav", "c/2.wav"), user_turns=user)
    assert "has 3 turns of the assistant but 2 before them" in found.skipped["c"]


def test_recordings_without_a_turn_of_the_user_or_with_two_and_an_empty_folder_are_refused(make):
    for name, file in (("a", "one.wav"), ("b", "readme.txt")):
        with pytest.raises(ValueError, match=f"{name}: "):
            read_dialogue_folder(make(name, file))
    found = read_dialogue_folder(make("c", "one_user.wav", "one_assistant.wav"), user_turns=make("user", "one.wav"))
    assert "has turns of the user although they are given for all systems" in found.skipped["one"]


def test_one_malformed_dialogue_costs_no_other(make):
    folder = make("a", "x/0.wav", "x/1.wav")
    (folder / "y.json").write_text("{")
    (folder / "z.json").write_text(json.dumps([{"role": "user", "audio": {"name": "b.wav"}}]))
    found = read_dialogue_folder(folder)
    assert list(found.dialogues) == ["x"]
    assert "is not valid JSON" in found.skipped["y"]
    assert found.skipped["z"] == f"{folder / 'z.json'}, turn 1: its audio is a dict; give the path of a recording."


@pytest.mark.parametrize(
    ("files", "content", "is_one"),
    [
        ("x/0.wav x/1.wav", "", True),
        ("x_user.wav x_assistant.wav", "", True),
        ("0_user.wav 1_assistant.wav", "", False),
        ("0_user.wav 0_assistant.wav", "", True),
        ("0.wav 1.wav", "", False),
        ("data/train.parquet", "", False),
        ("x/0.wav metadata.jsonl", "", False),
        ("", "", False),
        ("x.json", "", False),
        ("x.json", '[{"role": "user", "audio": "0.wav"}]', True),
        ("x.json", '[{"chosen": [], "rejected": []}]', False),
    ],
)
def test_a_folder_of_dialogues_is_recognised(make, tmp_path, files, content, is_one):
    (tmp_path / "a").mkdir()
    folder = make("a", *files.split())
    if content:
        (folder / files).write_text(content)
    assert holds_dialogues(folder) is is_one
