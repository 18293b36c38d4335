"""Every promise of SECURITY.md names tests, and every test that it names exists."""

import ast
import re

from support.paths import ROOT


TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)


def functions_of(path):
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists():
    assert len(NAMED) > 30
    for file, function in NAMED:
        assert (ROOT / file).is_file(), file
        assert not function or function in functions_of(ROOT / file), f"{file}::{function}"


def test_every_promise_names_a_test():
    section = TEXT.partition("## Promises")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    assert [row for row in rows if "/test_" not in row or "::test_" not in row] == []


def test_what_is_named_beside_the_tests_exists():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(SECURITY.md)" in readme
    # Code that is run is pinned by the hash of a commit, its files of code too.
    guide = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert re.search(r'revision = "[0-9a-f]{40}"', guide)
    assert "code_revision" in guide
