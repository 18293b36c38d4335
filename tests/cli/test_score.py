"""`sdiareward score` on files: every form of a dialogue, and what cannot be scored."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import soundfile

import sdiareward
from sdiareward.cli import main
from sdiareward.pairs.content import digest_dialogue
from sdiareward.pairs.messages import read_dialogue


@pytest.fixture
def write_wav(tmp_path, make_tone):
    def write(name, duration_s=0.4, array=None, rate=16_000):
        array = make_tone(duration_s) if array is None else array
        soundfile.write(tmp_path / name, array, rate, subtype="FLOAT")
        return name

    return write


@pytest.fixture
def write_dialogue(tmp_path, write_wav):
    """Return a function writing a JSON dialogue; by default two good turns."""

    def write(turns=None, name="dialogue.json", **changes_of_last_turn):
        last = {"role": "assistant", "text": "Hi.", "audio": write_wav("b.wav", 0.3), **changes_of_last_turn}
        turns = turns or [{"role": "user", "text": "Hello.", "audio": write_wav("a.wav")}, last]
        (tmp_path / name).write_text(turns if isinstance(turns, str) else json.dumps(turns))
        return tmp_path / name

    return write


@pytest.fixture
def score(tiny_checkpoint, capsys):
    """Return a function running `sdiareward score` and giving exit code, standard output and standard error."""

    def run(*arguments):
        code = main(["score", *map(str, arguments), "--model", str(tiny_checkpoint)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    run.model = tiny_checkpoint
    return run


def test_two_dialogues_print_their_rewards_and_the_margin(score, write_dialogue):
    first, second = write_dialogue(), write_dialogue(text=None, name="other.json")
    code, out, _ = score(first, second, "--json")
    report = json.loads(out)
    rewards = [entry["reward"] for entry in report["dialogues"]]
    assert (code, report["criterion"]) == (0, "joint")
    assert report["margin"] == pytest.approx(rewards[0] - rewards[1])
    assert report["margin"] != 0.0
    lines = [line.split() for line in score(first, second)[1].splitlines()]
    assert lines[-1] == ["margin", f"{report['margin']:+.4f}"]
    assert score(first)[1].split() == lines[0] == [str(first), f"{rewards[0]:+.4f}"]


def test_a_recording_and_its_answer_are_one_dialogue_but_the_sides_of_a_call_are_not(score, write_wav, tmp_path):
    paths = [tmp_path / write_wav(name, length_s) for name, length_s in (("q.wav", 0.5), ("a.wav", 0.4))]
    code, out, err = score(*paths, "--json")
    [entry] = json.loads(out)["dialogues"]
    assert (code, entry["num_recordings"]) == (0, 2)
    assert "are read as the user's turn and the answer" in err
    same = tmp_path / write_wav("c.wav", 0.5)
    assert "begin and end together" in score(paths[0], same)[2]
    assert score(paths[0], same, "--form", "turns")[0] == 0


def test_a_folder_of_answers_is_scored_with_the_users_turns_and_needs_no_output_dir(score, write_wav, tmp_path):
    for folder, length_s in (("q", 0.5), ("answers", 0.4), ("other", 0.3)):
        (tmp_path / folder).mkdir()
        for number in range(3):
            write_wav(f"{folder}/d{number}.wav", length_s + number / 10)
    options = ["--user_turns", tmp_path / "q", "--audio_root", tmp_path]
    code, out, _ = score(tmp_path / "answers", *options)
    assert code == 0 and out.startswith("3 of 3 rows") and "Table" not in out
    assert score(tmp_path / "answers", *options, "--output_dir", tmp_path / "out")[0] == 0
    rewards = pd.read_parquet(tmp_path / "out" / "scores.parquet").set_index("id")["reward"]
    systems = [tmp_path / "answers", tmp_path / "other"]
    found = sdiareward.compare(*systems, user_turns=tmp_path / "q", model=score.model, num_bootstrap=50)
    own = found.dialogues[found.dialogues["system"] == "answers"].set_index("dialogue")["reward"]
    assert own.to_dict() == pytest.approx(rewards.to_dict(), abs=1e-5)


def test_every_form_of_a_dialogue_is_the_same_dialogue(write_dialogue, tmp_path):
    path, folder = write_dialogue(), tmp_path / "folder"
    folder.mkdir()
    turns = json.loads(path.read_text())
    for turn in turns:
        (folder / turn["audio"]).write_bytes((tmp_path / turn["audio"]).read_bytes())
        (folder / turn["audio"]).with_suffix(".txt").write_text(turn["text"] + "\n")
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    parts = ({"role": turn["role"], "content": [{key: turn[key]} for key in ("text", "audio")]} for turn in turns)
    forms = [path, folder, tmp_path / "marked.json", write_dialogue({"turns": turns}, name="turns.json")]
    forms.append(write_dialogue(list(parts), name="messages.json"))
    assert len({digest_dialogue(read_dialogue(form), "joint") for form in forms}) == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"turns": [', ""),
        ('{"episode": []}', ""),
        ("[]", ""),
        ('[{"audio": "a.wav"}]', "turn 1"),
        ('[{"role": "user", "audio": 3}, {"role": "assistant", "audio": "b.wav"}]', "turn 1"),
        ({"audio": "none.wav"}, "turn 2: "),
        ({"audio": "loud.wav"}, "turn 2: .*loud.wav: its samples reach .*; full scale is 1"),
        ({"audio": "nan.wav"}, r"turn 2: .*nan\.wav"),
        ({"audio": "short.wav"}, r"turn 2: .*short\.wav"),
        ({"audio": "long.wav"}, r"turn 2: .*long\.wav"),
        ({"audio": "dialogue.json"}, r"turn 2: .*dialogue\.json"),
    ],
)
def test_a_dialogue_that_cannot_be_read_is_refused_in_one_line(
    text, place, write_dialogue, write_wav, score, make_tone
):
    sounds = {"nan": np.full(8000, np.nan), "short": np.zeros(100), "long": np.zeros(61 * 16_000)}
    for name, array in {"loud": make_tone() * np.float32(1e30), **sounds}.items():
        write_wav(f"{name}.wav", array=array)
    path = write_dialogue(text) if isinstance(text, str) else write_dialogue(**text)
    code, out, err = score(path)
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert line.startswith("sdiareward score: error: ") and re.search(place, line), err


def test_an_output_that_is_taken_is_refused_and_costs_no_reward(score, write_dialogue, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": json.loads(write_dialogue().read_text())}))
    command = ["--dataset", tmp_path / "rows.jsonl", "--audio-root", tmp_path, "--output_dir"]
    (tmp_path / "taken").touch()
    (tmp_path / "out" / "scores.parquet").mkdir(parents=True)
    for output, found in {"taken": "file", "taken/below": "file", "out": "folder"}.items():
        code, _, err = score(*command, tmp_path / output)
        assert (code, f"move that {found} away" in err.splitlines()[-1]) == (2, True), err
    (tmp_path / "out" / "scores.parquet").rmdir()
    assert "0 of them scored now" in score(*command, tmp_path / "out")[1]
