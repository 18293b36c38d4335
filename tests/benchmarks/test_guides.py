import re

import pytest

from benchmarks.guides import __main__ as guides
from benchmarks.guides.rendering import list_guides, read_result, render_blocks, replace_blocks


GUIDE = "# Guide\n\n<!-- table -->\n| 41.50 |\n<!-- /table -->\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Be in a repository with one guide, of which the test says what its template gives."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# README\n")
    (tmp_path / "docs" / "guide.md").write_text(GUIDE)
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "README.md").write_text("95.00\n")
    monkeypatch.setattr(guides, "PACKAGE", tmp_path)
    monkeypatch.setattr(guides, "NANO", tmp_path / "card")
    monkeypatch.setattr(guides, "render_nano_card", lambda: "95.00\n")

    def give(**blocks):
        monkeypatch.setattr(guides, "list_guides", lambda: {"guide": tmp_path / "docs" / "guide.md"})
        monkeypatch.setattr(guides, "render_blocks", lambda name: blocks)

    return give


@pytest.mark.slow
def test_no_number_in_readme_guides_or_card_differs_from_its_result_file():
    assert list(guides.find_problems()) == []


def test_a_number_typed_by_hand_fails_the_check_with_its_line(repository, capsys):
    repository(table="| 42.50 |")
    assert guides.main(["--check"]) == 1
    error = "docs/guide.md: line 4 reads '| 41.50 |'; the result files give '| 42.50 |'"
    assert capsys.readouterr().err == f"{error}. Run `python -m benchmarks.guides`.\n"


def test_a_block_without_a_template_fails_the_check(repository):
    repository()
    assert list(guides.find_problems()) == ["docs/guide.md: block 'table' has no template in benchmarks/guides"]


def test_a_card_that_differs_fails_the_check(repository, monkeypatch):
    repository(table="| 41.50 |")
    assert list(guides.find_problems()) == []
    monkeypatch.setattr(guides, "render_nano_card", lambda: "95.35\n")
    assert list(guides.find_problems()) == ["card/README.md: line 1 reads '95.00'; the result files give '95.35'"]


def test_a_template_with_a_block_that_the_guide_lacks_is_an_error():
    with pytest.raises(ValueError, match="no block 'other'"):
        replace_blocks(GUIDE, {"other": "1"})


def test_every_template_belongs_to_a_guide():
    assert [path for path in list_guides().values() if not path.is_file()] == []


def test_the_readme_shows_the_accuracy_of_the_result_file():
    accuracy = read_result("results.json")["accuracies"]["model"]["colloquialness"]
    assert f"{100 * accuracy:.2f}" in render_blocks("README")["results"]


@pytest.mark.slow
def test_the_example_shows_rewards_with_sign_and_two_digits():
    assert re.fullmatch(r"```text\n[+-]\d\.\d\d, [+-]\d\.\d\d\n```", guides.score_examples())
