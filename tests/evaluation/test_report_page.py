import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from support import report_world

from sdiareward.cards.model_card import make_model_index
from sdiareward.evaluation.report import write_page
from sdiareward.evaluation.report.content import build_report
from sdiareward.evaluation.report.figures import draw_figures
from sdiareward.evaluation.report.inputs import ComparedEvaluation, read_training_runs
from sdiareward.evaluation.summary import render_report


pytestmark = pytest.mark.slow


NASTY = '<script>alert("x")</script> & "quoted"'
FIGURES = ["accuracy", "densities", "boxes", "reliability", "accuracy_by_margin", "comparison"]
TRAINING_FIGURES = ["score_alignment", "margin_stability"]


class Page(HTMLParser):
    """What a test asks of a page: its elements with their attributes, and its words."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def write(folder, *, skipped=(), others=(), training=(), by_scorer=None, config=None, **options):
    pairs, labels, scores = report_world.make_evaluation(**options)
    results = report_world.make_results(labels, by_scorer or scores, skipped, **(config or {}))
    return write_page(folder, results, pairs, labels, by_scorer or scores, others=others, training=training)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Write a page with every section filled, from transcripts that are HTML."""
    folder = tmp_path_factory.mktemp("evaluation")
    paths = []
    for name, coefficient, drift in (("centered", 0.01, 0.3), ("free", None, 5.0)):
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(report_world.make_training(coefficient, drift)))
    labels = report_world.make_labels(report_world.make_pairs())
    other = ComparedEvaluation("runs/other", "other/<model>", report_world.make_scores(labels, 7, 0.5), {})
    skipped = [{**labels[0], "pair_id": "broken-1", "reason": "chosen, turn 1: cannot be decoded"}]
    page = write(folder, skipped=skipped, others=[other], training=read_training_runs(paths), text=NASTY)
    return page, Page(page.read_text())


def test_the_page_lies_beside_its_numbers_and_figures(complete):
    page, _ = complete
    names = sorted(path.name for path in page.parent.iterdir())
    expected = ["index.html", "report.json", *(f"{name}.png" for name in FIGURES + TRAINING_FIGURES)]
    assert names == sorted(expected)
    assert page.stat().st_size < 25_000_000
    report = json.loads((page.parent / "report.json").read_text())
    assert report["num_pairs"] == 48


def test_rendering_twice_gives_the_same_bytes(tmp_path):
    def digests(folder):
        write(folder)
        paths = sorted((folder / "report").iterdir())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    first = digests(tmp_path)
    assert first == digests(tmp_path)


def test_the_page_asks_for_nothing_from_outside(complete):
    _, page = complete
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "poster", "data", "action"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), value[:80]
    (policy,) = (meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")


def test_its_own_style_and_script_are_what_the_policy_lets_run(complete):
    path, page = complete
    text = path.read_text()
    (policy,) = (meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = hashlib.sha256(content.encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert not any("style" in attributes or "onclick" in attributes for _, attributes in page.elements)


def test_transcripts_and_names_are_shown_as_they_are_and_never_run(complete):
    path, page = complete
    assert len(page.all("script")) == 1
    assert "alert" not in re.search(r"<script>(.*?)</script>", path.read_text(), re.DOTALL)[1]
    shown = "".join(page.words)
    # Twenty lowest margins and twenty disagreements, four turns each.
    assert shown.count(NASTY) == (20 + 20) * 4
    assert "other/<model>" in shown


def test_headings_are_in_order_and_contents_lead_to_sections(complete):
    _, page = complete
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.all("a")} <= set(ids)
    assert page.all("a")[0] == {"class": "skip", "href": "#main"}
    assert page.all("html") == [{"lang": "en"}]


def test_every_figure_and_player_says_what_it_is(complete):
    _, page = complete
    assert len(page.all("img")) == len(FIGURES + TRAINING_FIGURES)
    for image in page.all("img"):
        assert image["alt"]
        assert int(image["width"]) > int(image["height"]) > 0
    players = [player["aria-label"] for player in page.all("audio")]
    assert len(players) == len(set(players)) == 160
    assert players[0] == "pair 1, chosen, turn 1, user, 0.2 seconds"


def test_wide_tables_scroll_in_named_regions_that_the_keyboard_reaches(complete):
    _, page = complete
    regions = [attributes for _, attributes in page.elements if attributes.get("role") == "region"]
    assert len(regions) == len(page.all("table"))
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


def test_what_was_left_out_is_named(complete, tmp_path):
    _, page = complete
    words = " ".join(page.words)
    assert "broken-1" in "".join(page.words)
    assert "chosen, turn 1: cannot be decoded" in words
    _, _, scores = report_world.make_evaluation()
    scores["model"]["pair-07"] = {"chosen": float("nan"), "rejected": 0.0}
    broken = Page(write(tmp_path, by_scorer=scores, config={"nan": "wrong"}).read_text())
    assert "count as wrong and are part of no figure" in " ".join(broken.words)
    assert any("pair-07" in word for word in broken.words)


def test_numbers_of_the_page_are_in_the_json(complete):
    path, page = complete
    numbers = (path.parent / "report.json").read_text()
    report = json.loads(numbers)
    shown = " ".join(page.words)
    for column in ("overall_macro", "modality_micro"):
        assert f"{100 * report['accuracies']['model'][column]:.2f}" in shown
    assert f"{report['calibration'][0]['after']['error']:.3f}" in shown
    assert f"{report['comparisons'][0]['p_value']:.3f}" in shown
    assert f"{report['training'][1]['validation'][-1]['chosen']:+.2f}" in shown


def test_a_synthesizer_that_training_left_out_and_a_small_cell_are_marked_in_words(complete):
    _, page = complete
    words = [word.strip() for word in page.words]
    position = words.index("new")
    assert "held out" in words[position : position + 4]
    assert words.count("few") >= 2


def test_a_page_of_own_pairs_has_no_empty_and_no_repeated_parts_and_keeps_no_figure_of_before(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "comparison.png").write_bytes(b"of before")
    pairs, labels, scores = report_world.make_evaluation(license=None)
    labels = [{**label, "group_id": None, "synthesizer": None} for label in labels[:1]]
    scores = {"model": scores["model"]}
    path = write_page(tmp_path, report_world.make_results(labels, scores), pairs.select([0]), labels, scores)
    page = Page(path.read_text())
    assert [element.get("aria-labelledby") for element in page.all("section")] == [
        *("accuracy", "rewards", "calibration", "margins", "examples", "provenance"),
    ]
    text = path.read_text()
    assert len(re.findall("<div><dt>", text)) == 3
    table = text[text.index("<table>") : text.index("</table>")]
    assert re.findall(r'<th scope="col"><span class="name">([^<]*)', table) == ["scorer", "wild"]
    assert json.loads((path.parent / "report.json").read_text())["columns"] == ["wild"]
    # The user's own recordings play; the page warns against passing them on.
    assert len(page.all("audio")) == 4
    assert "not known to be free to pass on (licence: unknown). Do not publish it" in text
    assert not (path.parent / "comparison.png").exists()


def test_the_page_begins_with_the_result_and_the_baselines_in_one_sentence(complete):
    path, page = complete
    report = json.loads((path.parent / "report.json").read_text())
    text = re.sub(r"<[^>]+>", "", re.search(r'<p class="headline">(.*?)</p>', path.read_text())[1])
    model, other, acoustic, words = (report["accuracies"][scorer["name"]] for scorer in report["scorers"])
    low, high = (f"{100 * bound:.1f}" for bound in model["interval"]["overall_micro"])
    percents = [f"{100 * found['overall_micro']:.2f}%" for found in (model, other, acoustic, words)]
    assert text == (
        "Model checkpoints/tiny puts the right dialogue first in "
        f"{model['num_correct']['overall_micro']} of 48 pairs: "
        f"{percents[0]} (95% interval {low}-{high} over 24 recordings). "
        f"On the same pairs, other/&lt;model&gt;: {percents[1]}, "
        f"the acoustic baseline: {percents[2]}, the text baseline: {percents[3]} "
        "(48 ties, counted as wrong); chance: 50%."
    )


def test_a_model_without_one_finite_reward_gets_its_page_too(tmp_path):
    pairs, labels, _ = report_world.make_evaluation(license="unknown")
    scores = {"model": {label["pair_id"]: {"chosen": float("nan"), "rejected": 0.0} for label in labels}}
    results = report_world.make_results(labels, scores, nan="wrong")
    page = Page(write_page(tmp_path, results, pairs, labels, scores).read_text())
    # There is nothing to count, so there is no accuracy, on the page, in the text and on the card.
    assert "has no usable reward for any of 48 pairs" in " ".join(page.words) and "0.00" not in page.words
    assert "48 of 48 pairs have a reward that is not finite, so there is no accuracy" in render_report(results)
    assert "0.00" not in render_report(results)
    assert make_model_index(results) == []
    assert len(page.all("img")) == 1
    shown = {element["aria-labelledby"] for element in page.all("section")}
    assert not shown & {"calibration", "margins", "rewards", "examples"}


def test_a_name_with_dollar_signs_is_no_formula(tmp_path):
    _, labels, scores = report_world.make_evaluation()
    results = report_world.make_results(labels, scores)
    results["config"]["model"] = r"runs/$\frac$/model"
    report = build_report(results, labels, scores)
    assert "accuracy" in draw_figures(
        report, [{**label, **scores["model"][label["pair_id"]]} for label in labels], tmp_path
    )


def test_an_evaluation_of_other_pairs_is_refused(tmp_path):
    other = ComparedEvaluation("runs/other", "other/model", {}, {})
    with pytest.raises(ValueError, match="runs/other: lacks 48 of 48 pairs"):
        write(tmp_path, others=[other])


def test_pairs_of_the_released_form_make_a_page_too(tmp_path):
    pairs, labels, scores = report_world.make_evaluation()

    def to_messages(row):
        for side in ("chosen", "rejected"):
            row[side] = [
                {"role": turn["role"], "content": [{"type": kind, kind: turn[kind]} for kind in ("text", "audio")]}
                for turn in row[side]
            ]
        return row

    released = pairs.remove_columns(["primary", "secondary", "license", "language"]).map(to_messages)
    labels = [{**label, "synthesizer": None, "group_id": None, "criterion": "joint"} for label in labels]
    results = report_world.make_results(labels, scores)
    page = Page(write_page(tmp_path, results, released, labels, scores, embed_audio="open").read_text())
    assert "its licence, unknown, is not known to let anyone pass it on" in " ".join(page.words)
    assert "synthesizers" not in {element["aria-labelledby"] for element in page.all("section")}


def test_a_page_of_one_recording_has_no_interval_and_says_why(tmp_path):
    pairs, labels, by_scorer = report_world.make_evaluation()
    labels = [{**label, "group_id": "one"} for label in labels]
    page = write_page(tmp_path, report_world.make_results(labels, by_scorer), pairs, labels, by_scorer)
    text = page.read_text(encoding="utf-8")
    assert "83.33%</strong> (no interval over 1 recording)" in text
    assert not re.search(r'class="bounds">\d+\.\d', text.partition('id="rewards"')[0].partition('id="accuracy"')[2])
