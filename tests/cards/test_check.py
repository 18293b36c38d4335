import pytest

from sdiareward.cards import check
from sdiareward.cards.check import Rendered, find_problems
from sdiareward.cards.render import render_readme


RESULTS = {"table": "| 41.50 |", "score": "+1.53"}


@pytest.fixture
def rendered(tmp_path):
    """Return a function giving a guide of two blocks with a renderer of both, and its path."""

    def make(text, **renders):
        path = tmp_path / "guide.md"
        path.write_text(text)
        blocks = renders or RESULTS
        return Rendered(path, (lambda text: render_readme(text, blocks),))

    return make


GUIDE = "# Guide\n\n<!-- table -->\n| 41.50 |\n<!-- /table -->\n\n<!-- score -->\n+1.53\n<!-- /score -->\n"


def test_no_card_or_guide_says_anything_else_than_its_result_files(capsys):
    assert check.main() == 0, capsys.readouterr().err


def test_a_guide_that_says_what_the_results_say_has_no_problems(rendered):
    assert list(find_problems(rendered(GUIDE))) == []


def test_a_number_that_was_typed_is_found_with_its_line(rendered):
    assert list(find_problems(rendered(GUIDE.replace("41.50", "42.50")))) == [
        "line 4 reads '| 42.50 |'; the result files say '| 41.50 |'"
    ]


def test_a_line_too_many_is_found(rendered):
    found = list(find_problems(rendered(GUIDE.replace("| 41.50 |\n", "| 41.50 |\n| 99.00 |\n"))))
    assert found == ["line 5 reads '| 99.00 |'; the result files say '<!-- /table -->'"]


def test_a_block_that_nothing_renders_is_found(rendered):
    found = list(find_problems(rendered(GUIDE, table=RESULTS["table"])))
    assert found == ["block 'score' is rendered by nothing"]


def test_scores_may_differ_in_the_last_digit_and_results_may_not(rendered, monkeypatch):
    monkeypatch.setitem(check._SCORED, "guide.md", {"score"})
    assert list(find_problems(rendered(GUIDE.replace("+1.53", "+1.54")))) == []
    assert len(list(find_problems(rendered(GUIDE.replace("+1.53", "+1.56"))))) == 1
    assert len(list(find_problems(rendered(GUIDE.replace("+1.53", "-1.53"))))) == 1
    assert len(list(find_problems(rendered(GUIDE.replace("41.50", "41.51"))))) == 1


def test_a_card_that_is_rendered_whole_is_compared_whole(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("95.00\n")
    assert list(find_problems(Rendered(path, (lambda text: "95.00\n",), is_whole=True))) == []
    assert len(list(find_problems(Rendered(path, (lambda text: "95.35\n",), is_whole=True)))) == 1


def test_every_guide_with_blocks_has_a_renderer(monkeypatch, tmp_path):
    assert list(check.find_unknown_guides()) == []
    (tmp_path / "new.md").write_text(GUIDE)
    monkeypatch.setattr(check, "_DOCS", tmp_path)
    assert list(check.find_unknown_guides()) == [tmp_path / "new.md"]


def test_what_is_wrong_ends_in_status_1_with_a_line_for_each(monkeypatch, capsys, rendered):
    monkeypatch.setattr(check, "_ROOT", rendered(GUIDE).path.parent)
    monkeypatch.setattr(check, "list_rendered", lambda: [rendered(GUIDE.replace("41.50", "42.50"))])
    monkeypatch.setattr(check, "_DOCS", check._ROOT / "docs")
    assert check.main() == 1
    assert capsys.readouterr().err.startswith("guide.md: line 4 reads '| 42.50 |'")
