"""The runner of SpeechJudgeAudit: a file of tasks in, a file of answers out."""

import json

import datasets
import pytest
from support.chat_server import ChatServer
from support.judge_world import listening
from support.systems_world import write_tone

from sdiareward.cli import main
from sdiareward.judges.speech_judge_audit import ROOT_VARIABLE, TaskLayout, read_layout, read_tasks


@pytest.fixture(autouse=True)
def recordings(monkeypatch, tmp_path):
    """Set the folder of recordings, in which `loud.wav` is `quiet.wav` at 6 dB more."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "recordings"))
    monkeypatch.chdir(tmp_path)
    for name, amplitude in {"quiet": 0.2, "loud": 0.4, "same": 0.2}.items():
        write_tone(tmp_path / "recordings" / "loudness" / f"{name}.wav", amplitude=amplitude)


def write_tasks(folder, *tasks):
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


def compare(first, second, name="t"):
    return {"item_id": name, "audio_a": f"loudness/{first}.wav", "audio_b": f"loudness/{second}.wav"}


def answer(tasks, output, *flags):
    assert main(["judge", "speechjudgeaudit", str(tasks), str(output), *flags]) == 0
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_a_model_answers_tasks_of_two_clips_and_of_one(tmp_path, capsys):
    tasks = write_tasks(
        tmp_path,
        compare("quiet", "loud", "ab"),
        compare("loud", "quiet", "ba"),
        compare("quiet", "same", "equal"),
        {"item_id": 7, "audio": "loudness/loud.wav"},
        compare("quiet", "missing", "gone"),
    )
    there, back, equal, one, gone = answer(tasks, tmp_path / "out.jsonl")
    assert [line["item_id"] for line in (there, back, equal, one, gone)] == ["ab", "ba", "equal", 7, "gone"]
    assert there["score_a"] != there["score_b"]
    assert there["preference"] == ("A" if there["score_a"] > there["score_b"] else "B")
    assert (back["score_b"], back["score_a"]) == pytest.approx((there["score_a"], there["score_b"]))
    assert {there["preference"], back["preference"]} == {"A", "B"}
    assert equal["preference"] == "tie"
    assert one == {"item_id": 7, "score": pytest.approx(there["score_b"])}
    assert gone["preference"] is gone["score_a"] is gone["score_b"] is None
    assert "missing.wav" in gone["error"]
    assert "1 tasks have no answer" in capsys.readouterr().err


def test_a_judge_answers_by_ear_whichever_clip_comes_first(tmp_path):
    for name, hertz in {"low": 200.0, "high": 900.0}.items():
        write_tone(tmp_path / "recordings" / "loudness" / f"{name}.wav", frequency_hz=hertz)
    tasks = write_tasks(tmp_path, compare("high", "low", "x"), compare("low", "high", "y"))
    with ChatServer(listening) as server:
        options = [f"base_url={server.url}", "model=tiny"]
        found = answer(tasks, tmp_path / "out.jsonl", "--judge", "own-endpoint", "--judge_options", *options)
    assert [(line["preference"], line["score_a"], line["score_b"]) for line in found] == [("B", 2, 4), ("A", 4, 2)]


def test_names_of_columns_come_from_a_file(tmp_path):
    task = {"uid": "x", "left": "loudness/quiet.wav", "right": "loudness/same.wav", "family": "loudness"}
    columns = tmp_path / "columns.yaml"
    columns.write_text("{id: uid, clips: [left, right], copied: [family], preference: winner, tie: Equal}")
    (found,) = answer(write_tasks(tmp_path, task), tmp_path / "out.jsonl", "--columns", str(columns))
    assert (found["uid"], found["family"], found["winner"]) == ("x", "loudness", "Equal")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "tasks.jsonl, line 2: is not JSON"),
        ("[]", "line 2: has list; a task needs 'item_id', and 'audio_a' and 'audio_b' or 'audio': name them with"),
        ('{"item_id": "u", "wav": "a.wav"}', r"line 2: has \['item_id', 'wav'\]; a task needs"),
        (json.dumps(compare("quiet", "loud")), "line 2: item_id 't' is that of an earlier task"),
    ],
)
def test_a_malformed_task_is_refused_with_its_line(tmp_path, line, message):
    path = write_tasks(tmp_path, compare("quiet", "loud"))
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ValueError, match=message):
        read_tasks(path, TaskLayout())


def test_a_layout_needs_two_columns_of_clips(tmp_path):
    (tmp_path / "columns.yaml").write_text("clips: [left]")
    with pytest.raises(ValueError, match=r"columns\.yaml: clips is \('left',\); give the names of two columns"):
        read_layout(tmp_path / "columns.yaml")


def test_without_a_folder_of_recordings_the_command_tells_how_to_name_it(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv(ROOT_VARIABLE)
    assert main(["judge", "speechjudgeaudit", "tasks.jsonl", "out.jsonl"]) == 2
    assert (
        "BENCHMARK_ROOT is not set; the benchmark sets it, or give the folder with --root" in capsys.readouterr().err
    )
