"""Fill the numbers of README and guides from result files.

A guide `docs/NAME.md` has blocks between `<!-- BLOCK -->` and `<!-- /BLOCK -->`; the template `NAME.md.jinja` beside
this file has the same blocks and reads the result files. The README is a guide too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sdiareward.audit.summary import describe_sample, render_verdicts
from sdiareward.audit.verdicts import read_limits, show_limit
from sdiareward.cards.audit_findings import render_findings
from sdiareward.cards.model_card import strip_title
from sdiareward.common.escaping import escape_markdown
from sdiareward.common.package_files import NANO, PACKAGE
from sdiareward.esdr_accuracy.pairwise import COLUMNS
from sdiareward.evaluation.summary import ALL_LEFT_OUT, ALL_SEEN, format_interval, format_percent
from sdiareward.judges.wavreward.score_tables import find_shown_columns, render_table_one
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import PERTURBATIONS


TEMPLATES = Path(__file__).resolve().parent
RESULTS = TEMPLATES.parent / "results"
_SUFFIX = ".md.jinja"
_BLOCK = re.compile(r"^<!-- (\w+) -->\n(.*?)\n?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)


def list_guides() -> dict[str, Path]:
    """Return the file of every guide that has a template, by name."""
    names = sorted(path.name.removesuffix(_SUFFIX) for path in TEMPLATES.glob(f"*{_SUFFIX}"))
    return {name: PACKAGE / "README.md" if name == "README" else PACKAGE / "docs" / f"{name}.md" for name in names}


def read_result(name: str) -> Any:
    """Return a result by its file name: parsed if it is JSON, else its text; None if it has not been measured."""
    for path in (RESULTS / name, NANO / name, NANO.parent / name, RESULTS.parent / name):
        if path.exists():
            text = path.read_text(encoding="utf-8")
            return json.loads(text) if path.suffix == ".json" else text
    return None


def render_blocks(guide: str, results: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Render the blocks of a guide.

    Args:
        guide (`str`): Name of the guide, without `.md`.
        results (`Mapping`, *optional*): Results by file name, in place of those of the repository.
    """
    given = results or {}

    def read(name: str) -> Any:
        return given[name] if name in given else read_result(name)

    text = make_environment().get_template(f"{guide}{_SUFFIX}").render(read=read)
    return find_blocks(text)


def find_blocks(text: str) -> dict[str, str]:
    """Return what stands in each block of a text."""
    return dict(_BLOCK.findall(text))


def replace_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """Replace what stands in each block.

    Raises:
        ValueError: The text has no such block.
    """
    for name, content in blocks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the guide has no block {name!r}; put {begin.strip()} and {end} into it.")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def make_environment() -> Environment:
    """Return the environment of templates, with the filters and tables that they use."""
    # Markdown, not HTML: names that come from data are escaped by the filter `md`.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.add_extension("jinja2.ext.do")
    environment.filters |= {
        "f": format,
        "cells": _join_cells,
        "md": escape_markdown,
        "median": median,
        "percent": format_percent,
        "interval": format_interval,
        "strip_title": strip_title,
    }
    environment.globals |= {
        "COLUMNS": COLUMNS,
        "ALL_SEEN": ALL_SEEN,
        "ALL_LEFT_OUT": ALL_LEFT_OUT,
        "ATTACKS": ATTACKS,
        "PERTURBATIONS": PERTURBATIONS,
        "read_limits": read_limits,
        "show_limit": show_limit,
        "describe_sample": describe_sample,
        "render_verdicts": render_verdicts,
        "render_findings": render_findings,
        "render_table_one": render_table_one,
        "find_shown_columns": find_shown_columns,
    }
    return environment


def _join_cells(values: Iterable[Any], spec: str = "") -> str:
    """Join the cells of a row of a table, each formatted alike."""
    return " | ".join(format(value, spec) for value in values)
