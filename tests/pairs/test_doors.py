"""One rule for every way in which a dialogue enters: a JSON file, a table, pairs, messages in Python, a folder."""

import base64
import json
import shutil
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from support.tables import write_rows

from sdiareward import chat_sdiareward
from sdiareward.calls.reading import CallSettings
from sdiareward.chat_sdiareward import (
    AUDIO_KEYS,
    MAX_TEXT_CHARACTERS,
    ROLES,
    DialogueError,
    make_dialogue,
    turns_to_messages,
)
from sdiareward.cli import main
from sdiareward.common.errors import PairsError
from sdiareward.dataset_builder.sources.reading import find_clip
from sdiareward.pairs.content import digest_dialogue
from sdiareward.pairs.dialogue_folders import read_dialogue_folder
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.messages import read_dialogue, read_transcript
from sdiareward.pairs.path_sandbox import RecordingFinder
from sdiareward.pairs.rows import Dialogues, open_messages, open_rows, read_block
from sdiareward.pairs.schema import SIDES


USER = {"role": "user", "audio": "0.wav"}


@pytest.fixture
def folder(tmp_path, make_tone, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, duration_s in enumerate((0.3, 0.4)):
        soundfile.write(tmp_path / f"{number}.wav", make_tone(duration_s, seed=number), 16_000)
    return tmp_path


def read_json(folder, turns):
    (folder / "one.json").write_text(json.dumps(turns))
    return read_dialogue(folder / "one.json")


def open_table(folder, rows):
    """Return the dialogues of a table with the numbers of its rows."""
    rows = open_rows(
        write_rows(folder / "table.jsonl", [{"id": str(row), "messages": each} for row, each in enumerate(rows)])
    )

    def read(*numbers):
        block = read_block(rows, np.array(numbers), ["messages"])
        return Dialogues(block, range(len(numbers)), ["messages"], RecordingFinder(folder))

    return read


def read_table(folder, turns):
    return open_table(folder, [turns])(0)[0]


def read_pairs(folder, turns):
    plain = [USER, {"role": "assistant", "audio": "0.wav"}]
    return Dialogues(
        load_pairs(write_rows(folder / "pairs.jsonl", [{"chosen": plain, "rejected": turns}]), "train"), [0]
    )[1]


def read_python(folder, turns):
    return make_dialogue(turns)


DOORS = {"json": read_json, "table": read_table, "pairs": read_pairs, "python": read_python}


def item(**fields):
    return {"role": "assistant", "content": [fields]}


SPELLINGS = [
    item(type="audio", audio="1.wav"),
    item(type="audio", audio="1.wav", text=""),
    *(item(type="audio", **{key: "1.wav"}) for key in ("audio_url", "audio_path", "path", "url")),
    item(type="audio_url", audio_url={"url": "1.wav"}),
    item(audio="1.wav"),
    {"role": "assistant", "audio_path": "1.wav"},
    {"role": "assistant", "path": "1.wav", "speaker": "Ann", "start_s": 1.5},
    {"role": "assistant", "url": "1.wav", "text": ""},
    {"role": "assistant", "audio": "1.wav", "utterance_id": "d0_u1", "text_language": "en"},
    item(type="audio_url", audio_url={"url": "file://{folder}/1.wav"}),
    item(type="audio", audio="{lines}"),
    item(type="audio", audio="data:audio/wav;base64,{base64}"),
    item(type="input_audio", input_audio={"data": "{base64}", "format": "wav"}),
]


@pytest.mark.parametrize("door", DOORS)
def test_common_spellings_of_a_recording_are_read(folder, door):
    expected = digest_dialogue(DOORS[door](folder, [USER, {"role": "assistant", "audio": "1.wav"}]), None)
    content, text = (folder / "1.wav").read_bytes(), json.dumps(SPELLINGS)
    plain, lines = (encode(content).decode().replace("\n", "\\n") for encode in (base64.b64encode, base64.encodebytes))
    for name, value in {"{folder}": str(folder), "{base64}": plain, "{lines}": lines}.items():
        text = text.replace(name, value)
    for answer in json.loads(text):
        assert digest_dialogue(DOORS[door](folder, [USER, answer]), None) == expected is not None, answer


def say(num_characters):
    """Return a turn that has this number of characters in its texts, together."""
    text = ("a b " * num_characters)[: num_characters - 4]
    texts = [{"type": "text", "text": each} for each in (text, "four")]
    return {"role": "assistant", "content": [{"type": "audio", "audio": "1.wav"}, *texts]}


@pytest.mark.parametrize("path", ["calls\\1.wav", "calls\test.wav"])
def test_a_path_of_windows_is_refused_with_what_to_write(folder, path):
    for read in (read_json, read_table):
        with pytest.raises(DialogueError, match="forward slashes"):
            read(folder, [USER, {"role": "assistant", "audio": path}])


@pytest.mark.parametrize(
    ("name", "nested"),
    [("x.json", "[" * 10**5 + "]" * 10**5), ("rows/x.jsonl", '{"a":' * 10**5 + "1" + "}" * 10**5)],
)
def test_nesting_that_no_parser_survives_is_refused_with_its_line(folder, name, nested):
    (folder / "rows").mkdir()
    turns = json.dumps([USER, {"role": "assistant", "audio": "1.wav"}])
    (folder / name).write_text(
        f'{{"id": "a", "messages": {turns}}}\n{{"id": "b", "messages": {turns}, "x": {nested}}}\n'
    )
    with pytest.raises(ValueError, match=f"{(folder / name).name}.*line 2"):
        open_rows(folder / name.split("/")[0])
    (folder / "one.json").write_text(f'{{"turns": {turns}, "x": {nested}}}')
    with pytest.raises(DialogueError, match="one.json"):
        read_dialogue(folder / "one.json")
    sides = {side: datasets.Json() for side in SIDES}
    text = pa.array([turns, f'[{{"role": "user", "audio": "0.wav", "x": {nested}}}]'])
    table = pa.table([text.cast(pa.string())] * 2, names=SIDES).cast(datasets.Features(sides).arrow_schema)
    pq.write_table(table, folder / "pairs.parquet")
    with pytest.raises(ValueError, match="nested deeper"):
        Dialogues(read_block(open_rows("pairs.parquet"), np.arange(2), SIDES), range(2))[2]
    pq.write_table(pa.Table.from_pylist([dict.fromkeys(SIDES, [{**USER, "x": nested}])]), folder / "pairs.parquet")
    with pytest.raises(PairsError, match="pairs.parquet: JSON is nested deeper"):
        load_pairs("pairs.parquet", None)


def test_local_data_ask_nothing_of_the_network_and_a_script_beside_them_is_not_run(folder, monkeypatch):
    monkeypatch.setattr("datasets.load.increase_load_count", lambda name: pytest.fail(f"a load of {name} is reported"))
    row = json.dumps({"id": "a", "messages": [USER, {"role": "assistant", "audio": "1.wav"}]}) + "\n"
    for name in ("x.jsonl", "x.json", "json/x.jsonl", "rows/x.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(row)
    (folder / "rows/rows.py").write_text("raise SystemExit")
    for name in ("x.jsonl", "x.json", "json", "rows"):
        assert open_rows(name).num_rows == 1


def test_a_table_whose_texts_are_views_is_read(folder):
    names = pa.array(["0.wav", "1.wav"], pa.string_view())
    pq.write_table(pa.table({"id": names, "chosen": names, "rejected": names}), folder / "pairs.parquet")
    block = read_block(open_rows("pairs.parquet"), np.arange(2), SIDES)
    assert Dialogues(block, range(2), finder=RecordingFinder(folder))[3]
    assert load_pairs("pairs.parquet", None)["chosen"][1][0]["content"][0]["audio"]["path"].endswith("1.wav")


@pytest.mark.parametrize("door", ["table", "pairs"])
def test_a_table_names_no_recording_outside_of_its_folder_under_any_name(folder, tmp_path_factory, door):
    outside = str(tmp_path_factory.mktemp("outside") / "1.wav")
    (folder / "1.wav").rename(outside)
    paths = (outside, f"file://{outside}", {"url": outside})
    # Every key, and every form of a path, in an item and in a turn.
    cases = [*((key, outside) for key in AUDIO_KEYS), *(("audio", path) for path in paths[1:])]
    for number, (key, path) in enumerate(cases):
        answer = {"role": "assistant", key: path} if number % 2 else item(type="audio", **{key: path})
        with pytest.raises((ValueError, FileNotFoundError)):
            DOORS[door](folder, [USER, answer]).turns[1].audio.read()


WORDS = {"role": "user", "text": "hello"}
REFUSED = {
    "characters": [USER, say(MAX_TEXT_CHARACTERS + 1)],
    "clip": [USER, item(type="audio", clip="1.wav")],
    "Audio": [USER, {"role": "assistant", "Audio": "1.wav"}],
    "audio_file": [USER, {"role": "assistant", "text": "hi", "audio_file": "1.wav"}],
    "audio, text": [USER, item(type="text", text="hi", audio="1.wav")],
    "audio, url": [USER, item(type="audio", audio="1.wav", url="0.wav")],
    "duration_s": [USER, item(type="audio", audio="1.wav", duration_s="1.5")],
    "transcript": [USER, {"role": "assistant", "audio": "1.wav", "transcript": "hi"}],
    "content": [USER, {"role": "assistant", "audio": "1.wav", "content": [{"type": "text", "text": "hi"}]}],
    "neither words nor a recording": [USER, {"role": "assistant", "content": []}],
    "is null": [USER, {"role": "assistant", "text": None, "audio": None}],
    "recording is null": [USER, item(type="audio", audio=None)],
    "null or empty": [USER, {"role": "assistant", "text": "hi", "audio": None}],
    "'q/d01.wav'": [USER, {"role": "assistant", "content": "q/d01.wav"}],
    "'data:audio": [USER, item(type="text", text="data:audio/wav;base64,UklGRg==")],
    "'1.wav'": [USER, item(type="text", text="1.wav")],
    "type 'image'": [USER, item(type="image", text="a")],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("named", REFUSED)
def test_what_would_not_be_read_is_refused_with_its_turn_and_key(folder, door, named, caplog):
    with pytest.raises(DialogueError) as caught:
        DOORS[door](folder, REFUSED[named])
    found = str(caught.value) + caplog.text
    assert "turn 2" in found or "has no turns" in found
    assert named in found


def test_words_alone_are_refused_in_data_that_have_recordings_whatever_their_keys(folder):
    with pytest.raises(DialogueError, match="turn 1"):
        read_pairs(folder, [WORDS, {"role": "assistant", "text": "hi"}])
    spoken = [{**USER, "text": "hello"}, {"role": "assistant", "audio": "1.wav"}]
    silent = [[WORDS, {"role": "assistant", "text": "hi"}], [{"role": "user", "content": "a"}, spoken[1]]]
    read = open_table(folder, [silent[0], spoken, silent[1]])
    together = read(0, 1, 2)
    # A rerun reads the skipped rows alone.
    for dialogues, index in ((together, 0), (together, 2), (read(2), 0)):
        with pytest.raises(DialogueError, match="turn 1"):
            dialogues[index]
    assert len(together[1].turns) == 2


def test_words_alone_are_scored_in_data_without_recordings(folder):
    assert len(read_python(folder, [USER, say(MAX_TEXT_CHARACTERS)]).turns) == 2
    turns = [WORDS, {"role": "assistant", "text": "hi", "audio": None}]
    assert [turn.role for turn in read_table(folder, turns).turns] == list(ROLES)
    as_messages = read_block(open_messages(["a"], lambda _: turns_to_messages(turns)), np.arange(1), ["messages"])
    assert len(Dialogues(as_messages, [0], ["messages"])[0].turns) == 2
    mixed = [{"role": "user", "content": "a text prompt"}, {"role": "assistant", "audio": "1.wav"}]
    assert len(read_python(folder, mixed).turns) == 2


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_match_in_both_forms_of_unicode(folder, form):
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    name, written = (unicodedata.normalize(each, "müller/gespräch_user") for each in (form, other))
    (folder / name).parent.mkdir()
    (folder / "0.wav").rename(folder / f"{name}.wav")
    for read in (read_json, read_table, read_pairs):
        answer = {"role": "assistant", "audio": "1.wav"}
        assert len(read(folder, [{"role": "user", "audio": f"{written}.wav"}, answer]).turns) == 2
    write_dialogue(folder / "a", f"{Path(name).name}.wav", f"{Path(written).name[:-4]}assistant.wav")
    assert list(read_dialogue_folder(folder / "a").dialogues) == ["gespräch"]
    (folder / Path(name).parent / f"{Path(written).name}.txt").write_text("hello")
    assert read_transcript(folder / f"{name}.wav") == "hello"
    assert find_clip(folder, f"{written}.wav") == folder / f"{name}.wav"


def write_dialogue(folder, *names, duration_s=(0.3, 0.4)):
    folder.mkdir(parents=True, exist_ok=True)
    for name, seconds in zip(names, duration_s, strict=True):
        soundfile.write(folder / name, np.sin(np.arange(round(seconds * 16_000)) / 9), 16_000)


def test_hidden_files_are_no_recordings_and_no_dialogues(tmp_path):
    write_dialogue(tmp_path / "a" / "one", "0_user.wav", "1_assistant.wav")
    for place in ("a/one/._0_user.wav", "a/._one.json", "a/__MACOSX/one/._0_user.wav", "a/.DS_Store"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"\0\5\x16\7")
    assert len(read_dialogue(tmp_path / "a" / "one").turns) == 2
    for pattern in (None, "{dialogue}/{turn}_{role}.wav"):
        found = read_dialogue_folder(tmp_path / "a", pattern)
        assert (list(found.dialogues), found.skipped) == (["one"], {})


CALLS = [
    ("call_user.wav call_assistant.wav", 0.4, True),
    ("call_user.wav call_assistant.wav", 0.43, False),
    ("call_0_user.wav call_1_assistant.wav", 0.4, False),
    ("speaker_1.wav speaker_2.wav", 0.4, True),
    ("turn1.wav turn2.wav", 0.4, False),
]


@pytest.mark.parametrize(("names", "second_s", "is_call"), CALLS)
def test_two_channels_of_a_call_are_no_turns(tmp_path, names, second_s, is_call):
    call = tmp_path / "a" / "call"
    write_dialogue(call, *names.split(), duration_s=(0.4, second_s))
    assert len(read_dialogue(call, form="turns").turns) == 2
    assert list(read_dialogue_folder(call.parent, settings=CallSettings("turns")).dialogues) == ["call"]
    if not is_call:
        assert len(read_dialogue(call).turns) == 2
        return
    with pytest.raises(ValueError, match="--form turns"):
        read_dialogue(call)
    # They are read as a call, in which nobody speaks.
    assert "call" in read_dialogue_folder(call.parent).skipped
    # Beside turns they are neither.
    write_dialogue(call.parent, "a_user.wav", "a_assistant.wav")
    write_dialogue(call.parent, "b_user.wav", "b_assistant.wav", duration_s=(0.5, 0.5))
    shutil.rmtree(call)
    found = read_dialogue_folder(call.parent)
    assert list(found.dialogues) == ["a"]
    assert "channels of one call" in found.skipped["b"]


opened: Counter[str] = Counter()
sys.addaudithook(lambda event, args: opened.update([str(args[0])]) if event == "open" else None)


@pytest.mark.parametrize("kind", ["wav", "mp3"])
def test_a_recording_of_a_table_is_opened_and_decoded_once_and_a_turn_is_read_once(
    folder, kind, make_tone, tiny_checkpoint, monkeypatch
):
    turns, decoded, read_turn = [], Counter(), chat_sdiareward._read_turn

    class Counted(soundfile.SoundFile):
        def read(self, *args, **kwargs):
            # A single frame at the end shows that the header is right.
            decoded["files"] += args != (1,)
            return super().read(*args, **kwargs)

    monkeypatch.setattr(chat_sdiareward, "_read_turn", lambda *args: turns.append(args) or read_turn(*args))
    rows = []
    for row in range(3):
        names = [f"{row}_{turn}.{kind}" for turn in range(2)]
        for turn, name in enumerate(names):
            soundfile.write(folder / name, make_tone(0.5 + turn / 10, seed=2 * row + turn), 16_000)
        messages = [{"role": role, "audio": name} for role, name in zip(ROLES, names, strict=True)]
        rows.append(json.dumps({"id": str(row), "messages": messages}) + "\n")
    (folder / "table.jsonl").write_text("".join(rows))
    monkeypatch.setattr(soundfile, "SoundFile", Counted)
    opened.clear()
    assert main(["score", "--dataset", "table.jsonl", "--output_dir", "out", "--model", str(tiny_checkpoint)]) == 0
    recordings = {name: count for name, count in opened.items() if name.endswith(kind)}
    assert len(recordings) == 6
    assert set(recordings.values()) == {1}
    assert (decoded["files"], len(turns)) == (6, 6)
