"""What systems are called, and how folders and tables of them are read."""

import json

import datasets
import pytest
from support.systems_world import write_system, write_tone

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.common.errors import UserError
from sdiareward.pairs.systems import name_systems, read_systems


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["a.jsonl", "v1.2.parquet"], ["a", "v1.2"]),
        (["x/wav", "y/wav"], ["x/wav", "y/wav"]),
        (["x/out/wav", "y/out/wav", "z"], ["x/out/wav", "y/out/wav", "z"]),
        (["best=x/wav", "y/wav"], ["best", "wav"]),
        (["lr=1", "b"], ["lr=1", "b"]),
    ],
)
def test_a_system_is_called_after_the_end_of_its_path_or_as_it_is_said(paths, names, tmp_path):
    (tmp_path / "lr=1").mkdir()
    assert list(name_systems(paths)) == names


def make_rows(tmp_path, systems=("a", "b"), num=2):
    rows = []
    for system in systems:
        for number in range(num):
            write_tone(tmp_path / "audio" / f"{number}.wav", 0.2, 200.0 + number)
            turns = [{"role": role, "text": "", "audio": f"audio/{number}.wav"} for role in ("user", "assistant")]
            rows.append({"system": system, "id": f"d{number}", "group_id": f"g{number // 2}", "turns": turns})
    return rows


def write_table(path, rows):
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_one_table_holds_all_systems_that_its_column_names(tmp_path, monkeypatch, name):
    path = write_table(tmp_path / "t" / name, make_rows(tmp_path / "t"))
    first, second = read_systems([path])
    assert (first.name, second.name, first.names) == ("a", "b", ["d0", "d1"])
    assert first.groups == {"d0": "g0", "d1": "g0"}
    # Relative paths begin at the table.
    audio = second.read("d1")[0]["content"][-1]["audio"]
    assert (audio if isinstance(audio, str) else audio["path"]) == str(tmp_path / "t" / "audio" / "1.wav")


def test_a_table_and_a_folder_are_compared_and_the_embedded_audio_of_a_table_is_kept(tmp_path):
    rows = make_rows(tmp_path, ["a"])
    for row in rows:
        del row["system"]
        for turn in row["turns"]:
            turn["audio"] = {"bytes": (tmp_path / turn["audio"]).read_bytes(), "path": None}
    write_table(tmp_path / "a.parquet", rows)
    first, second = read_systems(["a.parquet", str(write_system(tmp_path / "b", 1, 2))])
    assert (first.name, second.name, second.names) == ("a", "b", ["d00", "d01"])
    assert first.read("d0")[0]["content"][-1]["audio"]["bytes"] == rows[0]["turns"][0]["audio"]["bytes"]


def test_a_recording_outside_of_the_table_and_of_the_working_folder_is_not_read(tmp_path, monkeypatch):
    rows = make_rows(tmp_path / "elsewhere")
    for row in rows:
        for turn in row["turns"]:
            turn["audio"] = str(tmp_path / "elsewhere" / turn["audio"])
    path = write_table(tmp_path / "t" / "all.jsonl", rows)
    monkeypatch.chdir(tmp_path / "t")
    with pytest.raises(DialogueError, match="lies outside of the audio root"):
        read_systems([path])[0].read("d0")
    assert read_systems([path], audio_root=tmp_path)[0].read("d0")


def test_a_json_dialogue_cannot_name_a_recording_outside_of_its_folder_and_a_link_can(tmp_path, monkeypatch):
    write_tone(tmp_path / "private.wav")
    for name in ("a", "b"):
        write_system(tmp_path / "w" / name, 1, 2)
    (tmp_path / "w" / "a" / "d00" / "1.wav").unlink()
    (tmp_path / "w" / "a" / "d00" / "1.wav").symlink_to(tmp_path / "private.wav")
    turns = [{"role": role, "audio": "../../private.wav"} for role in ("user", "assistant")]
    (tmp_path / "w" / "a" / "call.json").write_text(json.dumps(turns))
    monkeypatch.chdir(tmp_path / "w")
    first, _ = read_systems(["a", "b"])
    with pytest.raises(DialogueError, match="lies outside of the audio root"):
        first.read("call")
    assert first.read("d00") and first.read("d01")


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
        read_systems([write_table(tmp_path / "all.jsonl", change(make_rows(tmp_path)))])
