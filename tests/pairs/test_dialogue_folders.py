"""Folders of dialogues in every form, nothing in which is decoded, and the systems that are read from them."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import soundfile
from support.systems_world import write_system, write_tone
from support.tables import write_rows

from sdiareward.chat_sdiareward import ROLES, DialogueError
from sdiareward.common.errors import UserError
from sdiareward.pairs.dialogue_folders import holds_dialogues, read_dialogue_folder
from sdiareward.pairs.systems import name_systems, read_systems


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make(tmp_path):
    """Return a function making empty files in a folder."""

    def write(name, files):
        for file in files.split():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
        return tmp_path / name

    return write


def shape(found):
    """Return role and file name of each turn, by dialogue."""
    return {
        name: " ".join(f"{turn.role}:{Path(turn.audio.source).name}" for turn in dialogue.turns)
        for name, dialogue in found.dialogues.items()
    }


@pytest.mark.parametrize(
    ("files", "turns"),
    [
        # A folder is a dialogue: with roles in the names, else with the user first.
        ("x/0.wav x/1.wav notes.txt .hidden/0.wav", {"x": "user:0.wav assistant:1.wav"}),
        ("y/turn2.flac y/turn10.flac", {"y": "user:turn2.flac assistant:turn10.flac"}),
        (
            "y/10-a.wav y/a.wav y/2.wav y/1-a.wav",
            {"y": "user:1-a.wav assistant:2.wav user:10-a.wav assistant:a.wav"},
        ),
        (
            "y/2_user.wav y/1_assistant.wav y/1_user.wav y/2_assistant.wav",
            {"y": "user:1_user.wav assistant:1_assistant.wav user:2_user.wav assistant:2_assistant.wav"},
        ),
        # The name of a person is not a role.
        ("x/user12_turn0.wav x/user12_turn1.wav", {"x": "user:user12_turn0.wav assistant:user12_turn1.wav"}),
        # Recordings are joined by their names; numbers count turns or exchanges.
        ("call-User.WAV call-Assistant.WAV", {"call": "user:call-User.WAV assistant:call-Assistant.WAV"}),
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
    assert shape(read_dialogue_folder(make("a", files))) == turns


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ("x/0_assistant.wav x/1.wav y/0.wav y/1.wav", "0_assistant.wav would be the user's turn"),
        ("x_0_user.wav x_0_assistant.wav x_1_user.m4a y_user.wav y_assistant.wav", "m4a: recordings of this format"),
    ],
)
def test_a_recording_that_cannot_be_a_turn_costs_its_dialogue(make, files, reason):
    found = read_dialogue_folder(make("a", files))
    assert list(found.dialogues) == ["y"]
    assert reason in found.skipped["x"]


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("{dialogue}_{turn}_{role}.wav", "call_0_user.wav call_1_assistant.wav"),
        ("{role}-{dialogue}", "user-call.flac assistant-call.flac"),
        ("{dialogue}/{turn}.wav", "call/0.wav call/1.wav"),
        ("{dialogue}.{turn}.wav", "call.1.wav call.2.wav"),
    ],
)
def test_a_pattern_gives_dialogue_turn_and_role(make, pattern, files):
    found = read_dialogue_folder(make("a", f"{files} other.ogg"), pattern)
    first, second = (Path(file).name for file in files.split())
    assert shape(found) == {"call": f"user:{first} assistant:{second}"}
    assert list(found.skipped) == ["other.ogg"]
    for wrong in ("{turn}_{role}.wav", "{dialogue}_{speaker}.wav", "{dialogue}_{dialogue}.wav", "{dialogue"):
        with pytest.raises(ValueError, match="pattern is"):
            read_dialogue_folder("a", wrong)


def test_json_dialogues_own_the_recordings_beside_them_and_a_malformed_one_costs_no_other(make):
    folder = make("a", "x_user.wav x_assistant.wav wav/y0.wav wav/y1.wav z/0.wav z/1.wav alone_user.wav")
    turns = {"x": ["x_user.wav", "x_assistant.wav"], "y": ["wav/y0.wav", "../a/wav/y1.wav"], "w": [{"name": "b"}]}
    for name, audio in turns.items():
        written = [{"role": role, "audio": file, "text": "Hi."} for role, file in zip(ROLES, audio, strict=False)]
        (folder / f"{name}.json").write_text(json.dumps({"turns": written}))
    (folder / "v.json").write_text("{")
    assert holds_dialogues(folder)
    found = read_dialogue_folder(folder)
    assert list(shape(found)) == ["x", "y", "z"]
    first = found.dialogues["x"].turns[0]
    assert (first.text, first.audio.source) == ("Hi.", str(folder / "x_user.wav"))
    assert found.skipped["alone_user.wav"] == "no JSON dialogue beside it names this recording."
    assert "is not valid JSON" in found.skipped["v"]
    assert found.skipped["w"] == f"{folder / 'w.json'}, turn 1: its audio is a dict; give the path of a recording."
    # A pattern asks for the names of the recordings.
    assert list(read_dialogue_folder(folder, "{dialogue}_{role}.wav").dialogues) == ["alone", "x"]


@pytest.mark.parametrize(
    ("answers", "user", "turns", "skipped"),
    [
        ("one.wav two.wav five.wav", "one.wav two_user.wav four_0.wav",
         {"one": "user:one.wav assistant:one.wav", "two": "user:two_user.wav assistant:two.wav"},
         {"five": "has no turn in the folder of the user's turns"}),
        ("c_assistant.wav", "c/0.wav c/1.wav c/2.wav",
         {"c": "user:0.wav assistant:1.wav user:2.wav assistant:c_assistant.wav"}, {}),
        ("c.wav d.wav", "c/user_1.wav c/assistant_1.wav c/user_2.wav d/0_assistant.wav d/1.wav",
         {"c": "user:user_1.wav assistant:assistant_1.wav user:user_2.wav assistant:c.wav"},
         {"d": "0_assistant.wav would be the user's turn by the order of the names"}),
        ("c/0.wav c/1.wav d/0.wav d/1.wav d/2.wav", "c_0_user.wav c_2_user.wav d_0_user.wav d_1_user.wav",
         {"c": "user:c_0_user.wav assistant:0.wav user:c_2_user.wav assistant:1.wav"},
         {"d": "has 3 turns of the assistant but 2 before them"}),
        ("one_user.wav one_assistant.wav", "one.wav", {}, {"one": "has turns of the user although"}),
    ],
)  # fmt: skip
def test_the_users_turns_may_be_shared(make, answers, user, turns, skipped):
    found = read_dialogue_folder(make("a", answers), user_turns=make("user", user))
    assert shape(found) == turns
    assert set(found.skipped) == set(skipped) and all(
        reason in found.skipped[name] for name, reason in skipped.items()
    )


@pytest.mark.parametrize(("lengths", "skipped"), [((1.0, 2.0), []), ((1.0, 1.0), ["one", "two"])])
def test_one_answer_as_long_as_its_question_is_a_turn_and_all_are_calls(tmp_path, lengths, skipped):
    for folder, seconds in (("q", (1.0, 1.0)), ("a", lengths)):
        (tmp_path / folder).mkdir()
        for name, each in zip(("one", "two"), seconds, strict=True):
            soundfile.write(tmp_path / folder / f"{name}.wav", np.ones(int(each * 8000)), 8000)
    found = read_dialogue_folder(tmp_path / "a", user_turns=tmp_path / "q")
    assert sorted(found.skipped) == skipped and len(found.dialogues) == 2 - len(skipped)


def test_recordings_without_a_turn_of_the_user_and_an_empty_folder_are_refused(make):
    for name, file in (("a", "one.wav"), ("b", "readme.txt")):
        with pytest.raises(ValueError, match=f"{name}: "):
            read_dialogue_folder(make(name, file))


TURNS, PAIR = '[{"role": "user", "audio": "0.wav"}]', '[{"chosen": [], "rejected": []}]'


def test_a_folder_of_dialogues_is_recognised(make):
    for number, files in enumerate(("x/0.wav x/1.wav", "0_user.wav 0_assistant.wav")):
        assert holds_dialogues(make(f"yes {number}", files))
    others = ("0_user.wav 1_assistant.wav", "0.wav 1.wav", "data/train.parquet", "x/0.wav state.json")
    for number, files in enumerate(others):
        assert not holds_dialogues(make(f"no {number}", files))
    for content in (TURNS, PAIR, ""):
        (make("a", "x.json") / "x.json").write_text(content)
        assert holds_dialogues("a") is (content == TURNS)


def test_a_system_is_called_after_the_end_of_its_path_or_as_it_is_said(tmp_path):
    (tmp_path / "lr=1").mkdir()
    for paths, names in (("a.jsonl v1.2.parquet", "a v1.2"), ("best=x/wav y/wav", "best wav"), ("lr=1 b", "lr=1 b")):
        assert list(name_systems(paths.split())) == names.split()
    assert list(name_systems(["x/out/wav", "y/out/wav", "z"])) == ["x/out/wav", "y/out/wav", "z"]


def make_rows(folder, systems=("a", "b"), num=2):
    rows = []
    for system in systems:
        for number in range(num):
            write_tone(folder / "audio" / f"{number}.wav", 0.2, 200.0 + number)
            turns = [{"role": role, "text": "", "audio": f"audio/{number}.wav"} for role in ROLES]
            rows.append({"system": system, "id": f"d{number}", "group_id": f"g{number // 2}", "turns": turns})
    return rows


def test_a_table_and_a_folder_are_compared_and_the_embedded_audio_of_a_table_is_kept(tmp_path):
    rows = make_rows(tmp_path, ["a"])
    for row in rows:
        del row["system"]
        for turn in row["turns"]:
            turn["audio"] = {"bytes": (tmp_path / turn["audio"]).read_bytes(), "path": None}
    write_rows(tmp_path / "a.parquet", rows)
    first, second = read_systems(["a.parquet", str(write_system(tmp_path / "b", 1, 2))])
    assert first.groups == {"d0": "g0", "d1": "g0"}
    assert (first.name, second.name, second.names) == ("a", "b", ["d00", "d01"])
    assert first.read("d0")[0]["content"][-1]["audio"]["bytes"] == rows[0]["turns"][0]["audio"]["bytes"]


def test_a_system_names_no_recording_outside_of_its_folder_and_a_link_of_the_user_may(tmp_path, monkeypatch):
    write_tone(tmp_path / "private.wav")
    turns = [{"role": role, "audio": "../../private.wav"} for role in ROLES]
    for name in ("a", "b"):
        write_system(tmp_path / "w" / name, 1, 2)
    (tmp_path / "w" / "a" / "d00" / "1.wav").unlink()
    (tmp_path / "w" / "a" / "d00" / "1.wav").symlink_to(tmp_path / "private.wav")
    (tmp_path / "w" / "a" / "call.json").write_text(json.dumps(turns))
    write_rows(tmp_path / "w" / "t" / "t.jsonl", [{"id": "call", "turns": turns}])
    monkeypatch.chdir(tmp_path / "w")
    folder, table = read_systems(["a", "t/t.jsonl"])
    for system in (folder, table):
        with pytest.raises(DialogueError, match="lies outside of the audio root"):
            system.read("call")
    assert folder.read("d00") and folder.read("d01")
    assert read_systems(["a", "t/t.jsonl"], audio_root=tmp_path)[1].read("call")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: [*rows, rows[0]], "is the second 'd0'"),
        (lambda rows: [*rows, {**rows[0], "id": None}], "names no id or system"),
        (lambda rows: rows[:2], "is a single system"),
        (lambda rows: [{"system": "a", "id": "x", "path": "x.wav"}], "needs one of messages"),
    ],
)
def test_a_table_that_does_not_name_its_dialogues_is_refused(tmp_path, change, problem):
    with pytest.raises(UserError, match=problem):
        read_systems([write_rows(tmp_path / "all.jsonl", change(make_rows(tmp_path)))])
