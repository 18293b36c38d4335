"""Rate a study in a real browser, by keyboard, as on a phone."""

import json
import threading
import time
from contextlib import contextmanager

import pytest
from support import human_world, wavreward_eval_world
from support.chromium import SIZES, needs_chromium, started

from sdiareward.evaluation.human.server import RatingServer
from sdiareward.evaluation.human.study import Study
from sdiareward.judges.wavreward.ab_study import pair_scores, sample_ab_study
from sdiareward.judges.wavreward.scores import read_samples


webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = [needs_chromium, pytest.mark.slow]
PHONE, DESKTOP = SIZES["phone"], SIZES["desktop"]
# Kind, name, outline and height of what has the focus.
FOCUSED = """
const e = document.activeElement;
if (e === document.body) return null;
const name = e.getAttribute("aria-label") || e.textContent.trim();
return [e.tagName, name, getComputedStyle(e).outlineStyle, e.getBoundingClientRect().height];
"""


class Page:
    """The page of a study at phone width, in the browser."""

    def __init__(self, browser, study):
        self.browser, self.study = browser, study
        self.find = lambda selector: browser.find_elements("css selector", selector)
        self.run = browser.execute_script

    def resize(self, size):
        # A window is never as narrow as a phone: the device is emulated.
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def text(self, name):
        return self.browser.find_element("id", name).text

    def click(self, name):
        self.browser.find_element("id", name).click()

    def press(self, *keys):
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    def wait(self, condition):
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, f"the page still says {self.text('status')!r}"
            time.sleep(0.02)

    def wait_for(self, name, text):
        self.wait(lambda: self.text(name).startswith(text))

    def read_answers(self):
        path = self.study / "answers.jsonl"
        records = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return [record for record in records if "item" in record]

    def is_narrow(self):
        return self.run("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def browser():
    with started("--mute-audio") as driver:
        yield driver


@contextmanager
def opened(browser, study, rater="ann"):
    """Serve a study to a rater who has agreed, or to raters who have not, and open it at phone width."""
    if rater:
        content = Study(study)
        content.save(rater, texts=content.content["texts"])
    server, page = RatingServer(study, rater), Page(browser, study)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page.resize(PHONE)
    browser.get(server.url)
    page.wait_for(*(("count", "Pair") if rater else ("begin", "Begin")))
    yield page
    server.shutdown()


def draw(folder):
    return human_world.draw_study(folder, (2.0, 1.0, -1.0), words="long words " * 12, high=1, low=1, wrong=1)


@pytest.fixture
def page(browser, tmp_path):
    with opened(browser, draw(tmp_path)) as page:
        yield page


def test_a_study_is_rated_by_keyboard_alone(page):
    items = [item["item"] for item in Study(page.study).order_items("ann")]
    assert page.text("count") == "Pair 1 of 3, 0 answered"
    # Transcripts are text and not markup.
    assert "<b>&amp;" in page.find("#a .turns p")[0].text
    page.press(webdriver.Keys.SPACE)
    page.wait(lambda: page.find("#b .playing"))
    page.wait(lambda: not page.find(".playing"))
    for number, key in enumerate("1b3", start=1):
        page.press(key)
        page.wait_for("status", f"Saved for pair {number}:")
    answers = page.read_answers()
    found = [(record["item"], record["choice"]) for record in answers]
    assert found == list(zip(items, ("a", "b", "tie"), strict=True))
    assert [record["heard"] for record in answers] == [["a", "b"], [], []]
    assert "All 3 pairs are answered" in page.text("status")
    # A given answer is shown, and can be changed.
    page.press(webdriver.Keys.ARROW_LEFT)
    page.wait_for("count", "Pair 2 of 3, 3 answered")
    assert [button.get_attribute("data-choice") for button in page.find("[aria-pressed=true]")] == ["b"]
    page.press("1")
    page.wait(lambda: len(page.read_answers()) == 4)
    assert page.read_answers()[-1]["item"] == items[1]


def test_a_rater_reads_the_instructions_agrees_and_gives_a_name_first(browser, tmp_path):
    with opened(browser, draw(tmp_path), rater=None) as page:
        assert "Taking part is voluntary." in page.text("consent")
        assert page.text("welcome-title") == "Before you begin"
        assert not browser.find_element("id", "rating").is_displayed()
        assert page.is_narrow()
        page.press("1")
        page.click("begin")
        browser.find_element("id", "name").send_keys("bob")
        page.click("begin")
        assert not (page.study / "answers.jsonl").exists()
        page.click("agree")
        page.click("begin")
        page.wait_for("count", "Pair 1 of 3")
        assert list(Study(page.study).consents) == ["bob"]
        page.press("2")
        page.wait_for("count", "Pair 2")
        assert [record["rater"] for record in page.read_answers()] == ["bob"]
        page.click("again")
        page.click("begin")
        assert page.text("count") == "Pair 2 of 3, 1 answered"


def test_every_control_is_reached_by_tab_and_nothing_is_wider_than_the_screen_or_asked_for_elsewhere(page):
    found = []
    for _ in range(25):
        page.press(webdriver.Keys.TAB)
        if (focused := page.run(FOCUSED)) is None:
            break
        found.append(focused)
    seen = [tuple(each[:2]) for each in found]
    assert {("BUTTON", "Play A"), ("AUDIO", "B, turn 2. Speaker 2"), ("BUTTON", "Cannot tell 3")} <= set(seen)
    assert all(name for _, name in seen)
    assert all(outline != "none" and height >= 44 for kind, _, outline, height in found if kind == "BUTTON")
    for size in (PHONE, DESKTOP):
        page.resize(size)
        assert page.is_narrow()
        assert page.run("return window.innerWidth") == size[0]
    urls = page.run("return performance.getEntriesByType('resource').map(e => e.name)")
    own = page.browser.current_url
    assert urls and all(url.startswith((own, "data:")) for url in urls)
    # What was still loading from another test's server when that stopped is not this page's fault.
    messages = [entry["message"] for entry in page.browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in messages if own in message] == []


def test_two_scores_of_one_recording_are_compared_by_keyboard(browser, tmp_path):
    samples = read_samples(wavreward_eval_world.write_chatreward(tmp_path / "data"), "test")
    judged = [{**label, "predicted": label["score"]} for label in samples.labels]
    pairs, _ = pair_scores(judged, [{**record, "predicted": 4} for record in judged])
    sample_ab_study(pairs, samples, tmp_path / "study", seed=0, size=2, judges=("one", "other"))
    with opened(browser, tmp_path / "study") as page:
        item = Study(page.study).order_items("ann")[0]
        assert page.text("title") == browser.title == "Compare two scores" and page.is_narrow()
        assert [page.text(part).splitlines()[-1] for part in "ab"] == [item[part][0]["text"] for part in "ab"]
        # A score is read, not played; the recording is all there is to hear.
        assert [button.text for button in page.find(".play") if button.is_displayed()] == ["Play conversation"]
        page.press(webdriver.Keys.SPACE)
        page.wait(lambda: page.find("#context .playing"))
        page.press("2")
        page.wait_for("count", "Pair 2")
        page.press("3")
        page.wait(lambda: len(page.read_answers()) == 2)
        found = [(record["choice"], record["heard"]) for record in page.read_answers()]
        assert found == [("b", ["context"]), ("tie", [])]
        page.wait(lambda: "All 2 pairs are answered" in page.text("status"))
