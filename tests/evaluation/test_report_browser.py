"""Pages of evaluations and comparisons in Debian's Chromium, headless, at the width of a phone and of a desk."""

import json
from pathlib import Path

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
from sdiareward.evaluation.report import write_page
from sdiareward.evaluation.report.inputs import ComparedEvaluation, read_training_runs


pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    log = folder / "run.json"
    log.write_text(json.dumps(report_world.make_training(0.01, 0.3)))
    pairs, labels, scores = report_world.make_evaluation(text="a rather long word: " + "supercalifragilistic" * 6)
    others = [
        ComparedEvaluation(
            "runs/other", "runs/a/rather/long/path/of/a/model" * 3, report_world.make_scores(labels, 7), {}
        )
    ]
    results = {**report_world.make_results(labels, scores), "judge": report_world.make_judge()}
    return write_page(folder, results, pairs, labels, scores, others=others, training=read_training_runs([log]))


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


@pytest.fixture(params=SIZES)
def opened(request, browser, page):
    return browser, open_page(browser, page, request.param)


@pytest.mark.parametrize("kind", ["page", "comparison"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_and_requests_nothing(browser, request, kind, size):
    width = open_page(browser, request.getfixturevalue(kind), size)
    window, whole = measure_widths(browser)
    assert window == width
    assert whole <= width
    assert requested(browser) == []
    assert browser.get_log("browser") == []
    assert min(measure_contrasts(take_screenshot(browser, width))) > 10


def test_the_keyboard_reaches_the_skip_link_first_then_the_tables_and_the_players(opened):
    from selenium.webdriver.common.keys import Keys

    browser, _ = opened
    reached = []
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        reached.append((focused.tag_name, focused.get_attribute("class")))
        if focused.tag_name == "audio":
            break
    assert reached[0] == ("a", "skip")
    assert ("div", "scroll") in reached
    assert reached[-1][0] == "audio"


def test_a_recording_plays_and_stops_the_one_before(opened):
    browser, _ = opened
    lengths = browser.execute_async_script(
        """
        const [first, second] = document.querySelectorAll("audio"), done = arguments[0];
        const loaded = [first, second].map((player) => new Promise((resolve) => {
          player.addEventListener("loadedmetadata", () => resolve(player.duration), { once: true });
          player.load(); player.preload = "auto"; player.load();
        }));
        Promise.all(loaded).then(done, (error) => done(String(error)));
        """
    )
    assert lengths == pytest.approx([0.25, 0.25], abs=0.06)
    paused = browser.execute_async_script(
        """
        const [first, second] = document.querySelectorAll("audio"), done = arguments[0];
        first.muted = second.muted = true;
        first.loop = second.loop = true;
        first.play().then(() => second.play()).then(() => done([first.paused, second.paused]), (e) => done(String(e)));
        """
    )
    assert paused == [True, False]
