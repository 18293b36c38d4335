"""Hostile transcripts and names on our pages, in a real browser: they are shown as they are, and nothing runs.

The page of the demo is tried likewise in `test_demo_browser.py`.
"""

import threading

import pytest
from support import human_world, report_world
from support.chromium import needs_chromium, requested, started

from sdiareward.evaluation.human.server import RatingServer
from sdiareward.evaluation.human.study import Study
from sdiareward.evaluation.report.sections import write_page


pytestmark = [needs_chromium, pytest.mark.slow]
# Each would leave `hit` in the title if it ran.
SCRIPT = "<script>document.title = 'hit'</script>"
HOSTILE = (
    f"{SCRIPT}</p></li></ol>{SCRIPT}<img src=x onerror=\"document.title='hit'\">"
    "<a href=\"javascript:document.title='hit'\">press</a><svg onload=\"document.title='hit'\"></svg>"
    "<iframe srcdoc=\"<script>parent.document.title='hit'</script>\"></iframe>{{ 7 * 7 }}${7*7}\"'`"
    "<style>*{display:none}</style><base href=//x.org><meta http-equiv=refresh content=0>"
)
# How many elements there are that only a transcript could have brought.
FOREIGN = """
return document.querySelectorAll(
  "img[src=x], a[href^='javascript:'], svg[onload], iframe, base, [onerror], p script, li script"
).length
"""


@pytest.fixture(scope="module")
def browser():
    with started("--mute-audio") as driver:
        yield driver


def require_harmless(browser):
    """Raise unless nothing of the transcripts became an element, ran or was asked for."""
    assert browser.title != "hit"
    assert browser.execute_script(FOREIGN) == 0
    assert browser.execute_script("return getComputedStyle(document.body).display") != "none"
    own = (browser.current_url.rpartition("/")[0], "blob:")
    assert [name for name in requested(browser) if not name.startswith(own)] == []


def test_the_page_of_an_evaluation_shows_hostile_transcripts_and_names_as_text(browser, tmp_path):
    pairs, labels, scores = report_world.make_evaluation(text=HOSTILE)
    labels = [{**label, "synthesizer": f"{label['synthesizer']}{SCRIPT}"} for label in labels]
    results = report_world.make_results(labels, scores)
    results["config"]["model"] = f"runs/{HOSTILE}"
    skipped = {**labels[0], "pair_id": SCRIPT, "reason": HOSTILE}
    results["skipped"] = [skipped]
    browser.get(write_page(tmp_path, results, pairs, labels, scores).as_uri())
    for element in browser.find_elements("css selector", "details"):
        browser.execute_script("arguments[0].open = true", element)
    require_harmless(browser)
    shown = browser.find_element("tag name", "body").text
    assert "<img src=x onerror=" in shown
    assert "{{ 7 * 7 }}${7*7}" in shown


def test_the_page_of_a_study_shows_hostile_transcripts_as_text(browser, tmp_path):
    study = Study(human_world.draw_study(tmp_path, (2.0, 1.0, -1.0), HOSTILE, high=1, low=1, wrong=1))
    study.save("ann", texts=study.content["texts"])
    server = RatingServer(tmp_path / "study", "ann")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.get(server.url)
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(browser, 30).until(lambda page: page.find_element("id", "count").text.startswith("Pair"))
        require_harmless(browser)
        assert "<img src=x onerror=" in browser.find_element("css selector", "#a .turns").text
        # What is turned around ends with its own line: nothing beside it is read backwards.
        display = "return getComputedStyle(document.querySelector('#a .turns p')).display"
        assert browser.execute_script(display) == "block"
    finally:
        server.shutdown()
