"""The help of every command is complete and quick, and its rows are read; `--snapshot-update` after a change."""

import json
import re
import subprocess
import sys

import datasets
import pytest
from rich.console import ConsoleDimensions
from support.paths import ROOT
from support.systems_world import write_tone

from sdiareward.chat_sdiareward import make_dialogue, turns_to_messages
from sdiareward.cli import APP, main
from sdiareward.common import commands
from sdiareward.common.commands import YAML_ONLY
from sdiareward.dataset_builder.sources import read_source
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.rows import DIALOGUE_COLUMNS, find_dialogue_columns, open_rows, read_block
from sdiareward.pairs.schema import SIDES
from sdiareward.pairs.systems import read_systems


# Scripts of TRL show the help of its parser.
SCRIPTS = ("train", "train --recipe=wavreward_sft", "train --recipe=wavreward_grpo")
MOST_FLAGS = 25
# Flag with the name of a repository on the Hub -> flag with its revision.
REVISIONS = {
    "--source": "--revision",
    "--model": "--revision",
    "--dataset": "--dataset_revision",
    "--baseline_data": "--baseline_revision",
    "--also": "--also_revisions",
    "--whisper": "--whisper_revision",
    "--language_model": "--language_model_revision",
}
_NOTED = re.compile(r"<!-- rows: (\w+) -->\n```json\n(.*?)^```", re.MULTILINE | re.DOTALL)


def list_commands(app=APP, prefix=""):
    for name in app:
        if name[0] != "-" or "=" in name:
            if (command := app[name]).default_command is not None and f"{prefix}{name}" not in SCRIPTS:
                yield f"{prefix}{name}"
            yield from list_commands(command, f"{prefix}{name} ")


COMMANDS = list(list_commands())


@pytest.mark.parametrize("words", ["", "human", "push", *COMMANDS])
def test_the_help_is_as_reviewed(words, snapshot, monkeypatch, capsys):
    # A console that printed before keeps its width.
    monkeypatch.setattr("rich.console.Console.size", property(lambda console: ConsoleDimensions(100, 25)))
    assert main([*words.split(), "--help"]) == 0
    assert capsys.readouterr().out == snapshot


@pytest.mark.parametrize("words", COMMANDS)
def test_flags_are_few_and_have_help_and_every_repository_has_a_revision(words):
    command = APP
    for word in words.split():
        command = command[word]
    found = command.assemble_argument_collection(default_parameter=APP.default_parameter, parse_docstring=True)
    arguments = [each for each in found if each.show]
    assert [each.name for each in arguments if not each.parameter.help] == []
    keys = sorted(each.name[2:] for each in found if YAML_ONLY.group[0] in (each.parameter.group or ()))
    told = re.search(r"without a flag: ([\w, \n]+)\.", command.help or command.default_command.__doc__)
    assert (re.findall(r"\w+", told[1]) if told else []) == keys
    assert len([each for each in arguments if each.name.startswith("--")]) <= MOST_FLAGS
    flags = {f"--{each.name.removeprefix('--').lower()}" for each in arguments}
    if not words.startswith("push"):  # A folder is published, and its training data are only named.
        assert {REVISIONS[name] for name in flags & set(REVISIONS)} <= flags


@pytest.mark.slow
@pytest.mark.parametrize("words", SCRIPTS)
def test_the_help_of_a_script_of_trl_has_its_most_used_options(words, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*words.split(), "--help"])
    flags = re.findall(r"^  (--\w+)", capsys.readouterr().out, re.MULTILINE)
    assert {"--model", "--dataset", "--output_dir", "--learning_rate"} <= set(flags)
    assert len(flags) == len(set(flags)) <= MOST_FLAGS


_HELP = """
import sys
from sdiareward.cli import main
for words in sys.argv[1:]:
    assert main([*words.split(), "--help"]) == 0
    heavy = {"datasets", "gradio", "pandas", "scipy", "torch", "transformers", "trl"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


def test_help_imports_no_heavy_library():
    done = subprocess.run([sys.executable, "-c", _HELP, *COMMANDS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Be in a folder beside that of the tables, which holds every recording that the examples name."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for number, name in enumerate(("user", "better", "worse", "call7/0", "call7/1")):
        write_tone(tmp_path / "data" / f"{name}.wav", frequency_hz=200.0 + 50 * number)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "data"


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
    check_pair(folder, commands.PAIR_ROW)
    check_dialogue(folder, commands.DIALOGUE_ROW)
    systems = [json.dumps({**json.loads(commands.DIALOGUE_ROW), "system": name}) + "\n" for name in "ab"]
    (folder / "all.jsonl").write_text("".join(systems))
    assert [system.names for system in read_systems([folder / "all.jsonl"])] == [["call7"], ["call7"]]
    (folder / "manifest.jsonl").write_text(json.dumps(json.loads(commands.MANIFEST_ROW)) + "\n")
    assert [type(item).__name__ for item in read_source("folder", folder)] == ["Episode"]


def test_the_rows_of_the_guide_are_read(folder):
    guide = (ROOT / "docs" / "data_format.md").read_text(encoding="utf-8")
    found = [(kind, line) for kind, block in _NOTED.findall(guide) for line in block.splitlines()]
    assert {kind for kind, _ in found} == {"pairs", "dialogues"}
    for kind, line in found:
        (check_pair if kind == "pairs" else check_dialogue)(folder, line)
