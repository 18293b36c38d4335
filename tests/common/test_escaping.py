"""Words and names from data where characters mean something: Markdown, YAML, a terminal, a table for a spreadsheet."""

import ast
import json
import logging
import re
import subprocess
import sys

import pytest
import yaml
from support.paths import ROOT

from sdiareward import cli
from sdiareward.common.escaping import PrintableFormatter, escape_code, escape_markdown, escape_terminal
from sdiareward.common.markdown import render_table
from sdiareward.dataset_builder.reports.data_card import render_card
from sdiareward.evaluation.human.agreement import render_raters


HOSTILE = [
    "a | b",
    "a\n| b | c |",
    "a\r\n# Heading",
    "![x](https://x.org/seen.png)",
    "[press](javascript:alert(1))",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "`code` and ``more``",
    "\u202egnp.exe",
    "a\x1b[2Jb",
    "=cmd|' /C calc'!A0",
    "<!-- results -->",
    "a\u2028b\x85c",
]
MARKUP = ("[", "]", "<", "`", "|")


def unescaped(text, marks=MARKUP):
    """Return which characters of a text mean something to Markdown."""
    text = text.replace("\\\\", "")
    return [mark for mark in marks if mark in text.replace(f"\\{mark}", "")]


@pytest.mark.parametrize("text", HOSTILE)
def test_words_in_markdown_are_words_of_one_line(text):
    shown = escape_markdown(text)
    assert len(shown.splitlines()) == 1
    assert unescaped(shown) == []
    assert "\u202e" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_code_ends_where_it_should(text):
    shown = escape_code(text)
    assert shown.count("`") == 2
    assert shown[0] == shown[-1] == "`"
    assert len(shown.splitlines()) == 1
    assert unescaped(shown, ["|"]) == []


def test_ordinary_words_stay_as_they_are():
    for text in ("semi_wild", "espeak-ng 1.52", "Größe: 3 s", "**model**", "CC-BY-4.0", "0.5"):
        assert escape_markdown(text) == text
    assert escape_code("a_b") == "`a_b`"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_of_a_table_stays_one_cell(text):
    for pad in (False, True):
        lines = render_table(["name", "n"], [[text, 1]], pad=pad)
        assert len("\n".join(lines).splitlines()) == 3
        assert lines[2].replace("\\|", "").count("|") == 3
        assert unescaped(lines[2].strip("| ").partition(" | ")[0]) == []


def test_the_cells_of_a_padded_table_stand_below_each_other():
    lines = render_table(["name", "n|"], [["a", 1], ["longer", 1000]], pad=True)
    assert lines == ["| name   |  n\\| |", "| ---    |  --: |", "| a      |    1 |", "| longer | 1000 |"]


def make_report(name):
    row = {"criterion": "modality", "split": "train", "subset": "wild", "source": name, "synthesizer": name}
    counts = [{**row, "pairs": 1, "chosen_h": 0.1, "rejected_h": 0.1}]
    config = {"seed": f"1)\n---\n{name}", "channel": {"coding": name}}
    return {"build_id": "0" * 16, "config": config, "pairs": counts, "skipped": [], "drops": {}}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_name_in_a_data_card_is_neither_markup_nor_a_part_of_its_header(text):
    plain, hostile = (render_card(make_report(name)) for name in ("a", text))
    header, body = hostile.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(header).keys() == yaml.safe_load(plain.split("\n---\n")[0].removeprefix("---\n")).keys()
    assert len(body.splitlines()) == len(plain.split("\n---\n", 1)[1].splitlines())
    # Between backticks everything is text.
    body = re.sub("`[^`\n]*`", "", body)
    assert "](javascript" not in body.replace("\\](", "")
    assert "](https://x.org" not in body.replace("\\](", "")
    assert "<script" not in body.replace("\\<", "")
    assert "\x1b" not in body


def test_a_rater_whose_file_has_a_strange_name_takes_no_second_row():
    rater = {"num_answered": 1, "num_missing": 0, "num_cannot_tell": 0, "num_not_heard": 0, "agreement": None}
    among = {"krippendorff_alpha": None, "undefined": "one rater", "percent_agreement": None}
    lines = render_raters({"inter_rater": among, "raters": {"a | b\n| c": rater}}, "unheard", "agree").splitlines()
    assert lines[-1].startswith("| a \\| b \\| c |")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2J\x1b]0;title\x07b", "a\\x1b[2J\\x1b]0;title\\x07b"),
        ("one\ntwo\tthree", "one\ntwo\tthree"),
        ("hidden\rshown\x08\x7f", "hidden\\rshown\\x08\\x7f"),
        ("\x9b31mred", "\\x9b31mred"),
        ("txt.\u202egpj", "txt.\\u202egpj"),
        ("broken \udcff name", "broken \\udcff name"),
        ("Größe 中文 😀", "Größe 中文 😀"),
    ],
)
def test_a_terminal_gets_no_commands(text, shown):
    assert escape_terminal(text) == shown


def test_a_warning_reaches_the_terminal_as_text():
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "%s is gone", ("a\x1b[2J.wav",), None)
    assert PrintableFormatter("%(message)s").format(record) == "a\\x1b[2J.wav is gone"


def test_an_error_of_a_command_names_a_hostile_file_without_obeying_it(tmp_path, capsys):
    hostile = "\x1b[31mred\x1b]0;owned\x07.wav"
    turns = [{"role": role, "audio": hostile} for role in ("user", "assistant")]
    (tmp_path / "dialogue.json").write_text(json.dumps({"turns": turns}))
    assert cli.main(["score", str(tmp_path / "dialogue.json")]) == 2
    printed = capsys.readouterr().err
    assert "\\x1b[31mred\\x1b]0;owned\\x07.wav: no such audio file" in printed
    assert "\x1b" not in printed


def test_warnings_of_the_command_line_are_printable():
    escape_code = (
        "import logging, sys\nfrom sdiareward import cli\n"
        "try:\n    cli.main(['score'])\nexcept SystemExit: pass\n"
        "logging.getLogger('sdiareward.x').warning('%s', 'a' + chr(27) + '[2J')\n"
    )
    done = subprocess.run([sys.executable, "-c", escape_code], capture_output=True, text=True, check=True)
    assert "a\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.slow
def test_no_table_for_a_spreadsheet_is_written():
    """A cell that begins with `=` would be a formula there; the package writes JSON, Parquet and Markdown alone."""
    writers = {"writer", "DictWriter", "to_csv", "to_excel", "write_csv"}
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] in {"tests", "runs", "build", "dist", ".venv", ".venv-datasets3"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in writers:
                owner = getattr(node.value, "id", "")
                if node.attr not in ("writer", "DictWriter") or owner == "csv":
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
