import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def test_one_dialogue_prints_its_reward(score, write_dialogue):
    path = write_dialogue()
    code, out, _ = score(path)
    name, reward = out.split()
    assert (code, name) == (0, str(path))
    assert float(reward) != 0.0


def test_two_dialogues_print_their_rewards_and_the_margin(score, write_dialogue):
    first, second = write_dialogue(), write_dialogue(text="Quite a different reply.", name="other.json")
    code, out, _ = score(first, second, "--json")
    report = json.loads(out)
    rewards = [entry["reward"] for entry in report["dialogues"]]
    assert (code, report["criterion"]) == (0, "joint")
    assert report["margin"] == pytest.approx(rewards[0] - rewards[1])
    assert report["margin"] != 0.0
    assert score(first, second)[1].splitlines()[-1].split() == ["margin", f"{report['margin']:+.4f}"]


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


def test_a_transcript_is_optional(score, write_dialogue):
    assert score(write_dialogue(text=None))[0] == 0


def test_a_stereo_mp3_at_44_kilohertz_is_scored(score, write_dialogue, write_wav, make_tone):
    stereo = np.stack([make_tone(1.0)] * 2, axis=1)
    assert score(write_dialogue(audio=write_wav("c.mp3", array=stereo, rate=44_100)))[0] == 0


def test_a_turn_of_more_than_30_seconds_is_scored_with_a_notice(score, write_dialogue, write_wav):
    path = write_dialogue(audio=write_wav("c.wav", 31.0))
    code, _, notice = score(path)
    assert code == 0
    assert "1 of 2 turns are cut: this model hears their first 30 s" in notice


def test_a_byte_order_mark_is_no_part_of_a_dialogue(score, write_dialogue):
    path = write_dialogue()
    plain = score(path, "--json")[1]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert score(path, "--json")[1] == plain


BAD_JSON = {
    "malformed": ('{"turns": [', "is not valid JSON"),
    "nested": ("[" * 100_000, "is not valid JSON"),
    "a_number": ("3", "holds no list of turns"),
    "no_turns": ('{"episode": []}', "holds no list of turns"),
    "empty": ("[]", "has no turns"),
    "turn_is_text": ('["hello"]', "turn 1: is a str; give an object"),
    "no_role": ('[{"audio": "a.wav"}]', "turn 1: its role is missing"),
    "audio_is_number": (
        '[{"role": "user", "audio": 3}, {"role": "assistant", "audio": "b.wav"}]',
        "turn 1: its audio is a int",
    ),
    "content_is_number": ('[{"role": "user", "content": 3}]', "turn 1: its content is a int"),
    "item_is_text": ('[{"role": "user", "content": ["a"]}]', "turn 1: its content holds a str"),
    "image": ('[{"role": "user", "content": [{"type": "image"}]}]', "only text and audio"),
}


@pytest.mark.parametrize(("text", "problem"), BAD_JSON.values(), ids=BAD_JSON)
def test_json_of_a_wrong_shape_is_refused_in_one_line(text, problem, write_dialogue, score):
    path = write_dialogue(text)
    code, out, err = score(path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"sdiareward score: error: {path}")
    assert problem in err


def test_a_name_that_is_too_long_is_refused_in_one_line(score):
    code, out, err = score("n" * 300)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "File name too long" in err


def test_a_recording_is_no_dialogue_and_is_refused_in_one_line(score, write_wav, tmp_path):
    code, out, err = score(tmp_path / write_wav("a.wav"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "a.wav: is a recording; a dialogue is a JSON file of turns, or a folder with one audio file per turn" in err


def test_folders_of_dialogues_are_refused_with_what_takes_them(score, tmp_path):
    for name in ("a", "b"):
        write_system(tmp_path / name, 0, 1)
    code, out, err = score(tmp_path / "a", tmp_path / "b")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"`sdiareward compare {tmp_path / 'a'} {tmp_path / 'b'}` compares them" in err
    assert "is a folder of dialogues; add --output" in score(tmp_path / "a")[2]


def test_an_output_that_is_a_file_is_refused_in_one_line(score, write_dialogue, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": json.loads(write_dialogue().read_text())}))
    (tmp_path / "taken").touch()
    for output in (tmp_path / "taken", "/dev/null", tmp_path / "taken" / "below"):
        code, out, err = score("--dataset", rows, "--output", output, "--audio-root", tmp_path)
        assert (code, out) == (2, "")
        assert re.search(r"(File exists|Not a directory); move that file away", err.splitlines()[-1]), err
        assert "Traceback" not in err


def test_a_table_that_is_a_folder_costs_no_reward(score, write_dialogue, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": json.loads(write_dialogue().read_text())}))
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
    ("file", "content"),
    [
        ("config.json", "[]"),
        ("config.json", "3"),
        ("processor_config.json", '{"feature_extractor": "text"}'),
        ("processor_config.json", "[]"),
    ],
)
def test_a_checkpoint_of_another_kind_of_json_is_refused_in_one_line(
    write_dialogue, tiny_checkpoint, tmp_path, capsys, file, content
):
    broken = tmp_path / "broken"
    shutil.copytree(tiny_checkpoint, broken)
    (broken / file).write_text(content)
    assert main(["score", str(write_dialogue()), "--model", str(broken)]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith(f"sdiareward score: error: model {broken}: cannot be loaded (")


BAD_TURNS = {
    "missing_file": ({"audio": "none.wav"}, "turn 2: .*none.wav.*no such audio file"),
    "no_audio": ({"audio": None}, "turn 2: has no audio"),
    "two_user_turns": ({"role": "user"}, "turn 2: two user turns in a row"),
    "unknown_role": ({"role": "narrator"}, "turn 2: its role is 'narrator'"),
    "control_token": ({"text": "<|im_end|>"}, "control token"),
}


@pytest.mark.parametrize(("changes", "problem"), BAD_TURNS.values(), ids=BAD_TURNS)
def test_a_bad_turn_is_refused_by_name_in_one_line(changes, problem, write_dialogue, score):
    code, out, err = score(write_dialogue(**changes))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(problem, err)


def test_an_odd_number_of_turns_is_refused(write_dialogue, write_wav, score):
    code, _, err = score(write_dialogue([{"role": "user", "audio": write_wav("a.wav")}]))
    assert code == 2
    assert "has 1 turns and ends with the user; end it with the assistant's reply" in err


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros(0, dtype=np.float32), "holds no samples"),
        (np.full(8000, np.nan, dtype=np.float32), "NaN"),
        (np.zeros(100, dtype=np.float32), "6.2 ms"),
        (np.zeros(61 * 16_000, dtype=np.float32), "lasts 61.0 s; a turn lasts at most 60 s"),
    ],
)
def test_audio_that_cannot_be_judged_is_refused_with_its_turn(array, problem, write_dialogue, write_wav):
    path = write_dialogue(audio=write_wav("bad.wav", array=array))
    with pytest.raises(DialogueError, match=f"turn 2: .*bad.wav.*{problem}"):
        read_dialogue(path)


def test_a_turn_of_twenty_minutes_is_refused_without_decoding_it(write_dialogue, write_wav):
    path = write_dialogue(audio=write_wav("long.wav", array=np.zeros(1200 * 8000, dtype=np.float32), rate=8000))
    started_s = time.perf_counter()
    with pytest.raises(DialogueError, match="lasts 1200.0 s"):
        read_dialogue(path)
    assert time.perf_counter() - started_s < 2.0


def test_a_small_file_that_would_fill_the_memory_is_refused_before_it_is_decoded(
    write_dialogue, tmp_path, monkeypatch
):
    soundfile.write(tmp_path / "bomb.flac", np.zeros((4_000_000, 8), dtype=np.int16), 655_350)
    path = write_dialogue([{"role": role, "audio": "bomb.flac"} for role in ("user", "assistant")])
    monkeypatch.setattr("sdiareward.pairs.messages.read_audio", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DialogueError, match=r"turn 1: .*bomb\.flac: has 8 channels at 655350 Hz"):
        read_dialogue(path)


def test_the_files_of_a_folder_are_turns_in_the_order_of_their_numbers(write_wav, tmp_path):
    for number in range(1, 13):
        write_wav(f"turn{number}.wav", 0.1 * number)
    lengths = [turn["content"][0]["audio"]["array"].size for turn in read_dialogue(tmp_path)]
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


def test_a_file_that_is_no_audio_is_refused(write_dialogue, tmp_path):
    (tmp_path / "text.wav").write_text("no audio")
    with pytest.raises(DialogueError, match=r"turn 2: .*text\.wav.*cannot be decoded"):
        read_dialogue(write_dialogue(audio="text.wav"))


def test_a_transcript_that_is_no_text_is_refused(tmp_path, write_wav):
    write_wav("a.wav")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DialogueError, match=r"a\.txt: cannot be read as a transcript"):
        read_dialogue(tmp_path)


def test_what_is_not_there_is_refused(score, tmp_path, write_dialogue, capsys):
    assert "no such file or folder" in score(tmp_path / "none.json")[2]
    (tmp_path / "empty").mkdir()
    assert "holds no audio files" in score(tmp_path / "empty")[2]
    assert "criterion is 'beauty'; this model knows" in score(write_dialogue(), "--criterion", "beauty")[2]
    assert main(["score", str(write_dialogue()), "--model", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert "none: no such file or folder; correct the path" in said and said.count("\n") == 1


WRONG_FORMS = {
    "nothing": ([], "give either a dialogue's file or --dataset"),
    "both": (["a.json", "--dataset", "b"], "give either a dialogue's file or --dataset"),
    "no_output": (["--dataset", "b"], "--dataset needs --output"),
    "json": (["--dataset", "b", "--output", "c", "--json"], "--json is for files of dialogues"),
    "limit_of_a_file": (["a.json", "--limit", "3", "--strict"], "--limit, --strict needs --dataset"),
    "actors_without_ray": (
        ["--dataset", "b", "--output", "c", "--num-actors", "2"],
        "--num_actors needs --engine ray",
    ),
    "no_dataset": (["--dataset", "none.parquet", "--output", "c"], "none.parquet: no such file of rows"),
    "folder_of_nothing": ([".", "--output", "c"], ".: is one dialogue, or holds none; --output_dir takes"),
    "split_of_a_file": (
        ["--dataset", __file__, "--output", "c", "--split", "test"],
        "is one file, which has no splits",
    ),
    "no_prompts": (["--dataset", "b", "--output", "c", "--prompt-file", "none.txt"], "none.txt: no such prompt file"),
}


@pytest.mark.parametrize(("arguments", "problem"), WRONG_FORMS.values(), ids=WRONG_FORMS)
def test_arguments_that_do_not_go_together_are_refused_in_one_line(arguments, problem, score, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = score(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert problem in err
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_without_dialogues_or_of_no_rows_is_refused(score, tmp_path):
    for name, columns in {"other": {"text": ["a"]}, "empty": {"messages": []}}.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    flags = ("--output", tmp_path / "out", "--dataset")
    other, empty = (score(*flags, tmp_path / f"{name}.parquet") for name in ("other", "empty"))
    assert (other[0], empty[0]) == (2, 2)
    assert "has columns ['text']; give chosen and rejected, or one of messages, turns, dialogue" in other[2]
    assert "0 rows are to be scored" in empty[2]


def test_a_prompt_file_and_a_budget_of_tokens_hold_for_files_too(score, write_dialogue, tmp_path):
    path = write_dialogue()
    (tmp_path / "prompt.txt").write_text("Judge this.")
    rewards = [
        json.loads(score(path, "--json", *flags)[1])["dialogues"][0]["reward"]
        for flags in ((), ("--batch-tokens", "1"), ("--prompt-file", tmp_path / "prompt.txt"))
    ]
    assert rewards[1] == pytest.approx(rewards[0], abs=1e-5)
    assert abs(rewards[2] - rewards[0]) > 1e-3


def test_help_is_instant_and_imports_nothing_heavy():
    code = "import sys\nfrom sdiareward.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
