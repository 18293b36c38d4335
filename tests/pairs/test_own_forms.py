"""Custom pairs in every form that is documented, and where their recordings are looked for."""

import json
import re

import datasets
import pytest
from support.systems_world import write_tone

from sdiareward.chat_sdiareward import turns_to_messages
from sdiareward.pairs.dialogues import Dialogues, RecordingFinder
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.own_forms import find_recording
from sdiareward.pairs.path_sandbox import ROOTS_VARIABLE
from sdiareward.pairs.rows import SIDES, open_rows, read_block


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a table with three recordings, which is not the working directory."""
    for number, name in enumerate(("q", "a", "b")):
        write_tone(tmp_path / "own" / f"{name}.wav", frequency_hz=200.0 + 50 * number)
    return tmp_path / "own"


def write_rows(path, rows):
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def message(role, name):
    return {"role": role, "content": [{"type": "audio", "audio": name}]}


def turn(role, name):
    return {"role": role, "text": None, "audio": name}


ANSWERS = {"chosen": "a.wav", "rejected": "b.wav"}
TWO_TURNS = {
    "paths after a prompt": {"prompt": "q.wav", **ANSWERS},
    "turns": {side: [turn("user", "q.wav"), turn("assistant", name)] for side, name in ANSWERS.items()},
    "messages": {side: [message("user", "q.wav"), message("assistant", name)] for side, name in ANSWERS.items()},
    "messages after a prompt, as in TRL": {
        "prompt": [message("user", "q.wav")],
        **{side: [message("assistant", name)] for side, name in ANSWERS.items()},
    },
    "paths after a prompt of turns": {"prompt": [turn("user", "q.wav")], **ANSWERS},
}


def read_paths(turns):
    """Return role and path of each recording."""
    found = []
    for each in turns_to_messages(turns):
        audio = each["content"][-1]["audio"]
        found.append((each["role"], audio if isinstance(audio, str) else audio["path"]))
    return found


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("row", [*TWO_TURNS.values(), ANSWERS], ids=[*TWO_TURNS, "answers alone"])
def test_every_form_of_a_pair_is_the_same_pair_wherever_the_table_lies(row, suffix, folder):
    path = write_rows(folder / f"pairs{suffix}", [row])
    question = [] if row is ANSWERS else [("user", str(folder / "q.wav"))]
    expected = {side: [*question, ("assistant", str(folder / name))] for side, name in ANSWERS.items()}
    loaded = load_pairs(path, "train")[0]
    assert {side: read_paths(loaded[side]) for side in SIDES} == expected
    scored = Dialogues(read_block(open_rows(path), [0], SIDES), [0], SIDES, RecordingFinder(dataset=path))
    assert {side: read_paths(scored[number]) for number, side in enumerate(SIDES)} == expected


def test_recordings_in_a_table_stay_in_it(folder):
    audio = {"bytes": (folder / "a.wav").read_bytes(), "path": "gone.wav"}
    path = write_rows(folder / "pairs.parquet", [{"chosen": audio, "rejected": "b.wav", "prompt": "q.wav"}])
    (loaded,) = load_pairs(path, "train")
    assert turns_to_messages(loaded["chosen"])[1]["content"] == [{"type": "audio", "audio": audio}]
    # Turns without a path are not copied.
    plain = write_rows(folder / "plain.parquet", [{side: [turn("assistant", audio)] for side in SIDES}])
    assert load_pairs(plain, "train").cache_files


def test_a_relative_path_begins_at_the_table_then_at_the_root(folder, tmp_path, monkeypatch):
    write_tone(tmp_path / "root" / "r.wav")
    write_tone(tmp_path / "root" / "a.wav", frequency_hz=900.0)
    write_tone(tmp_path / "here" / "h.wav")
    table, root = folder / "pairs.jsonl", tmp_path / "root"
    table.touch()
    assert find_recording("a.wav", table, root) == str(folder / "a.wav")
    assert find_recording("r.wav", table, root) == str(root / "r.wav")
    assert find_recording("h.wav", table) == str(tmp_path / "here" / "h.wav")
    # Without a file anywhere, an error names the place beside the table.
    assert find_recording("none.wav", table, root) == str(folder / "none.wav")
    assert find_recording(str(root / "r.wav"), table) == str(root / "r.wav")
    monkeypatch.setenv(ROOTS_VARIABLE, str(root))
    assert find_recording("r.wav", table) == str(root / "r.wav")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("row", TWO_TURNS.values(), ids=TWO_TURNS)
def test_the_id_of_a_pair_stays_when_its_folder_moves_and_follows_the_paths_as_written(row, suffix, folder, tmp_path):
    path = write_rows(folder / f"pairs{suffix}", [row, {**row, "chosen": row["rejected"]}])
    before = [label["pair_id"] for label in describe_pairs(load_pairs(path, "train"))]
    assert len(set(before)) == 2
    folder.rename(tmp_path / "moved")
    after = describe_pairs(load_pairs(tmp_path / "moved" / path.name, "train"))
    assert [label["pair_id"] for label in after] == before


def test_rows_with_an_id_keep_it_beside_rows_without(folder, tmp_path):
    path = write_rows(folder / "pairs.jsonl", [{**ANSWERS, "pair_id": "mine"}, {**ANSWERS, "pair_id": None}])
    labels = describe_pairs(load_pairs(path, "train"))
    assert labels[0]["pair_id"] == "mine" and re.fullmatch("[0-9a-f]{16}", labels[1]["pair_id"])
    folder.rename(tmp_path / "moved")
    assert describe_pairs(load_pairs(tmp_path / "moved" / "pairs.jsonl", "train")) == labels


def test_a_recording_that_comes_later_is_found(folder, tmp_path):
    path = write_rows(folder / "pairs.jsonl", [{"chosen": "late.wav", "rejected": "b.wav"}])
    write_tone(tmp_path / "here" / "late.wav")
    assert read_paths(load_pairs(path, "train")[0]["chosen"])[0][1] == str(tmp_path / "here" / "late.wav")
    write_tone(folder / "late.wav")
    assert read_paths(load_pairs(path, "train")[0]["chosen"])[0][1] == str(folder / "late.wav")


@pytest.mark.parametrize("name", ["../secret.wav", "/etc/hostname"])
def test_a_path_of_its_own_form_leads_out_of_no_root(name, folder, tmp_path):
    write_tone(tmp_path / "secret.wav")
    path = write_rows(folder / "pairs.jsonl", [{"chosen": name, "rejected": "b.wav"}])
    with pytest.raises(ValueError, match="lies outside of the audio root"):
        load_pairs(path, "train")


def test_a_malformed_side_is_no_dialogue_and_stops_no_other(folder, caplog):
    rows = [
        {"prompt": "q.wav", "chosen": [{"role": "assistant", "content": 3}], "rejected": [turn("assistant", "b.wav")]},
        {"prompt": "q.wav", "chosen": [turn("assistant", "a.wav")], "rejected": [turn("assistant", "b.wav")]},
    ]
    pairs = load_pairs(write_rows(folder / "pairs.jsonl", rows), "train")
    assert (pairs[0]["chosen"], len(pairs[1]["chosen"])) == ([], 2)
    assert "its content is a int" in caplog.text
