"""The pages of evaluations and comparisons: as files, and in Debian's Chromium on a phone and on a desk."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support import report_world
from support.chromium import (
    PLAY_AT_ONCE,
    SIZES,
    measure_contrasts,
    measure_widths,
    needs_chromium,
    open_page,
    requested,
    started,
    take_screenshot,
)
from support.systems_world import write_system

import sdiareward
from sdiareward.cards.model_card import make_model_index
from sdiareward.evaluation.report import examples
from sdiareward.evaluation.report.content import read_training_runs
from sdiareward.evaluation.report.sections import write_page
from sdiareward.evaluation.results_files import find_disagreements
from sdiareward.evaluation.summary import render_judge, render_report


pytestmark = pytest.mark.slow
NASTY = '<script>alert("x")</script> & "quoted"'
FIGURES = ["accuracy", "densities", "boxes", "reliability", "accuracy_by_margin", "comparison"]
TRAINING_FIGURES = ["score_alignment", "margin_stability"]


class Page(HTMLParser):
    """What a test asks of a page: its elements with their attributes, and its words."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.words, self.path = [], [], path
        self.text = path.read_text()
        self.feed(self.text)
        self.shown = " ".join("".join(self.words).split())
        self.sections = {element.get("aria-labelledby") for element in self.all("section")}
        self.report = json.loads((path.parent / "report.json").read_text())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def write(
    folder, *, skipped=(), others=(), training=(), by_scorer=None, change=None, results=(), config=(), **options
):
    pairs, labels, scores = report_world.make_evaluation(**options)
    labels = [{**label, **(change or {})} for label in labels]
    found = report_world.make_results(labels, scores, skipped) | dict(results)
    return Page(write_page(folder, found, pairs, labels, scores, others=others, training=training))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Write a page with every section filled, from transcripts that are HTML."""
    folder = tmp_path_factory.mktemp("evaluation")
    paths = []
    for name, coefficient, drift in (("centered", 0.01, 0.3), ("free", None, 5.0)):
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(report_world.make_training(coefficient, drift)))
    labels = report_world.make_labels(report_world.make_pairs())
    skipped = [{**labels[0], "pair_id": "broken-1", "reason": "chosen, turn 1: cannot be decoded"}]
    others, training = [report_world.make_other(labels)], read_training_runs(paths)
    results = {"judge": report_world.make_judge()}
    return write(folder, skipped=skipped, others=others, training=training, text=NASTY, results=results)


def test_the_page_is_beside_its_numbers_and_figures_and_is_the_same_whenever_it_is_made(complete, tmp_path):
    names = ["index.html", "report.json", *(f"{name}.png" for name in FIGURES + TRAINING_FIGURES)]
    assert sorted(path.name for path in complete.path.parent.iterdir()) == sorted(names)
    assert complete.path.stat().st_size < 25_000_000 and complete.report["num_pairs"] == 48

    def digests():
        paths = sorted(write(tmp_path).path.parent.iterdir())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    assert digests() == digests()


def test_the_page_requests_nothing_and_runs_only_its_own_style_and_script(complete):
    for _, attributes in complete.elements:
        for name in ("src", "href", "srcset", "poster", "data", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes[name][:80]
        assert not {"style", "onclick"} & {*attributes}
    (policy,) = (meta["content"] for meta in complete.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", complete.text, re.DOTALL)
        digest = hashlib.sha256(content.encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
        assert "alert" not in content
    # Twenty lowest margins and twenty disagreements, four turns each.
    assert "".join(complete.words).count(NASTY) == (20 + 20) * 4
    assert "other/<model>" in complete.shown


def test_headings_figures_players_and_tables_have_their_order_and_names(complete):
    levels = [int(tag[1]) for tag, _ in complete.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    ids = [attributes["id"] for _, attributes in complete.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) and {link["href"][1:] for link in complete.all("a")} <= set(ids)
    assert complete.all("a")[0] == {"class": "skip", "href": "#main"} and complete.all("html") == [{"lang": "en"}]
    assert len(complete.all("img")) == len(FIGURES + TRAINING_FIGURES)
    assert all(image["alt"] and int(image["width"]) > int(image["height"]) > 0 for image in complete.all("img"))
    players = [player["aria-label"] for player in complete.all("audio")]
    assert len(players) == len(set(players)) == 160 and players[0] == "pair 1, chosen, turn 1, user, 0.2 seconds"
    regions = [attributes for _, attributes in complete.elements if attributes.get("role") == "region"]
    assert len(regions) == len(complete.all("table"))
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


def test_the_page_shows_the_numbers_of_the_json_and_marks_in_words(complete):
    report = complete.report
    model, other, acoustic, words = (report["accuracies"][scorer["name"]] for scorer in report["scorers"])
    low, high = (f"{100 * bound:.1f}" for bound in model["interval"]["overall_micro"])
    percents = [f"{100 * found['overall_micro']:.2f}%" for found in (model, other, acoustic, words)]
    assert (
        f"Judge checkpoints/tiny puts the right dialogue first in {model['num_correct']['overall_micro']} of 48 "
        f"pairs: {percents[0]} (95% interval {low}-{high} over 24 recordings). On the same pairs, other/<model>: "
        f"{percents[1]}, the acoustic baseline: {percents[2]}, the text baseline: {percents[3]} (48 ties, counted as "
        "wrong); chance: 50%."
    ) in complete.shown
    numbers = [f"{100 * model[column]:.2f}" for column in ("overall_macro", "modality_micro")]
    numbers += [f"{report['calibration'][0]['after']['error']:.3f}", f"{report['comparisons'][0]['p_value']:.3f}"]
    numbers += [f"{report['training'][1]['validation'][-1]['chosen']:+.2f}"]
    skipped = ["broken-1", "chosen, turn 1: cannot be decoded"]
    judge = ["The judge heard every pair in both orders", "−25.0", "0.12 US dollars", "I <can't>.", "Retries: 4."]
    for expected in (*numbers, *skipped, *judge, "new held out", "few"):
        assert expected in complete.shown, expected


def test_a_page_of_own_pairs_has_no_empty_and_no_repeated_parts_and_keeps_no_figure_of_before(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "comparison.png").write_bytes(b"of before")
    pairs, labels, scores = report_world.make_evaluation(license=None)
    labels = [{**label, "group_id": None, "synthesizer": None} for label in labels[:1]]
    results = report_world.make_results(labels, scores := {"model": scores["model"]})
    page = Page(write_page(tmp_path, results, pairs.select([0]), labels, scores))
    assert page.sections == {"accuracy", "rewards", "calibration", "margins", "examples", "provenance"}
    assert len(re.findall("<div><dt>", page.text)) == 3
    table = page.text[page.text.index("<table>") : page.text.index("</table>")]
    assert re.findall(r'<th scope="col"><span class="name">([^<]*)', table) == ["scorer", "wild"]
    assert page.report["columns"] == ["wild"]
    # The user's own recordings play; the page warns against passing them on.
    assert len(page.all("audio")) == 4
    assert "not known to be free to pass on (licence: unknown). Do not publish it" in page.text
    assert not (page.path.parent / "comparison.png").exists()


def test_a_model_without_one_finite_reward_gets_its_page_too(tmp_path):
    pairs, labels, _ = report_world.make_evaluation(license="unknown")
    scores = {"model": {label["pair_id"]: {"chosen": float("nan"), "rejected": 0.0} for label in labels}}
    results = report_world.make_results(labels, scores, nan="wrong")
    page = Page(write_page(tmp_path, results, pairs, labels, scores))
    # There is nothing to count, so there is no accuracy, on the page, in the text and on the card.
    assert "has no usable reward for any of 48 pairs" in page.shown and "0.00" not in page.words
    assert "count as wrong and are part of no figure" in page.shown
    assert "48 of 48 pairs have a reward that is not finite, so there is no accuracy" in render_report(results)
    assert "0.00" not in render_report(results) and make_model_index(results) == []
    assert len(page.all("img")) == 1 and not page.sections & {"calibration", "margins", "rewards", "examples"}


def test_other_worlds_make_a_page_too(tmp_path):
    labels = report_world.make_labels(report_world.make_pairs())
    _, _, scores = report_world.make_evaluation()
    twin = report_world.make_other(labels, model="twin", scores=scores["model"])
    page = write(tmp_path / "twin", others=[twin], license="unknown")
    assert "None: of every pair, both are right or both are wrong." in page.shown and "judge" not in page.sections
    page = write(tmp_path / "one", change={"group_id": "one"})
    assert "83.33%</strong> (no interval over 1 recording)" in page.text
    assert "disagreements" not in page.sections
    # A name with dollar signs is no formula.
    pairs, _, _ = report_world.make_evaluation()
    results = report_world.make_results(labels, scores)
    results["config"]["model"] = r"runs/$\frac$/model"
    assert write_page(tmp_path / "name", results, pairs, labels, scores).is_file()


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
    page = Page(write_page(tmp_path, results, released, labels, scores, embed_audio="open"))
    assert "its licence, unknown, is not known to let anyone pass it on" in page.shown
    assert "synthesizers" not in page.sections


def test_a_judge_is_compared_with_a_model_on_its_page_and_in_markdown(tmp_path):
    pairs, labels, by_scorer = report_world.make_evaluation()
    scores = {**by_scorer["model"], "pair-05": {"chosen": None, "rejected": None, "margin": None}}
    model = report_world.make_other(labels, folder="runs/model", model="checkpoints/tiny")
    results = report_world.make_results(labels, {"model": scores}, nan="wrong")
    results["config"] |= {"model": None, "judge": "ear"}
    results["judge"] = report_world.make_judge()
    results["disagreements"] = find_disagreements(labels, scores, [model], "wrong")
    page = Page(write_page(tmp_path, results, pairs, labels, {"model": scores}, others=[model]))
    found, (entry,) = results["disagreements"][0], page.report["disagreements"]
    assert f"{found['num_pairs']} of 48 pairs; {len(found['rows'])} of them are here." in page.shown
    assert "With checkpoints/tiny" in page.shown and "judge ear" in page.shown and page.report["model"] == "judge ear"
    assert [row["pair_id"] for row in entry["rows"]] == [row["pair_id"] for row in found["rows"]]
    assert entry["scorer"] == "compared_1" and entry["rows"][0]["chosen"][0]["clips"][0]["clip"]
    assert any("judge: 1 of 48 pairs got no usable answer" in note for note in page.report["notes"])
    text = render_report(results)
    assert text.startswith("# judge ear on made/up, split test")
    assert "96 answers (95 usable, 1 refused) in 99 replies: 9600 tokens in, 960 out, 0.12 US dollars." in text
    assert "-25.0 (-40.0 to -10.0)" in text and "## Disagreements with checkpoints/tiny (runs/model)" in text
    first = found["rows"][0]
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first['pair_id']} ")]
    assert f"{first['margin']:+.3f}" in line and f"{first['other_margin']:+.3f}" in line
    judge = {**results["judge"], "kind": "pointwise", "usd": None}
    assert "position bias" not in render_judge(judge) and "dollars" not in render_judge(judge)


def lowest(change=None, **options):
    """Return the rows of a page's lowest margins and the recordings they play."""
    collector = examples.Collector(**options)
    pairs = report_world.make_pairs()
    labels = [{**label, "license": "CC0-1.0"} for label in report_world.make_labels(pairs)]
    scores = report_world.make_scores(labels) | {"pair-00": {"chosen": None, "rejected": -9.0}}
    rows = examples.describe_lowest(pairs.map(change) if change else pairs, labels, scores, collector)
    return rows, collector.clips


def clips_of(rows):
    return [clip for row in rows for side in ("chosen", "rejected") for turn in row[side] for clip in turn["clips"]]


def test_the_twenty_lowest_margins_are_shown_turn_by_turn_on_both_sides():
    rows, clips = lowest()
    margins = [row["margin"] for row in rows]
    assert len(margins) == 20 and margins == sorted(margins) and "pair-00" not in [row["pair_id"] for row in rows]
    number = int(rows[0]["pair_id"].removeprefix("pair-"))
    assert [turn["role"] for turn in rows[0]["chosen"]] == ["user", "assistant"]
    assert rows[0]["rejected"][1]["text"] == f"so, um, hello {number} rejected"
    assert all(clip["clip"] in clips and clip["duration_s"] == 0.25 for clip in clips_of(rows))
    # A recording counts as often as it is played.
    limit = 5 * sum(map(len, clips.values())) // len(clips)
    few = clips_of(lowest(max_audio_characters=limit)[0])
    played = [clip["clip"] for clip in few if clip["clip"]]
    assert 4 <= len(played) <= 6 and sum(len(clips[key]) for key in played) <= limit
    assert any(clip["no_audio"] == "the page would become too large" for clip in few)

    def breaking(row):
        row["chosen"][0]["audio"] = {"bytes": b"not audio", "path": None}
        return row

    assert "cannot be decoded" in clips_of(lowest(breaking)[0])[0]["no_audio"]


def test_only_licences_known_to_let_anyone_pass_recordings_on_are_open():
    named = ["CC-BY-SA-3.0", "CC0-1.0", "GPL-2.0-only", "LicenseRef-Flight-of-the-Amazon-Queen"]
    free = [*named, "Creative Commons Attribution license (reuse allowed)"]
    others = ["LicenseRef-YouTube", "LicenseRef-MELD", "MITRE internal", "unknown", "", None]
    assert [license for license in (*free, *others) if examples.is_redistributable(license)] == free
    source = {"array": np.zeros(4000, dtype=np.float32), "sampling_rate": 16_000}
    collector, careful, silent = examples.Collector(), examples.Collector("open"), examples.Collector("none")
    for license in ("CC0-1.0", None, "LicenseRef-YouTube"):
        assert collector.describe_clip(source, license)["clip"] in collector.clips
    assert collector.private_licenses == {"unknown", "LicenseRef-YouTube"}
    reason = "its licence, unknown, is not known to let anyone pass it on"
    assert careful.describe_clip(source, None)["no_audio"] == reason
    assert (careful.clips, careful.private_licenses) == ({}, set())
    assert silent.describe_clip(source, "CC0-1.0")["clip"] is None


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    labels = report_world.make_labels(report_world.make_pairs())
    others = [report_world.make_other(labels, model="runs/a/rather/long/path/of/a/model" * 3)]
    text = "a rather long word: " + "supercalifragilistic" * 6
    results = {"judge": report_world.make_judge()}
    return write(tmp_path_factory.mktemp("long"), others=others, text=text, results=results).path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory, tiny_checkpoint):
    folder = tmp_path_factory.mktemp("comparison")
    names = ["a", "supercalifragilistic" * 4, "c"]
    systems = [write_system(folder / name, number) for number, name in enumerate(names)]
    options = {"model": tiny_checkpoint, "num_bootstrap": 20, "criterion": "all"}
    return Path(sdiareward.compare(*systems, output_dir=folder / "out", **options).page)


@pytest.fixture(scope="module")
def browser():
    with started(PLAY_AT_ONCE) as driver:
        yield driver


@needs_chromium
@pytest.mark.parametrize("kind", ["long_names", "comparison"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_and_the_keyboard_reaches_tables_and_players(browser, request, kind, size):
    from selenium.webdriver.common.keys import Keys

    width = open_page(browser, request.getfixturevalue(kind), size)
    reached = []
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        reached.append((focused.tag_name, focused.get_attribute("class")))
        if focused.tag_name == "audio":
            break
    assert reached[0] == ("a", "skip") and ("div", "scroll") in reached and reached[-1][0] == "audio"
    window, whole = measure_widths(browser)
    assert window == width >= whole
    assert requested(browser) == browser.get_log("browser") == []
    assert min(measure_contrasts(take_screenshot(browser, width))) > 10


@needs_chromium
def test_a_recording_plays_and_stops_the_one_before(browser, long_names):
    open_page(browser, long_names, "phone")
    paused, lengths = browser.execute_async_script(
        """
        const [first, second] = document.querySelectorAll("audio"), done = arguments[0];
        first.muted = second.muted = first.loop = second.loop = true;
        first.play().then(() => second.play()).then(
          () => done([[first.paused, second.paused], [first.duration, second.duration]]), (e) => done(String(e)));
        """
    )
    assert paused == [True, False] and lengths == pytest.approx([0.25, 0.25], abs=0.06)
