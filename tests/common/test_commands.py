"""Functions become commands: flags, `--config`, exit statuses, one line for a mistake."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from cyclopts import Parameter
from cyclopts.types import PositiveInt

from sdiareward.common import commands
from sdiareward.common.commands import YAML_ONLY, Words, make_app, parse_options, parse_trl, run_app
from sdiareward.common.errors import UserError


@Parameter(name="*")
@dataclass(kw_only=True)
class Model:
    """A model.

    Args:
        model: Where it is.
    """

    model: str = "nano"
    speed: Annotated[int, YAML_ONLY] = 1
    size: int = field(default=3, metadata={"help": "How many.", "minimum": 1})


MODEL = Model()
APP = make_app("sdiareward", "It speaks.")
MORE = make_app("more", "Say more.")
APP.command(MORE)


@APP.command
def say(
    file: Path | None = None,
    /,
    *,
    max_turn_s: float | None = None,
    limit: PositiveInt | None = None,
    names: list[str] | None = None,
    engine: Literal["local", "ray"] = "local",
    tie: bool = True,
    strict: bool = False,
    output_dir: Path | None = None,
    model: Model = MODEL,
) -> int | None:
    """Say it."""
    if engine == "ray":
        raise {"a": ZeroDivisionError, "b": KeyboardInterrupt, "c": KeyboardInterrupt("stopped at step 3.")}.get(
            str(file), ValueError(f"{file} is bad;\nit must be good.")
        )
    sys.stdout.write(" ".join(map(str, (file, max_turn_s, limit, names, tie, strict, model.model, model.size))) + "\n")
    return 1 if strict else None


@MORE.command(name="--recipe=rap", help_flags=())
def rap(*words: Words) -> None:
    """Rap it."""
    sys.stdout.write(f"rap {' '.join(words)}\n")


@MORE.default
@MORE.command
def sing(*, tune: str) -> None:
    """Sing it."""
    sys.stdout.write(f"{tune}\n")


@pytest.mark.parametrize(
    ("words", "status", "printed"),
    [
        ("say", 0, "None None None None True False nano 3"),
        ("say f --max_turn_s 2 --limit 1", 0, "f 2.0 1 None True False nano 3"),
        ("say --max-turn-s 2 --model m", 0, "None 2.0 None None True False m 3"),
        ("say --names a b --strict f", 1, "f None None ['a', 'b'] True True nano 3"),
        ("say f --names a --names b --no_tie", 0, "f None None ['a', 'b'] False False nano 3"),
        ("say f --no-tie --strict", 1, "f None None None False True nano 3"),
        ("more sing --tune la", 0, "la"),
        ("more --tune la", 0, "la"),
        ("say --config x.yaml --limit 7", 0, "None 1e-05 7 ['abc'] True False 2024 3"),
        ("say --model_name_or_path m", 0, "None None None None True False m 3"),
        ("say --model-name-or-path=m", 0, "None None None None True False m 3"),
        ("more --tune la --recipe rap", 0, "rap --tune la"),
        ("more --recipe=rap --help", 0, "rap --help"),
        ("more --config recipe.yaml", 0, "rap --config recipe.yaml"),
    ],
)
def test_flags_and_a_file_become_arguments_of_their_types(words, status, printed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("model_name_or_path: 2024\nmax_turn_s: 1e-5\nlimit: 3\nnames: abc\nspeed: 2\n")
    Path("recipe.yaml").write_text("recipe: rap\n")
    assert run_app(APP, words.split()) == status
    assert capsys.readouterr().out == printed + "\n"


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        ("say --sizes 3", "", "Unknown option: --sizes. Did you mean --size?"),
        ("say --speed 3", "", "speed is a key of the YAML file of --config, not a flag"),
        ("more --recipe jazz", "", "there is no such recipe; give --recipe=rap."),
        ("more --config x.yaml", "recipe: jazz\n", "there is no such recipe; give --recipe=rap."),
        ("say --size 0", "", "--size is 0; it must be at least 1"),
        ("say --limit 0", "", 'Invalid value "0" for --limit'),
        ("say --engine fax", "", 'Invalid value "fax" for --engine'),
        ("say --strict=maybe", "", "--strict"),
        ("say a b", "", "'b'"),
        ("", "", "no command is given; the commands are more, say."),
        ("sya", "", "unknown command 'sya'; did you mean say?"),
        ("more snig --tune x", "", "unknown command 'snig'; did you mean sing?"),
        ("more", "", "--tune requires an argument"),
        ("say --config none.yaml", "", "none.yaml: no such file of settings"),
        ("say --config x.yaml", "speed: fast\n", "[speed] from x.yaml"),
        ("say --config x.yaml", "strikt: true\n", "Did you mean --strict?"),
        ("say --config x.yaml", "engine: fax\n", 'Invalid value "fax" for [engine] from x.yaml'),
        ("say --config x.yaml", "limit: few\n", "[limit] from x.yaml"),
        ("say --config x.yaml", "- d\n", "x.yaml: found list"),
        ("say x --engine ray", "", "x is bad; it must be good.\n"),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_two(words, text, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(text)
    assert run_app(APP, words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ": error: " in error and message in error
    assert error.startswith(f"sdiareward {words.split()[0]}: " if words[:3] in ("say", "mor") else "sdiareward: ")


def test_an_interruption_ends_with_130_and_a_bug_with_its_traceback(capsys, monkeypatch):
    assert run_app(APP, ["say", "b", "--engine", "ray"]) == 130
    assert capsys.readouterr().err.startswith("sdiareward say: interrupted; run the same command again")
    assert run_app(APP, ["say", "c", "--engine", "ray"]) == 130
    assert capsys.readouterr().err == "sdiareward say: stopped at step 3.\n"
    with pytest.raises(ZeroDivisionError):
        run_app(APP, ["say", "a", "--engine", "ray"])
    monkeypatch.setenv("SDIAREWARD_TRACEBACK", "1")
    assert run_app(APP, ["say", "x", "--engine", "ray"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and error.endswith("\nsdiareward say: error: x is bad; it must be good.\n")


def test_a_missing_module_is_told_with_its_extra(capsys):
    def absent():
        raise ModuleNotFoundError("No module named 'peft'", name="peft")

    assert commands.run_guarded("p", absent, "judges") == 2
    assert capsys.readouterr().err == 'p: error: peft is not installed; pip install "sdiareward[judges]"\n'


def test_a_script_gets_its_options(capsys):
    assert parse_options(Model, ["--size", "4"], prog="p", description="It runs.") == Model(size=4)
    with pytest.raises(SystemExit, match="0"):
        parse_options(Model, ["--help"], prog="p", description="It runs.")
    shown = capsys.readouterr().out
    assert "It runs." in shown and "Where it is." in shown and "How many." in shown


def test_a_script_of_trl_reads_its_file_and_refuses_what_it_does_not_know(tmp_path):
    trl = pytest.importorskip("trl")
    (tmp_path / "x.yaml").write_text("learning_rate: 2e-5\neval_strategy: 'no'\nmodel_name_or_path: m\n")
    argv = ["--config", str(tmp_path / "x.yaml"), "--output_dir", str(tmp_path), "--use_cpu", "--bf16", "False"]
    model, training = parse_trl((Model, trl.RewardConfig), argv, prog="p", shown=())
    assert (model.model, training.learning_rate, training.eval_strategy) == ("m", 2e-5, "no")
    with pytest.raises(UserError, match="unknown option --learning_rat; did you mean --learning_rate"):
        parse_trl((Model, trl.RewardConfig), [*argv, "--learning_rat", "1"], prog="p", shown=())
    (tmp_path / "x.yaml").write_text("modle: m\n")
    with pytest.raises(UserError, match="unknown option --modle; did you mean --model"):
        parse_trl((Model, trl.RewardConfig), argv, prog="p", shown=())


def test_a_path_that_the_terminal_cannot_show_is_printed(monkeypatch, tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert run_app(APP, ["say", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"]) == 0
    assert (tmp_path / "out").read_text().startswith("caf\\xe9 ")
