import re
import xml.etree.ElementTree

import pytest

from benchmarks.guides import __main__ as guides
from benchmarks.guides import screenshots
from benchmarks.guides.images import list_badges, render_images
from benchmarks.guides.rendering import list_guides, read_result, render_blocks, replace_blocks
from sdiareward.evaluation.summary import ALL_LEFT_OUT


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
    monkeypatch.setattr(guides, "render_images", dict)

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
    assert f"{100 * accuracy:.2f}" in render_blocks("results_nano")["results"]


@pytest.mark.slow
def test_the_example_shows_rewards_with_sign_and_two_digits():
    assert re.fullmatch(r"```text\n[+-]\d\.\d\d, [+-]\d\.\d\d\n```", guides.score_examples())


def test_a_picture_that_differs_fails_the_check(repository, tmp_path, monkeypatch):
    repository(table="| 41.50 |")
    picture = tmp_path / "held_out.svg"
    picture.write_text("<text>60.47</text>\n")
    monkeypatch.setattr(guides, "render_images", lambda: {picture: "<text>61.00</text>\n"})
    difference = "held_out.svg: line 1 reads '<text>60.47</text>'; the result files give '<text>61.00</text>'"
    assert list(guides.find_problems()) == [difference]


def test_the_badges_say_what_the_project_declares():
    assert list_badges() == {"license": "Apache-2.0", "python": "3.11+"}


def test_the_picture_shows_the_accuracies_on_held_out_synthesizers():
    [text] = [text for path, text in render_images().items() if path.name == "held_out.svg"]
    rows = read_result("results.json")["by_synthesizer"]
    [row] = [row for row in rows if (row["criterion"], row["synthesizer"]) == ("modality", ALL_LEFT_OUT)]
    numbers = re.findall(r'font-weight="bold" fill="#\w+">([\d.]+)', text)
    assert numbers[:3] == [f"{100 * row[kind]['accuracy']:.2f}" for kind in ("model", "acoustic", "text")]
    assert xml.etree.ElementTree.fromstring(text).tag.endswith("svg")


def test_every_screenshot_is_taken_by_the_script_is_small_and_is_in_a_guide():
    pictures = {path.stem: path for path in screenshots.IMAGES.glob("*.png")}
    assert set(pictures) == set(screenshots.PICTURES)
    assert all(path.stat().st_size <= screenshots.MAX_BYTES for path in pictures.values())
    text = "".join(path.read_text() for path in screenshots.IMAGES.parent.glob("*.md"))
    assert [name for name in pictures if f"](images/{name}.png)" not in text] == []
