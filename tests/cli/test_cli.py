import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.systems_world import write_system

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.cli import main
from sdiareward.pairs.messages import read_dialogue, sort_naturally


@pytest.fixture
def write_wav(tmp_path, make_tone):
    def write(name, duration_s=0.4, array=None, rate=16_000):
        array = make_tone(duration_s) if array is None else array
        soundfile.write(tmp_path / name, array, rate, subtype=None if name.endswith(".mp3") else "FLOAT")
        return name

    return write


@pytest.fixture
def write_dialogue(tmp_path, write_wav):
    """Return a function writing a JSON dialogue; by default two good turns."""

    def write(turns=None, name="dialogue.json", **changes_of_last_turn):
        if turns is None:
            turns = [
                {"role": "user", "text": "Hello.", "audio": write_wav("a.wav")},
                {"role": "assistant", "text": "Hi.", "audio": write_wav("b.wav", 0.3)} | changes_of_last_turn,
            ]
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

    return run


@pytest.mark.parametrize("scale", [1e10, 1e30])
def test_a_recording_beyond_full_scale_is_refused_in_one_line(score, write_dialogue, write_wav, make_tone, scale):
    path = write_dialogue(audio=write_wav("loud.wav", array=make_tone() * np.float32(scale)))
    for flags in ((), ("--json",)):
        code, out, err = score(path, *flags)
        assert (code, out) == (2, "")
        assert re.search(r"turn 2: .*loud\.wav: its samples reach \S+; full scale is 1", err.splitlines()[-1])
    assert "Traceback" not in err


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


@pytest.mark.slow
def test_every_form_of_a_dialogue_gives_the_same_reward(score, write_dialogue, tmp_path):
    turns = json.loads(write_dialogue().read_text())
    messages = [
        {"role": turn["role"], "content": [{"type": key, key: turn[key]} for key in ("text", "audio")]}
        for turn in turns
    ]
    folder = tmp_path / "folder"
    folder.mkdir()
    for turn in turns:
        (folder / turn["audio"]).write_bytes((tmp_path / turn["audio"]).read_bytes())
        (folder / turn["audio"]).with_suffix(".txt").write_text(turn["text"] + "\n")
    forms = [write_dialogue({"turns": turns}), write_dialogue(messages, name="messages.json"), folder]
    rewards = {json.loads(score(form, "--json")[1])["dialogues"][0]["reward"] for form in forms}
    assert len(rewards) == 1


def test_a_turn_of_more_than_30_seconds_is_scored_with_a_notice(score, write_dialogue, write_wav):
    path = write_dialogue(audio=write_wav("c.wav", 31.0))
    code, _, notice = score(path)
    assert code == 0
    assert "1 turns cut: the model hears 30.4 of 31.4 s (turn 2)" in notice


def test_a_byte_order_mark_is_no_part_of_a_dialogue(score, write_dialogue):
    path = write_dialogue()
    plain = score(path, "--json")[1]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert score(path, "--json")[1] == plain


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"turns": [', ""),
        ("[" * 100_000, ""),
        ("3", ""),
        ('{"episode": []}', ""),
        ("[]", ""),
        ('["hello"]', "turn 1"),
        ('[{"audio": "a.wav"}]', "turn 1"),
        ('[{"role": "user", "audio": 3}, {"role": "assistant", "audio": "b.wav"}]', "turn 1"),
        ('[{"role": "user", "content": 3}]', "turn 1"),
        ('[{"role": "user", "content": ["a"]}]', "turn 1"),
        ('[{"role": "user", "content": [{"type": "image"}]}]', "turn 1"),
    ],
)
def test_json_of_a_wrong_shape_is_refused_in_one_line(text, place, write_dialogue, score):
    path = write_dialogue(text)
    code, out, err = score(path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"sdiareward score: error: {path}") and place in err


def test_folders_of_dialogues_are_refused_with_what_takes_them(score, tmp_path):
    for name in ("a", "b"):
        write_system(tmp_path / name, 0, 1)
    code, out, err = score(tmp_path / "a", tmp_path / "b")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"`sdiareward compare {tmp_path / 'a'} {tmp_path / 'b'}` compares them" in err
    assert "is a folder of dialogues; add --output" in score(tmp_path / "a")[2]


@pytest.fixture
def rows(write_dialogue, tmp_path):
    """Return a table of one dialogue."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": json.loads(write_dialogue().read_text())}))
    return tmp_path / "rows.jsonl"


def test_an_output_that_is_a_file_is_refused_in_one_line(score, rows, tmp_path):
    (tmp_path / "taken").touch()
    for output in (tmp_path / "taken", "/dev/null", tmp_path / "taken" / "below"):
        code, out, err = score("--dataset", rows, "--output", output, "--audio-root", tmp_path)
        assert (code, out) == (2, "")
        assert re.search(r"(File exists|Not a directory); move that file away", err.splitlines()[-1]), err
        assert "Traceback" not in err


def test_a_table_that_is_a_folder_costs_no_reward(score, rows, tmp_path):
    command = ["--dataset", rows, "--output", tmp_path / "out", "--audio-root", tmp_path]
    (tmp_path / "out" / "scores.parquet").mkdir(parents=True)
    code, _, err = score(*command)
    assert code == 2
    assert "Is a directory; move that folder away" in err.splitlines()[-1]
    (tmp_path / "out" / "scores.parquet").rmdir()
    assert "0 of them scored now" in score(*command)[1]


@pytest.mark.slow
def test_a_path_with_other_characters_than_the_terminals_is_printed(write_dialogue, tmp_path, tiny_checkpoint):
    path = write_dialogue(name="caf\N{LATIN SMALL LETTER E WITH ACUTE}.json")
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "sdiareward.cli", "score", path, "--model", tiny_checkpoint]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert re.search(r"caf\S+\.json +[+-]\d", done.stdout)


@pytest.mark.parametrize(
    "changes",
    [{"audio": "none.wav"}, {"audio": None}, {"role": "user"}, {"role": "narrator"}, {"text": "<|im_end|>"}],
)
def test_a_bad_turn_is_refused_by_name_in_one_line(changes, write_dialogue, score):
    code, out, err = score(write_dialogue(**changes))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "turn 2: " in err


@pytest.mark.parametrize(
    "array", [np.zeros(0), np.full(8000, np.nan), np.zeros(100), np.zeros(61 * 16_000), "no audio"]
)
def test_audio_that_cannot_be_judged_is_refused_with_its_turn(array, write_dialogue, write_wav, tmp_path):
    if isinstance(array, str):
        (tmp_path / "bad.wav").write_text(array)
    else:
        write_wav("bad.wav", array=array)
    with pytest.raises(DialogueError, match=r"turn 2: .*bad\.wav"):
        read_dialogue(write_dialogue(audio="bad.wav"))


def test_a_turn_of_twenty_minutes_is_refused_without_decoding_it(write_dialogue, write_wav):
    path = write_dialogue(audio=write_wav("long.wav", array=np.zeros(1200 * 8000, dtype=np.float32), rate=8000))
    started_s = time.perf_counter()
    with pytest.raises(DialogueError, match="lasts 1200.0 s"):
        read_dialogue(path)
    assert time.perf_counter() - started_s < 2.0


def test_the_files_of_a_folder_are_turns_in_the_order_of_their_numbers(write_wav, tmp_path):
    for number in range(1, 13):
        write_wav(f"turn{number}.wav", 0.1 * number)
    lengths = [turn.audio.read().size for turn in read_dialogue(tmp_path).turns]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize(
    "names",
    [
        ["1.wav", "2.wav", "10.wav"],
        ["turn.wav", "turn (2).wav", "turn (10).wav"],
        ["1-user.wav", "2.wav", "10-user.wav", "a.wav"],
        ["01.wav", "1.wav", "002.wav"],
    ],
)
def test_numbers_in_names_are_ordered_as_numbers(names):
    assert [path.name for path in sorted(map(Path, reversed(names)), key=sort_naturally)] == names


def test_a_transcript_that_is_no_text_is_refused(tmp_path, write_wav):
    write_wav("a.wav")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DialogueError, match=r"a\.txt: cannot be read as a transcript"):
        read_dialogue(tmp_path)


def test_a_prompt_file_and_a_budget_of_tokens_hold_for_files_too(score, write_dialogue, tmp_path):
    path = write_dialogue()
    (tmp_path / "prompt.txt").write_text("Judge this.")
    rewards = [
        json.loads(score(path, "--json", *flags)[1])["dialogues"][0]["reward"]
        for flags in ((), ("--batch-tokens", "1"), ("--prompt-file", tmp_path / "prompt.txt"))
    ]
    assert rewards[1] == pytest.approx(rewards[0], abs=1e-5)
    assert abs(rewards[2] - rewards[0]) > 1e-3
