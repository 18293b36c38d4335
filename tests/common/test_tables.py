"""Words and names from data where characters mean something: Markdown, and the header of a card."""

import re

import pytest
import yaml

from sdiareward.common.tables import escape_code, escape_markdown, render_table
from sdiareward.dataset_builder.reports.data_card import render_card


HOSTILE = [
    "a | b",
    "a\n| b | c |",
    "a\r\n# Heading",
    "![x](https://x.org/seen.png)",
    "[press](javascript:alert(1))",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "`code` and ``more``",
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
def test_words_in_markdown_are_words_of_one_line_and_of_one_cell(text):
    shown, code = escape_markdown(text), escape_code(text)
    assert len(shown.splitlines()) == len(code.splitlines()) == 1
    assert unescaped(shown) == unescaped(code, ["|"]) == []
    assert "\x1b" not in shown
    assert code[0] == code[-1] == "`"
    assert code.count("`") == 2
    for pad in (False, True):
        lines = render_table(["name", "n"], [[text, 1]], pad=pad)
        assert len("\n".join(lines).splitlines()) == 3
        assert lines[2].replace("\\|", "").count("|") == 3


def test_ordinary_words_stay_as_they_are():
    for text in ("semi_wild", "espeak-ng 1.52", "Größe: 3 s", "**model**", "CC-BY-4.0", "0.5"):
        assert escape_markdown(text) == text


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
