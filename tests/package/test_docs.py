"""The code blocks of the README and the guides: Python runs, commands are checked against their parsers."""

import importlib
import importlib.util
import re
import shlex
import sys

import datasets
import pytest
import trl
from support.docs_blocks import all_blocks, module_of, split_commands
from support.docs_world import GIVEN
from support.paths import ROOT

from sdiareward.auditing.verdicts import read_limits
from sdiareward.common import commands
from sdiareward.common.errors import read_extras
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import PERTURBATIONS


PYTHON = all_blocks("python")
COMMANDS = [
    pytest.param(words, id=f"{block.place} {' '.join(words)[:50]}")
    for block in all_blocks("bash")
    for words in split_commands(block.code)
]


class Parsed(BaseException):  # noqa: N818 (nothing went wrong)
    """Raised where a command would begin to work."""


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Be in a folder that has what a clone has, but in which files may be written."""
    for name in ("checkpoints", "configs", "esdr_accuracy", "examples", "sample"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_every_python_block_runs(block, reader, request):
    if block.not_run is not None:
        pytest.skip(f"{block.place} is not run: {block.not_run}")
    names = {"__name__": "__main__"}
    for given in block.given:
        assert given in GIVEN, f"{block.place}: nothing is known of {given!r}; the notes know {sorted(GIVEN)}"
        names |= GIVEN[given](request.getfixturevalue)
    exec(compile(block.code, block.place, "exec"), names)


def test_a_block_that_does_not_run_says_why():
    silent = [block.place for block in PYTHON if block.not_run is not None and len(block.not_run) < 20]
    assert silent == []
    assert sum(block.not_run is None for block in PYTHON) > len(PYTHON) / 2


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_of_the_guides_is_understood(words, reader, monkeypatch):
    check_files(words)
    if words[0] == "pip":
        check_extras(words)
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words[1]
    elif (found := module_of(words)) is not None:
        check_parses(*found, monkeypatch)


def check_files(words):
    """Every file of the repository that is named must be there."""
    for word in words:
        if word.startswith(("configs/", "examples/", "checkpoints/", "sample/")):
            assert (ROOT / word).exists(), word


def check_extras(words):
    for extras in (re.search(r"\[(.*)\]", word) for word in words):
        for extra in extras[1].split(",") if extras else ():
            assert extra in {*read_extras(), "dev"}, extra


def check_parses(name, arguments, monkeypatch):
    """Run a module's `main` up to where its arguments are known to be good."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"there is no module {name}"
    module = importlib.import_module(f"{name}.__main__" if spec.submodule_search_locations else name)
    stop_after_parsing(monkeypatch)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(Parsed):
        assert module.main() == 0


def stop_after_parsing(monkeypatch):
    """Let every command end before it runs; a script of TRL before it makes dataclasses, which check the machine."""

    def stop(command, bound, **_):
        if "words" in bound.arguments:
            command(*bound.args)
        raise Parsed

    def stop_trl(parser, args, **_):
        parser.parse_known_args(args)
        raise Parsed

    monkeypatch.setattr(commands, "_start", stop)
    monkeypatch.setattr("sdiareward.train.require_model", str)
    monkeypatch.setattr(trl.TrlParser, "parse_args_into_dataclasses", stop_trl)


@pytest.mark.slow
@pytest.mark.parametrize("block", all_blocks("console"), ids=lambda block: block.place)
def test_every_console_block_prints_what_it_shows(block, reader, capsys):
    from sdiareward.cli import main

    first, *expected = block.code.splitlines()
    program, *arguments = shlex.split(first.removeprefix("$ "))
    assert (first[:2], program) == ("$ ", "sdiareward")
    assert main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    number = re.compile(r"[+-]?\d+\.\d+")
    assert [number.sub("#", line) for line in printed] == [number.sub("#", line) for line in expected]
    found, shown = ([float(x) for line in lines for x in number.findall(line)] for lines in (printed, expected))
    assert found == pytest.approx(shown, abs=0.02)


def test_every_guide_is_in_the_index_and_every_link_leads_somewhere():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    guides = sorted((ROOT / "docs").glob("*.md"))
    assert [path.name for path in guides if path.name != "index.md" and f"({path.name})" not in index] == []
    broken = [
        f"{path.name}: {link}"
        for path in (*(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")), *guides)
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / link).exists()
    ]
    assert broken == []


def test_the_guide_to_the_audit_has_the_changes_and_the_limits_of_the_code():
    guide = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in guide.splitlines()]
    rows = {name: row[2] for row in cells if len(row) > 2 for name in row[0].split(", ")}
    for name, change in PERTURBATIONS.items():
        assert rows[name] == ", ".join(f"{severity:g}" for severity in change.severities), name
        assert not change.is_held_out or f"`{name}`" in guide
    assert {name: attack.baseline for name, attack in ATTACKS.items()}.items() <= rows.items()
    for check, limit in read_limits().items():
        [(bound, number)] = [(bound, limit[bound]) for bound in ("at_most", "at_least") if bound in limit]
        assert rows[check].startswith(f"{bound.replace('_', ' ')} ")
        written = float(re.search(r"[\d.]+", rows[check])[0])
        assert written == pytest.approx(number if limit["unit"] == "ratio" else 100 * number)
