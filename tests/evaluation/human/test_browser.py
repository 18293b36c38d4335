"""Rate a study in a real browser, by keyboard, as on a phone."""

import json
import threading
import time
from contextlib import contextmanager

import pytest
from support import human_world, wavreward_eval_world
from support.chromium import SIZES, needs_chromium, started

from sdiareward.evaluation.human.server import RatingServer
from sdiareward.evaluation.human.study import Study, sample_study
from sdiareward.evaluation.results_files import read_evaluation
from sdiareward.judges.wavreward.ab_study import pair_scores, sample_ab_study
from sdiareward.judges.wavreward.scores import read_samples
from sdiareward.pairs.loading import load_pairs


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


@pytest.fixture(scope="module")
def browser():
    with started("--mute-audio") as driver:
        yield driver


@pytest.fixture
def page(browser, tmp_path):
    """Open a study of three items at phone width; give the browser and the study's folder."""
    with opened(browser, write_study(tmp_path)):
        yield browser, tmp_path / "study"


def write_study(tmp_path):
    scores = [human_world.make_score(number, margin) for number, margin in enumerate((2.0, 1.0, -1.0))]
    pairs = human_world.write_pairs(tmp_path / "pairs.parquet", scores, words_of=lambda score: "long words " * 12)
    evaluation = read_evaluation(human_world.write_evaluation(tmp_path / "eval", scores))
    sizes = {"high": 1, "low": 1, "wrong": 1}
    sample_study(evaluation, load_pairs(pairs, "test"), tmp_path / "study", seed=0, sizes=sizes)
    return tmp_path / "study"


@pytest.fixture
def scores_page(browser, tmp_path):
    """Open a study of the scores of two judges, of two items; give the browser and the study's folder."""
    data = wavreward_eval_world.write_chatreward(tmp_path / "data")
    samples = read_samples(data, "test")
    judged = [{**label, "predicted": label["score"]} for label in samples.labels]
    pairs, _ = pair_scores(judged, [{**record, "predicted": 4} for record in judged])
    sample_ab_study(pairs, samples, tmp_path / "study", seed=0, size=2, judges=("one", "other"))
    with opened(browser, tmp_path / "study"):
        yield browser, tmp_path / "study"


@contextmanager
def opened(browser, study, rater="ann"):
    """Serve a study to a rater who has agreed, or to raters who have not, and open it at phone width."""
    if rater:
        content = Study(study)
        content.save(rater, texts=content.content["texts"])
    server = RatingServer(study, rater)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    resize(browser, PHONE)
    browser.get(server.url)
    wait(browser, lambda: text(browser, "count" if rater else "begin").startswith("Pair" if rater else "Begin"))
    yield
    server.shutdown()


def resize(browser, size):
    # A window is never as narrow as a phone: the device is emulated.
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def wait(browser, condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"the page still says {text(browser, 'status')!r}"
        time.sleep(0.02)


def text(browser, name):
    return browser.find_element("id", name).text


def press(browser, *keys):
    webdriver.ActionChains(browser).send_keys(*keys).perform()


def answers(study):
    path = study / "answers.jsonl"
    records = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [record for record in records if "item" in record]


def is_playing(browser):
    return browser.execute_script("return [...document.querySelectorAll('audio')].findIndex(a => !a.paused)")


def test_a_study_is_rated_by_keyboard_alone(page):
    browser, study = page
    items = [item["item"] for item in Study(study).order_items("ann")]
    assert text(browser, "count") == "Pair 1 of 3, 0 answered"
    # Transcripts are text and not markup.
    assert "<b>&amp;" in browser.find_element("css selector", "#a .turns p").text
    for number, key in enumerate("1b3", start=1):
        press(browser, key)
        wait(browser, lambda number=number: text(browser, "status").startswith(f"Saved for pair {number}:"))
    assert [(record["item"], record["choice"]) for record in answers(study)] == list(
        zip(items, ("a", "b", "tie"), strict=True)
    )
    assert "All 3 pairs are answered" in text(browser, "status")
    assert text(browser, "count") == "Pair 3 of 3, 3 answered"


def test_a_rater_reads_the_instructions_agrees_and_gives_a_name_first(browser, tmp_path):
    study = write_study(tmp_path)
    with opened(browser, study, rater=None):
        assert "Taking part is voluntary." in text(browser, "consent")
        assert text(browser, "welcome-title") == "Before you begin"
        assert browser.find_element("id", "welcome-title").rect["width"] > 100
        assert not browser.find_element("id", "rating").is_displayed()
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
        press(browser, "1")
        begin = browser.find_element("id", "begin")
        begin.click()
        assert not (study / "answers.jsonl").exists()
        browser.find_element("id", "name").send_keys("bob")
        begin.click()
        assert not (study / "answers.jsonl").exists()
        browser.find_element("id", "agree").click()
        begin.click()
        wait(browser, lambda: text(browser, "count").startswith("Pair 1 of 3"))
        assert list(Study(study).consents) == ["bob"]
        press(browser, "2")
        wait(browser, lambda: text(browser, "count").startswith("Pair 2"))
        assert [record["rater"] for record in answers(study)] == ["bob"]
        browser.find_element("id", "again").click()
        assert text(browser, "begin") == "Back to the pairs"
        browser.find_element("id", "begin").click()
        assert text(browser, "count") == "Pair 2 of 3, 1 answered"


def test_space_plays_both_sides_and_the_answer_says_that_they_were_heard(page):
    browser, study = page
    press(browser, webdriver.Keys.SPACE)
    wait(browser, lambda: browser.find_elements("css selector", "#a .playing"))
    wait(browser, lambda: browser.find_elements("css selector", "#b .playing"))
    wait(browser, lambda: is_playing(browser) < 0)
    press(browser, "2")
    wait(browser, lambda: answers(study))
    assert answers(study)[0]["heard"] == ["a", "b"]


def test_arrows_go_back_and_forth_and_a_given_answer_is_shown(page):
    browser, study = page
    press(browser, "a")
    wait(browser, lambda: text(browser, "count").startswith("Pair 2"))
    press(browser, webdriver.Keys.ARROW_LEFT)
    wait(browser, lambda: text(browser, "count").startswith("Pair 1"))
    pressed = browser.find_elements("css selector", "[data-choice][aria-pressed=true]")
    assert [button.get_attribute("data-choice") for button in pressed] == ["a"]
    press(browser, "2")
    wait(browser, lambda: len(answers(study)) == 2)
    assert answers(study)[0]["item"] == answers(study)[1]["item"]
    # The page opens at the first pair without an answer.
    browser.refresh()
    wait(browser, lambda: text(browser, "count").startswith("Pair"))
    assert text(browser, "count") == "Pair 2 of 3, 1 answered"


def test_every_control_is_reached_by_tab_and_has_a_name(page):
    browser, _ = page
    names = []
    for _ in range(25):
        press(browser, webdriver.Keys.TAB)
        names.append(browser.execute_script(FOCUSED))
        if names[-1] is None:
            break
    seen = [tuple(each[:2]) for each in names if each]
    for expected in (("BUTTON", "Play A"), ("AUDIO", "B, turn 2. Speaker 2"), ("BUTTON", "Cannot tell 3")):
        assert expected in seen
    assert all(name for _, name in seen)
    buttons = [each for each in names if each and each[0] == "BUTTON"]
    assert all(outline != "none" and height >= 44 for _, _, outline, height in buttons)


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_nothing_is_wider_than_the_screen_or_asked_for_elsewhere(page, size, tmp_path):
    browser, _ = page
    resize(browser, size)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.execute_script("return window.innerWidth") == size[0]
    urls = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert urls
    assert all(url.startswith((browser.current_url, "data:")) for url in urls)
    # What was still loading from another test's server when that stopped is not this page's fault.
    messages = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in messages if browser.current_url in message] == []
    # The question is seen at every width.
    assert browser.find_element("id", "question").rect["width"] > 200
    assert browser.get_screenshot_as_file(str(tmp_path / "page.png"))


def test_an_answer_that_cannot_be_saved_is_said_and_the_page_stays(page):
    browser, study = page
    kept = (study / "answers.jsonl").rename(study / "kept.jsonl")
    (study / "answers.jsonl").mkdir()
    press(browser, "1")
    wait(browser, lambda: text(browser, "status").startswith("Not saved: the answer cannot be saved"))
    assert text(browser, "count") == "Pair 1 of 3, 0 answered"
    (study / "answers.jsonl").rmdir()
    kept.rename(study / "answers.jsonl")
    time.sleep(0.05)
    press(browser, "1")
    wait(browser, lambda: text(browser, "count") == "Pair 2 of 3, 1 answered")


def test_two_scores_of_one_recording_are_compared_by_keyboard(scores_page):
    browser, study = scores_page
    item = Study(study).order_items("ann")[0]
    assert text(browser, "title") == browser.title == "Compare two scores"
    assert text(browser, "context-title") == "The conversation"
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert [text(browser, part).splitlines()[-1] for part in "ab"] == [item[part][0]["text"] for part in "ab"]
    # A score is read, not played; the recording is all there is to hear.
    shown = [button.text for button in browser.find_elements("css selector", ".play") if button.is_displayed()]
    assert shown == ["Play conversation"]
    press(browser, webdriver.Keys.SPACE)
    # A recording is no longer paused a moment before the page is told that it plays.
    wait(browser, lambda: browser.find_elements("css selector", "#context .playing"))
    press(browser, "2")
    wait(browser, lambda: text(browser, "count").startswith("Pair 2"))
    press(browser, "3")
    wait(browser, lambda: len(answers(study)) == 2)
    assert [(record["choice"], record["heard"]) for record in answers(study)] == [("b", ["context"]), ("tie", [])]
    wait(browser, lambda: "All 2 pairs are answered" in text(browser, "status"))
