"""The page of an evaluation: its numbers, its file, and how it looks in Debian's Chromium on a phone and on a desk."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support import chromium, report_world
from support.systems_world import write_system

import sdiareward
from sdiareward.cards.model_card import make_model_index
from sdiareward.chat_sdiareward import make_dialogue
from sdiareward.evaluation.report import content, page, sections
from sdiareward.evaluation.report.sections import render_markdown, write_page
from sdiareward.evaluation.scores import find_disagreements


OPTIONS = {"nan": "wrong", "num_bootstrap": 20, "seed": 0}
NASTY = '<script>alert("x")</script> & "quoted" ' + "supercalifragilistic" * 6
OTHER = "runs/a/rather/long/path/of/a/<model>" * 3
FIGURES = ["accuracy", "rewards", "reliability", "accuracy_by_margin", "score_alignment", "margin_stability"]


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
        if self.elements and self.elements[-1][0] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def without_figures(monkeypatch):
    """Draw nothing, as that takes most of the time of a page."""
    made = "sdiareward.evaluation.report.sections.draw_figures"
    monkeypatch.setattr(made, lambda report, records, folder, names: folder.mkdir(exist_ok=True) or {})


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Return a page with every section filled, from transcripts that are HTML."""
    folder = tmp_path_factory.mktemp("evaluation")
    made = {"centered": report_world.make_training(0.01, 0.3), "free": report_world.make_training(None, 5.0)}
    for name, log in made.items():
        (folder / f"{name}.json").write_text(json.dumps(log))
    pairs, labels, scores = report_world.make_evaluation(text=NASTY)
    skipped = [{**labels[0], "pair_id": "broken-1", "reason": "chosen, turn 1: cannot be decoded"}]
    others = [report_world.make_other(labels, model=OTHER)]
    results = report_world.make_results(labels, scores, skipped) | {"judge": report_world.make_judge()}
    results["disagreements"] = find_disagreements(labels, scores["model"], others, "error")
    training = content.read_training_runs(sorted(folder.glob("*.json")))
    return Page(write_page(folder, results, pairs, labels, scores, others=others, training=training))


@pytest.mark.slow
def test_the_page_is_beside_its_numbers_requests_nothing_and_runs_only_its_own_style_and_script(complete):
    files = {path.name for path in complete.path.parent.iterdir()}
    assert files == {"index.html", "report.json", *(f"{name}.svg" for name in FIGURES)}
    assert complete.path.stat().st_size < 25_000_000 and complete.report["num_pairs"] == 56
    for _, attributes in complete.elements:
        for name in ("src", "href", "srcset", "poster", "data", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), attributes[name][:80]
        assert not {"style", "onclick"} & {*attributes}
    (policy,) = (meta["content"] for meta in complete.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        (found,) = re.findall(rf"<{tag}>(.*?)</{tag}>", complete.text, re.DOTALL)
        digest = hashlib.sha256(found.encode()).digest()
        assert f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy and "alert" not in found
    # Wrong pairs and disagreements, four turns each.
    shown = len(complete.report["examples"]) + len(complete.report["disagreements"][0]["rows"])
    assert "".join(complete.words).count(NASTY) == shown * 4 and OTHER in complete.shown
    assert all(b"currentColor" in path.read_bytes() for path in complete.path.parent.glob("*.svg"))


@pytest.mark.slow
def test_headings_figures_players_and_tables_have_their_order_and_names(complete):
    levels = [int(tag[1]) for tag, _ in complete.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    ids = [attributes["id"] for _, attributes in complete.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) and {link["href"][1:] for link in complete.all("a")} <= set(ids)
    assert complete.all("a")[0] == {"class": "skip", "href": "#main"} and complete.all("html") == [{"lang": "en"}]
    assert len(complete.all("img")) == len(FIGURES) and all(image["alt"] for image in complete.all("img"))
    players = [player["aria-label"] for player in complete.all("audio")]
    assert len(players) == len(set(players)) and players[0] == "pair 1, chosen, turn 1, user, 0.2 seconds"
    regions = [attributes for _, attributes in complete.elements if attributes.get("role") == "region"]
    assert len(regions) == len(complete.all("table"))
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)


@pytest.mark.slow
def test_the_page_shows_in_words_what_the_json_holds(complete, snapshot):
    lines = [word.strip() for word in complete.words if word.strip()]
    examples, rest = (len(lines) - 1 - lines[::-1].index(title) for title in ("Wrong pairs", "Skipped pairs"))
    assert "\n".join(lines[:examples] + lines[rest:]) == snapshot


def test_a_page_of_own_pairs_has_no_empty_parts_keeps_no_figure_of_before_and_is_the_same_when_made_again(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "comparison.svg").write_bytes(b"of before")
    pairs, labels, _ = report_world.make_evaluation(license=None)
    labels = [{**label, "group_id": None, "synthesizer": None} for label in labels[:1]]
    scores = {"model": {label["pair_id"]: {"chosen": 0.0, "rejected": 1.0} for label in labels}}
    results = report_world.make_results(labels, scores)
    # A name with dollar signs is no formula.
    results["config"]["model"] = r"runs/$\frac$/model"
    page = Page(write_page(tmp_path, results, pairs.select([0]), labels, scores))
    made = {path.name: path.read_bytes() for path in page.path.parent.iterdir()}
    write_page(tmp_path, results, pairs.select([0]), labels, scores)
    assert {path.name: path.read_bytes() for path in page.path.parent.iterdir()} == made
    assert page.sections == {"accuracy", "examples"} and not page.all("img") and "<dt>" not in page.text
    table = page.text[page.text.index("<table") : page.text.index("</table>")]
    assert re.findall(r'<th scope="col"><span class="name">([^<]*)', table) == ["scorer", "wild"]
    # The user's own recordings play; the page warns against passing them on.
    assert len(page.all("audio")) == 4
    assert "not known to allow redistribution (licence: unknown). Do not publish it" in page.text
    assert not (page.path.parent / "comparison.svg").exists()


def test_a_model_without_one_finite_reward_gets_its_page_too(tmp_path):
    pairs, labels, _ = report_world.make_evaluation(license="unknown")
    scores = {"model": {label["pair_id"]: {"chosen": float("nan"), "rejected": 0.0} for label in labels}}
    results = report_world.make_results(labels, scores, nan="wrong")
    page = Page(write_page(tmp_path, results, pairs, labels, scores))
    # There is nothing to count, so there is no accuracy, on the page, in the text and on the card.
    assert "has no usable reward for any of 56 pairs" in page.shown and "0.00" not in page.words
    assert "count as wrong and are part of no figure" in page.shown
    text = render_markdown(results)
    assert "56 of 56 pairs have a reward that is not finite, so there is no accuracy" in text and "0.00" not in text
    assert make_model_index(results) == []
    assert len(page.all("img")) == 1 and not page.sections & {"margins", "examples"}


def test_pairs_of_the_released_form_and_of_one_recording_make_a_page_too(tmp_path, without_figures):
    def to_messages(row):
        return {side: make_dialogue(row[side]).to_messages() for side in ("chosen", "rejected")}

    pairs, labels, scores = report_world.make_evaluation()
    released = pairs.remove_columns(["primary", "secondary", "license", "language"]).map(to_messages)
    labels = [{**label, "synthesizer": None, "group_id": "one", "criterion": "joint"} for label in labels]
    results = report_world.make_results(labels, scores)
    page = Page(write_page(tmp_path, results, released, labels, scores, embed_audio="open"))
    assert "its licence, unknown, is not known to let anyone pass it on" in page.shown
    assert re.search(r"of 56 pairs, \d\d\.\d\d% \(no interval over 1 recording\)", page.shown)
    assert not page.sections & {"synthesizers", "disagreements", "judge"}


def test_a_judge_is_compared_with_a_model_on_its_page_and_in_markdown(tmp_path, without_figures, snapshot):
    pairs, labels, by_scorer = report_world.make_evaluation()
    scores = {**by_scorer["model"], "pair-05": {"chosen": None, "rejected": None, "margin": None}}
    model = report_world.make_other(labels, folder="runs/model", model="checkpoints/tiny")
    results = report_world.make_results(labels, {"model": scores}, nan="wrong")
    results["config"] |= {"model": None, "judge": "ear"}
    results["judge"] = report_world.make_judge() | {"changed_parameters": {"seed": None}}
    results["disagreements"] = find_disagreements(labels, scores, [model], "wrong")
    page = Page(write_page(tmp_path, results, pairs, labels, {"model": scores}, others=[model]))
    (found,), (entry,) = results["disagreements"], page.report["disagreements"]
    assert [row["pair_id"] for row in entry["rows"]] == [row["pair_id"] for row in found["rows"]]
    assert entry["rows"][0]["chosen"][0]["clips"][0]["clip"] and "With checkpoints/tiny" in page.shown
    assert any("judge: 1 of 56 pairs have no usable answer" in note for note in page.report["notes"])
    assert render_markdown(results) == snapshot
    results["judge"] |= {"kind": "pointwise", "usd": None}
    text = render_markdown(results)
    assert "osition bias" not in text and "dollars" not in text


def test_at_most_twenty_wrong_pairs_are_shown_until_the_page_becomes_too_large():
    pairs, labels, _ = report_world.make_evaluation()
    scores = report_world.make_scores(labels, quality=0.0)
    rows = content.find_wrong(labels, scores | {"pair-00": {"chosen": None, "rejected": -9.0}})
    margins = [row["margin"] for row in rows]
    assert len(margins) == 20 and margins == sorted(margins) and max(margins) <= 0
    assert "pair-00" not in [row["pair_id"] for row in rows]
    first, *_, last = sections.add_dialogues(rows, pairs, labels, page.Collector(max_audio_characters=20_000))
    number = int(first["pair_id"].removeprefix("pair-"))
    assert [(turn["role"], turn["text"]) for turn in first["rejected"]] == [
        (role, f"so, um, hello {number} rejected") for role in ("user", "assistant")
    ]
    (clip,), (absent,) = first["chosen"][0]["clips"], last["chosen"][0]["clips"]
    assert clip["clip"] and clip["duration_s"] == 0.25
    # A recording counts as often as it is played.
    assert absent["no_audio"] == "the page would become too large"


def test_only_licences_known_to_let_anyone_pass_recordings_on_are_open():
    free = ["CC-BY-SA-3.0", "CC0-1.0", "GPL-2.0-only", "LicenseRef-Flight-of-the-Amazon-Queen"]
    free += ["Creative Commons Attribution license (reuse allowed)"]
    others = ["LicenseRef-YouTube", "LicenseRef-MELD", "MITRE internal", "unknown", "", None]
    assert [license for license in (*free, *others) if page.is_redistributable(license)] == free
    source = {"array": np.zeros(4000, dtype=np.float32), "sampling_rate": 16_000}
    collector, careful, silent = page.Collector(), page.Collector("open"), page.Collector("none")
    for license in ("CC0-1.0", None, "LicenseRef-YouTube"):
        assert collector.describe_clip(source, license)["clip"] in collector.clips
    assert collector.private_licenses == {"unknown", "LicenseRef-YouTube"}
    reason = "its licence, unknown, is not known to let anyone pass it on"
    assert careful.describe_clip(source, None)["no_audio"] == reason
    assert (careful.clips, careful.private_licenses) == ({}, set())
    assert silent.describe_clip(source, "CC0-1.0")["clip"] is None
    assert "cannot be decoded" in collector.describe_clip({"bytes": b"not audio", "path": None}, None)["no_audio"]


@pytest.fixture(scope="module")
def report():
    _, labels, by_scorer = report_world.make_evaluation()
    records = [{**label, "primary": "Joy", "secondary": None} for label in labels]
    others = [report_world.make_other(labels, folder=folder) for folder in ("runs/a", "runs/b")]
    by_scorer["model"]["pair-03"] = {"chosen": math.nan, "rejected": 0.0}
    return content.build_report(report_world.make_results(labels, by_scorer, nan="wrong"), records, by_scorer, others)


def test_a_reward_that_is_not_finite_is_named_and_no_part_of_calibration_and_margins(report):
    # Models of one name have their folders in their titles.
    titles = ["other/<model> (runs/a)", "other/<model> (runs/b)", "acoustic baseline", "text baseline"]
    assert [row["title"] for row in report["scorers"]] == ["checkpoints/tiny", *titles]
    names = [row["name"] for row in report["scorers"]]
    columns = (("overall_micro", 56), ("modality_micro", 42), ("colloquialness", 14))
    expected = [(scorer, *column) for scorer in names[1:] for column in columns]
    assert [(row["scorer"], row["column"], row["num_pairs"]) for row in report["comparisons"]] == expected
    assert report["not_finite"] == [{"scorer": "model", "pair_id": "pair-03"}]
    assert [row["scorer"] for row in report["calibration"]] == ["model", "compared_1", "compared_2"]
    found = report["calibration"][0]
    assert found["num_pairs"] == sum(row["num_pairs"] for row in report["margins"]) == 55
    assert sum(row["num_pairs"] for row in found["after"]["bins"]) == 55


def label(number, subset="wild", group=None, **fields):
    about = {"pair_id": f"pair-{number}", "criterion": "modality", "subset": subset, "source": "made_up"}
    return {**about, "synthesizer": "known", "group_id": group or f"group-{number}", **fields}


def make_scores(margins):
    return {f"pair-{number}": {"chosen": margin, "rejected": 0.0} for number, margin in enumerate(margins)}


def test_a_cell_is_small_below_ten_pairs_or_five_recordings():
    records = [label(number, primary="Joy", secondary="Laughter") for number in range(10)]
    records += [label(number, group=f"four-{number % 4}", primary="Anger", secondary=None) for number in range(10, 20)]
    records += [label(number, primary="Fear", secondary=None) for number in range(20, 29)]
    rows = content.by_taxonomy(records, {"model": make_scores([1.0] * 28 + [-1.0])}, OPTIONS)
    names = ("primary", "secondary", "num_pairs", "num_groups", "is_small")
    found = [tuple(row[name] for name in names) for row in rows]
    assert found == [("Anger", "", 10, 4, True), ("Fear", "", 9, 9, True), ("Joy", "Laughter", 10, 10, False)]
    assert rows[1]["model"]["accuracy"] == pytest.approx(8 / 9)


def test_a_bin_has_the_accuracy_and_the_range_of_its_pairs():
    values = np.arange(40.0)
    low, high = content.describe_bins(
        [label(n) for n in range(40)], make_scores([-1.0] * 10 + [1.0] * 30), values, OPTIONS
    )
    assert (low["num_pairs"], low["accuracy"], low["mean"], low["low"], low["high"]) == (20, 0.5, 9.5, 0.0, 19.0)
    assert (high["accuracy"], high["low"]) == (1.0, 20.0)


def test_logs_of_equal_titles_have_their_paths(tmp_path):
    paths = [tmp_path / f"{name}.json" for name in "ab"]
    for path in paths:
        path.write_text(json.dumps(report_world.make_training(None, 2.0)))
    titles = [run["title"] for run in content.read_training_runs(paths)]
    assert titles == [f"without centering ({path})" for path in paths]


@pytest.mark.parametrize("text", [None, '{"model": "m"}', '{"training": {}, "history": [{"loss": 1.0, "step": 1}]}'])
def test_a_log_that_is_none_of_training_is_refused_by_name(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises((FileNotFoundError, ValueError), match="run.json: "):
        content.read_training_runs([tmp_path / "run.json"])


@pytest.fixture(scope="module")
def comparison(tmp_path_factory, tiny_checkpoint):
    folder = tmp_path_factory.mktemp("comparison")
    names = ["a", "supercalifragilistic" * 4, "c"]
    systems = [write_system(folder / name, number) for number, name in enumerate(names)]
    options = {"model": tiny_checkpoint, "num_bootstrap": 20, "criterion": "modality"}
    return Path(sdiareward.compare(*systems, output_dir=folder / "out", **options).page)


@pytest.fixture(scope="module")
def browser():
    with chromium.started(chromium.PLAY_AT_ONCE) as driver:
        yield driver


@chromium.needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["complete", "comparison"])
def test_the_page_fits_and_the_keyboard_reaches_tables_and_players_which_play_one_at_a_time(browser, request, kind):
    from selenium.webdriver.common.keys import Keys

    page = request.getfixturevalue(kind)
    for size in chromium.SIZES:
        width = chromium.open_page(browser, getattr(page, "path", page), size)
        window, whole = chromium.measure_widths(browser)
        assert window == width >= whole
        assert chromium.requested(browser) == browser.get_log("browser") == []
    assert min(chromium.measure_contrasts(chromium.take_screenshot(browser, width))) > 10
    browser.refresh()
    reached = []
    while not reached or (reached[-1][0] != "audio" and len(reached) < 70):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        reached.append((focused.tag_name, focused.get_attribute("class")))
    assert reached[0] == ("a", "skip") and ("div", "scroll") in reached and reached[-1][0] == "audio"
    paused, lengths = browser.execute_async_script(
        """
        const [first, second] = document.querySelectorAll("audio"), done = arguments[0];
        first.muted = second.muted = first.loop = second.loop = true;
        first.play().then(() => second.play()).then(
          () => done([[first.paused, second.paused], [first.duration, second.duration]]), (e) => done(String(e)));
        """
    )
    assert paused == [True, False] and min(lengths) > 0.19
