"""Flags and YAML become dataclasses in the same way for every command."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from sdiareward.common import arguments, commands
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.commands import Command, run_command
from sdiareward.common.user_errors import UserError


@dataclass(kw_only=True)
class Arguments:
    dataset: str = field(metadata={"help": "data"})
    max_turn_s: float | None = None
    num_pairs: int = field(default=5, metadata={"minimum": 1})
    names: list[str] = field(default_factory=lambda: ["all"])
    roots: list[str] = field(default_factory=list, metadata={"action": "append"})
    engine: Literal["local", "ray"] = "local"
    options: dict[str, int] | None = None
    strict: bool = False
    baselines: bool = True


@dataclass(kw_only=True)
class FileArguments:
    file: Path = field(metadata={"positional": True})
    other: Path | None = field(default=None, metadata={"positional": True})
    json: bool = False
    tie: bool = True


def parse(*argv, kind=Arguments):
    return parse_arguments((kind,), [str(word) for word in argv], prog="x", description=None)[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--max_turn_s 2", {"max_turn_s": 2.0}),
        ("--max-turn-s 2", {"max_turn_s": 2.0}),
        ("--max_turn_s None", {}),
        ("--strict", {"strict": True}),
        ("--no_baselines", {"baselines": False}),
        ("--no-baselines", {"baselines": False}),
        ("--baselines False", {"baselines": False}),
        ("--names a b", {"names": ["a", "b"]}),
        ("--roots a --roots b", {"roots": ["a", "b"]}),
        ('--options {"a":1}', {"options": {"a": 1}}),
    ],
)
def test_a_flag_gives_its_field_a_value_of_its_type(words, expected):
    assert parse("--dataset", "none", *words.split()) == Arguments(dataset="none", **expected)


def test_a_boolean_does_not_take_the_positional_argument_that_follows_it():
    found = parse("--json", "a.json", "--no-tie", kind=FileArguments)
    assert (found.file, found.other, found.json, found.tie) == (Path("a.json"), None, True, False)


def test_flags_override_the_file_and_values_in_it_are_converted(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("dataset: 2024\nmax_turn_s: 1e-5\nnum_pairs: 3\nnames: abc\nroots: [def]\nstrict: true\n")
    found = parse("--config", path, "--num_pairs", 7)
    assert found == Arguments(dataset="2024", max_turn_s=1e-5, num_pairs=7, names=["abc"], roots=["def"], strict=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dataset: d\nstrikt: true\n", r"\['strikt'\]"),
        ("dataset: d\nengine: fax\n", "engine is 'fax'"),
        ("dataset: d\nengine: 3\n", "engine is 3"),
        ("dataset: d\nmax_turn_s: long\n", "max_turn_s is 'long'"),
        ("dataset: d\nnum_pairs: 1.5\n", "num_pairs is 1.5"),
        ("dataset: d\nnum_pairs: true\n", "num_pairs is True"),
        ("dataset: d\nstrict: 2\n", "strict is 2"),
        ("dataset: 1.10\n", "dataset is read as 1.1"),
        ("dataset: 2026-01-02\n", "dataset is read as datetime.date.* in quotes"),
        ("dataset: no\n", "dataset is read as False.* in quotes, as in 'no'"),
        ("dataset: d\nnum_pairs: 0\n", "--num_pairs is 0"),
        ("- d\n", "holds list"),
    ],
)
def test_a_wrong_file_is_a_user_error(text, named, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=named):
        parse("--config", tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: --dataset"),
        (["--data", "d"], "unrecognized arguments: --data"),
        (["--dataset", "d", "--engine", "fax"], "invalid choice: 'fax'"),
        (["--dataset", "d", "--strict", "maybe"], "'maybe' is neither true nor false"),
    ],
)
def test_a_wrong_flag_ends_with_status_two(argv, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(*argv)
    assert message in capsys.readouterr().err


def test_help_shows_defaults(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse("--help")
    shown = capsys.readouterr().out
    assert "data\n" in shown and "(default: 5)" in shown and "(default: all)" in shown


@pytest.mark.parametrize("name", ["RewardConfig", "GRPOConfig", "SFTConfig"])
def test_the_flags_of_a_configuration_of_trl_are_those_of_its_own_parser(name):
    trl = pytest.importorskip("trl")
    kind = getattr(trl, name)
    ours = arguments._add_flags(argparse.ArgumentParser(argument_default=argparse.SUPPRESS), kind)
    theirs = {}
    for flag in trl.TrlParser([kind])._actions:
        theirs.setdefault(flag.dest, flag)
    del theirs["help"]
    theirs.pop("config", None)
    assert set(ours) == set(theirs)
    for dest, flag in theirs.items():
        assert ours[dest].option_strings == flag.option_strings
        assert list(ours[dest].choices or []) == list(flag.choices or [])
        # An optional boolean may come without a value, too.
        assert ours[dest].nargs == flag.nargs or (ours[dest].nargs, flag.nargs) == ("?", None)
        # A flag that is a mapping only, which TrlParser refuses, is JSON here.
        for text in ("1", "0.5", "true", "steps", "none", *map(str, flag.choices or [])):
            assert ours[dest].metavar == "JSON" or convert(ours[dest], text) == convert(flag, text), dest


def convert(flag, text):
    try:
        return flag.type(text)
    except Exception:
        return "refused"


def test_training_arguments_have_the_values_of_trl(tmp_path):
    trl = pytest.importorskip("trl")
    path = tmp_path / "x.yaml"
    path.write_text("learning_rate: 2e-5\nreport_to: none\neval_strategy: 'no'\nlr_scheduler_kwargs: {a: 1}\n")
    argv = ["--config", str(path), "--output_dir", str(tmp_path), "--bf16", "False", "--use-cpu"]
    (ours,) = parse_arguments((trl.RewardConfig,), argv, prog="x", description=None)
    (theirs,) = trl.TrlParser([trl.RewardConfig]).parse_args_and_config(argv)
    assert ours.to_dict() == theirs.to_dict()


@dataclass
class Word:
    word: str = "ok"


def say(args: Word) -> int | None:
    if args.word == "bug":
        raise ZeroDivisionError
    if args.word == "bad":
        raise ValueError("word is bad;\nit must be good.")
    if args.word == "stop":
        raise KeyboardInterrupt
    return 1 if args.word == "one" else None


TABLE = {"say": Command(f"{__name__}:say", "say a word"), "more": Command({"say": Command("x:say", "x")}, "more")}


@pytest.mark.parametrize(("word", "status"), [("ok", 0), ("one", 1), ("bad", 2), ("stop", 130)])
def test_a_command_returns_its_exit_status(word, status, capsys, monkeypatch):
    monkeypatch.setattr(commands, "import_module", lambda name: argparse.Namespace(say=say))
    assert run_command(TABLE, ["say", "--word", word], prog="x", description=None) == status
    error = capsys.readouterr().err
    expected = {"bad": "x say: error: word is bad; it must be good.\n", "stop": "x say: interrupted; run the same"}
    assert error.startswith(expected.get(word, "")) and error.count("\n") == (word in expected)
    assert run_command(TABLE, ["more", "say", "--word", word], prog="x", description=None) == status


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(commands, "import_module", lambda name: argparse.Namespace(say=say))
    with pytest.raises(ZeroDivisionError):
        run_command(TABLE, ["say", "--word", "bug"], prog="x", description=None)
