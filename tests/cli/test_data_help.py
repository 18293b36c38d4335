"""The rows that the help, the README and the guide show are rows that the commands read."""

import contextlib
import io
import json
import re

import datasets
import pytest
from support.paths import ROOT
from support.systems_world import write_tone

from sdiareward.chat_sdiareward import make_dialogue, turns_to_messages
from sdiareward.cli import main
from sdiareward.common import data_help
from sdiareward.dataset_builder.sources import read_source
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.rows import DIALOGUE_COLUMNS, find_dialogue_columns, open_rows, read_block
from sdiareward.pairs.schema import SIDES
from sdiareward.pairs.systems import read_systems


COMMANDS = {
    "score": data_help.DIALOGUE_ROW,
    "compare": data_help.DIALOGUE_ROW,
    "train": data_help.PAIR_ROW,
    "eval": data_help.PAIR_ROW,
    "audit": data_help.PAIR_ROW,
    "human sample": data_help.PAIR_ROW,
    "judge eval": data_help.PAIR_ROW,
    "build": data_help.MANIFEST_ROW,
    "build build": data_help.MANIFEST_ROW,
}
_NOTED = re.compile(r"<!-- rows: (\w+) -->\n```json\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Be in a folder beside that of the tables, which holds every recording that the examples name."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for number, name in enumerate(("user", "better", "worse", "call7/0", "call7/1")):
        write_tone(tmp_path / "data" / f"{name}.wav", frequency_hz=200.0 + 50 * number)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "data"


@pytest.mark.parametrize(("words", "row"), COMMANDS.items(), ids=COMMANDS)
def test_the_help_of_every_command_that_reads_data_shows_a_row(words, row):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    assert json.loads(row)
    assert row in shown.getvalue()


def check_pair(folder, text):
    (folder / "rows.jsonl").write_text(json.dumps(json.loads(text)) + "\n")
    (pair,) = load_pairs(folder / "rows.jsonl", "train")
    for side in SIDES:
        messages = turns_to_messages(pair[side])
        make_dialogue(messages)
        assert messages[-1]["content"][-1]["audio"]


def check_dialogue(folder, text):
    (folder / "rows.jsonl").write_text(json.dumps(json.loads(text)) + "\n")
    rows = open_rows(folder / "rows.jsonl")
    (column,) = find_dialogue_columns(rows.features, "rows")
    assert column in DIALOGUE_COLUMNS
    make_dialogue(turns_to_messages(read_block(rows, [0], (column,))[0][column]))


def test_the_rows_of_the_help_are_read(folder):
    check_pair(folder, data_help.PAIR_ROW)
    check_dialogue(folder, data_help.DIALOGUE_ROW)
    systems = [json.dumps({**json.loads(data_help.DIALOGUE_ROW), "system": name}) + "\n" for name in "ab"]
    (folder / "all.jsonl").write_text("".join(systems))
    assert [system.names for system in read_systems([folder / "all.jsonl"])] == [["call7"], ["call7"]]
    (folder / "manifest.jsonl").write_text(json.dumps(json.loads(data_help.MANIFEST_ROW)) + "\n")
    assert [type(item).__name__ for item in read_source("folder", folder)] == ["Episode"]


def test_the_rows_of_the_readme_and_the_guide_are_read(folder):
    found = [
        (name, kind, line)
        for name in ("README.md", "docs/data_format.md")
        for kind, block in _NOTED.findall((ROOT / name).read_text(encoding="utf-8"))
        for line in block.splitlines()
    ]
    assert {name for name, kind, _ in found if kind == "pairs"} == {"README.md", "docs/data_format.md"}
    assert {kind for _, kind, _ in found} == {"pairs", "dialogues"}
    for _, kind, line in found:
        (check_pair if kind == "pairs" else check_dialogue)(folder, line)
