"""Commands of a table run, print their help without their libraries, and end mistakes in one line."""

import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from sdiareward.cli import COMMANDS
from sdiareward.common import commands
from sdiareward.common.arguments import Inherited, parse_arguments
from sdiareward.common.commands import Command, run_command, run_single
from sdiareward.common.user_errors import UserError


@dataclass(kw_only=True)
class Own:
    folder: str = field(default="f", metadata={"flag": "output_dir", "aliases": ("--out",), "help": "where to"})
    size: int = field(default=3, metadata={"group": "amounts", "help": "how many"})


@dataclass
class Library:
    rate: float = field(default=0.5, metadata={"help": "how fast"})
    depth: int = field(default=2, metadata={"help": "how deep"})


def say(own: Own) -> None:
    if own.folder == "bad":
        raise UserError("it cannot.")
    if own.folder == "stop":
        raise KeyboardInterrupt("stopped at step 3.")
    sys.stdout.write(f"{own.folder} {own.size}\n")


TABLE = {"say": Command(f"{__name__}:say", "say it"), "sing": Command(f"{__name__}:sing", "sing it")}
INHERITED = Inherited(f"{__name__}:Library", "a.Library", {"rate": "speed"})


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Let targets be found in this file, which is in no package."""
    monkeypatch.setattr(commands, "import_module", lambda name: sys.modules[__name__])
    monkeypatch.setattr("sdiareward.common.arguments.import_module", lambda name: sys.modules[__name__])


@pytest.mark.parametrize("flag", ["--output_dir", "--output-dir", "--folder", "--out"])
def test_a_flag_has_one_name_and_hidden_aliases(flag, capsys):
    assert run_single(TABLE["say"], [flag, "x"], prog="p") == 0
    assert capsys.readouterr().out == "x 3\n"
    with pytest.raises(SystemExit, match="0"):
        run_single(TABLE["say"], ["--help"], prog="p")
    shown = capsys.readouterr().out
    assert ("--output_dir OUTPUT_DIR" in shown) and not {"--folder", "--out", "--output-dir"} & set(shown.split())


@pytest.mark.parametrize("key", ["output_dir", "folder", "out"])
def test_a_file_takes_the_names_that_flags_have(key, tmp_path):
    (tmp_path / "x.yaml").write_text(f"{key}: y\n")
    argv = ["--config", str(tmp_path / "x.yaml")]
    assert parse_arguments([Own], argv, prog="p", description=None) == (Own(folder="y"),)
    (tmp_path / "x.yaml").write_text("output_dir: y\nfolder: z\n")
    with pytest.raises(UserError, match="gives folder under two names"):
        parse_arguments([Own], argv, prog="p", description=None)


def test_the_options_of_a_library_are_listed_only_when_all_are_asked_for(capsys):
    def show(*argv):
        with pytest.raises(SystemExit, match="0"):
            parse_arguments([Own], argv, prog="p", description="It speaks.", inherited=INHERITED)
        return capsys.readouterr().out

    short, whole = show("--help"), show("--help_all")
    assert "--rate RATE" in short and "speed" in short and "--depth" not in short
    assert "--depth DEPTH" in whole and "how deep (default: 2)" in whole
    assert whole.index("amounts:") < whole.index("options of a.Library:") < whole.index("--depth")
    found = parse_arguments([Own], ["--size", "4", "--depth", "9"], prog="p", description=None, inherited=INHERITED)
    assert found == (Own(size=4), Library(depth=9))


def test_a_default_command_runs_where_flags_follow_and_no_name(capsys):
    nested = {"talk": Command(TABLE, "talk", default="say")}
    for words in (["talk", "--size", "7"], ["talk", "say", "--size", "7"]):
        assert run_command(nested, words, prog="p", description=None) == 0
        assert capsys.readouterr().out == "f 7\n"
    with pytest.raises(SystemExit, match="0"):
        run_command(nested, ["talk", "--help"], prog="p", description=None)
    assert "sing it" in capsys.readouterr().out


def test_an_error_or_interruption_is_one_line_and_a_traceback_printed_on_request(monkeypatch, capsys):
    assert run_single(TABLE["say"], ["--out", "stop"], prog="p") == 130
    assert capsys.readouterr().err == "p: stopped at step 3.\n"
    assert run_single(TABLE["say"], ["--out", "bad"], prog="p") == 2
    assert capsys.readouterr().err == "p: error: it cannot.\n"
    monkeypatch.setenv("SDIAREWARD_TRACEBACK", "1")
    assert run_single(TABLE["say"], ["--out", "bad"], prog="p") == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and error.endswith("\np: error: it cannot.\n")


def test_a_missing_module_is_told_with_its_extra(capsys, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError("No module named 'peft'", name="peft")

    monkeypatch.setattr(commands, "import_module", absent)
    assert run_single(Command("x:y", "x", extra="train"), [], prog="p") == 2
    assert capsys.readouterr().err == 'p: error: peft is not installed; pip install "sdiareward[train]"\n'


@pytest.mark.parametrize("called", ["train.py", "sdiareward-train", "pytest"])
def test_a_program_is_named_as_it_was_called(called, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{called}"])
    named = commands.name_program("sdiareward-train", "train.py")
    assert named == ("sdiareward-train" if called == "pytest" else called)


def test_the_commands_are_listed_in_the_order_of_use():
    order = "score compare build train eval audit calibrate human judge wavreward serve demo push convert export"
    assert list(COMMANDS) == [*order.split(), "build-model", "env"]


_HELP = """
import contextlib, io, sys
from sdiareward.cli import COMMANDS, main

def show(commands, words):
    for name, command in commands.items():
        if command.is_program:
            continue
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
            main([*words, name, "--help"])
        assert shown.getvalue().startswith("usage: sdiareward "), (words, name)
        heavy = {"datasets", "gradio", "pandas", "scipy", "torch", "transformers", "trl"} & set(sys.modules)
        assert not heavy, (words, name, heavy)
        if not isinstance(command.target, str):
            show(command.target, [*words, name])

show(COMMANDS, [])
"""


def test_the_help_of_every_command_imports_no_heavy_library():
    done = subprocess.run([sys.executable, "-c", _HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
