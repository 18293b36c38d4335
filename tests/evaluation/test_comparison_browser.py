"""The page of a comparison in Debian's Chromium, headless, at the width of a phone and of a desk."""

from pathlib import Path

import numpy as np
import pytest
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


pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(tmp_path_factory, tiny_checkpoint):
    folder = tmp_path_factory.mktemp("comparison")
    names = ["a", "supercalifragilistic" * 4, "c"]
    systems = [write_system(folder / name, number) for number, name in enumerate(names)]
    options = {"model": tiny_checkpoint, "num_bootstrap": 20, "criterion": "all"}
    return sdiareward.compare(*systems, output_dir=folder / "out", **options).page


@pytest.fixture(scope="module")
def browser():
    with started(PLAY_AT_ONCE) as driver:
        yield driver


@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_and_requests_nothing(browser, page, size):
    width = open_page(browser, Path(page), size)
    window, whole = measure_widths(browser)
    assert window == width
    assert whole <= width
    assert requested(browser) == []
    assert browser.get_log("browser") == []
    assert min(measure_contrasts(take_screenshot(browser, width))) > 10


def test_a_table_that_goes_on_beyond_the_edge_has_a_shadow_there(browser, page):
    width = open_page(browser, Path(page), "phone")
    tables = browser.find_elements("css selector", ".scroll:has(> table)")
    table = max(tables, key=lambda each: int(each.get_property("scrollWidth")))
    assert table.get_property("scrollWidth") > table.get_property("clientWidth") + 100
    box = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", table)
    rows = slice(round(box["top"]) + 8, round(box["bottom"]) - 8)
    # Near the right edge, where at the end only the border is darker than the page.
    before = np.median(take_screenshot(browser, width)[rows, -45:], axis=0)
    browser.execute_script("arguments[0].scrollLeft = arguments[0].scrollWidth", table)
    after = np.median(take_screenshot(browser, width)[rows, -45:], axis=0)
    assert before.min() < after.min() - 10


def test_a_recording_plays(browser, page):
    open_page(browser, Path(page), "desktop")
    browser.set_script_timeout(10)
    played_s = browser.execute_async_script(
        "const done = arguments[0], player = document.querySelector('audio');"
        "player.addEventListener('ended', () => done(player.currentTime));"
        "player.addEventListener('error', () => done(null)); player.play();"
    )
    assert played_s == pytest.approx(0.2, abs=0.1)
