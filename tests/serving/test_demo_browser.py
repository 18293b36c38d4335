"""The demo's page in Debian's Chromium: two dialogues compared, by keyboard, with a wrong file, on a phone."""

import io
import re
import shutil
import time

import numpy as np
import pytest
import soundfile
from support.chromium import SIZES

from sdiareward.common.package import EXAMPLES, NANO
from sdiareward.pairs.messages import read_dialogue
from sdiareward.scoring.scorer import Scorer
from sdiareward.serving.demo import app


CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.skipif(not CHROMIUM, reason="no chromium: apt-get install chromium"), pytest.mark.slow]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--mute-audio",
    # A microphone that beeps, and nobody who has to allow it.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
HUMAN = [EXAMPLES / f"human-{number}.flac" for number in (0, 1)]
_MS = 40_000


@pytest.fixture(scope="module")
def scorer():
    return Scorer.from_pretrained(NANO, device="cpu")


@pytest.fixture(scope="module")
def uploads(tmp_path_factory):
    """Where Gradio writes what is uploaded."""
    folder = tmp_path_factory.mktemp("uploads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def visit(scorer, uploads):
    """Return a function that opens the page as a new visitor; faults of the pages are found at the end."""
    pytest.importorskip("gradio", reason="gradio is not installed: pip install sdiareward[demo]")
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    built, faults = app.build(scorer), []
    _, url, _ = app.launch(built, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)

    def open_page(**options):
        width, height = SIZES["desktop"]
        page = browser.new_context(viewport={"width": width, "height": height}, **options).new_page()
        page.set_default_timeout(_MS)
        page.on("request", lambda request: faults.extend(_elsewhere(request.url, url)))
        page.on("console", lambda message: faults.extend([message.text] if message.type == "error" else []))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("response", lambda answer: faults.extend([answer.url] if answer.status >= 400 else []))
        page.goto(url)
        wait_for_turns(page, "B", 2)
        return page

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield open_page
        browser.close()
    built.close()
    assert faults == []


def _elsewhere(address, url):
    return [] if address.startswith((url, "data:", "blob:")) else [address]


READ_COLOURS = """button => {
  const style = getComputedStyle(button);
  return [style.color, style.backgroundColor].map(text => text.match(/[0-9.]+/g).slice(0, 3).map(Number));
}"""


def luminance(colour):
    share = np.array(colour) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return np.dot(linear, (0.2126, 0.7152, 0.0722))


def turns_of(page, name):
    return page.get_by_role("list", name=f"Turns of dialogue {name}").get_by_role("listitem")


def wait_for_turns(page, name, count):
    from playwright import sync_api

    sync_api.expect(turns_of(page, name)).to_have_count(count, timeout=_MS)


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def upload(page, files):
    with page.expect_file_chooser() as chooser:
        press(page, "Upload turns to A")
    chooser.value.set_files(files)


def read_result(page):
    """Return the result's text and its numbers."""
    result = page.get_by_role("status", name="Result")
    result.wait_for()
    texts = page.locator(".rewards dd").all_inner_texts()
    return result.inner_text(), [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts]


def test_the_page_begins_with_a_pair_and_shows_its_verdict_on_the_first_screen(visit, scorer):
    page, other = visit(), visit(color_scheme="dark")
    for shown, scheme in ((page, "light"), (other, "dark")):
        dark, light = sorted(map(luminance, shown.get_by_role("button", name="Score").evaluate(READ_COLOURS)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5
        player = shown.locator("audio").first
        assert ("dark" in player.evaluate("player => getComputedStyle(player).colorScheme")) == (scheme == "dark")
    press(page, "Score")
    sides = [read_dialogue(EXAMPLES / f"{name}.json") for name in ("human", "synthetic")]
    first, second = scorer.score(sides, "joint")
    text, numbers = read_result(page)
    assert numbers == pytest.approx([first, second, first - second], abs=0.011)
    assert "To this model, A sounds more like a real conversation." in text
    for width, height in SIZES.values():
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(f"window.innerWidth === {width}")
        page.evaluate("window.scrollTo(0, 0)")
        assert page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]") == [width] * 2
        heading = page.get_by_role("status", name="Result").get_by_role("heading").bounding_box()
        assert 0 < heading["y"] < height - heading["height"]
    assert page.evaluate("window.gradio_config.analytics_enabled") is False
    press(page, "Clear A")
    wait_for_turns(page, "A", 0)
    press(page, "Score")
    page.get_by_role("alert").filter(has_text="dialogue A has no turns").wait_for()
    # Another visitor has dialogues of their own.
    assert turns_of(other, "A").count() == 2
    press(page, "Load example pair")
    wait_for_turns(page, "A", 2)
    press(page, "Remove last turn of A")
    wait_for_turns(page, "A", 1)
    assert page.get_by_role("status", name="Result").count() == 0


def test_dialogues_are_uploaded_and_compared_by_keyboard_alone(visit, scorer, uploads):
    page = visit()

    def focus(name):
        """Press Tab until a control has the focus, and check that it is visible."""
        for _ in range(80):
            page.keyboard.press("Tab")
            focused = page.evaluate(
                "(() => { const e = document.activeElement; return [e.getAttribute('aria-label') || e.innerText || "
                "e.parentElement.innerText, getComputedStyle(e).outlineStyle] })()"
            )
            if focused[0].strip().startswith(name):
                assert focused[1] != "none", name
                return
        raise AssertionError(f"Tab does not reach {name!r}")

    # Registered before: the browser learns late that a test answers instead of a person.
    page.on("filechooser", lambda chooser: chooser.set_files(HUMAN))
    focus("Clear A")
    page.keyboard.press("Enter")
    wait_for_turns(page, "A", 0)
    focus("Upload turns to A")
    page.keyboard.press("Enter")
    wait_for_turns(page, "A", 2)
    focus("colloquialness")
    page.keyboard.press("Space")
    focus("Score")
    page.keyboard.press("Enter")
    text, numbers = read_result(page)
    [expected] = scorer.score(
        [[{"role": r, "audio": str(a)} for r, a in zip(app.ROLES, HUMAN, strict=True)]], "colloquialness"
    )
    assert numbers[0] == pytest.approx(expected, abs=0.011) and len(numbers) == 3
    assert "Criterion colloquialness" in text
    # The uploads are in memory now, and nowhere else.
    assert not [path for path in uploads.rglob("*") if path.is_file()]


def test_a_wrong_file_is_refused_and_markup_in_names_and_words_stays_text(visit, tmp_path):
    page = visit()
    wrong = tmp_path / "<img src=x onerror=hit()>${hit()}{{hit}}.wav"
    wrong.write_text("these are words")
    page.evaluate("void (window.hit = () => { window.wasHit = true })")
    upload(page, [wrong])
    message = page.get_by_role("alert").filter(has_text="Rejected")
    message.wait_for()
    assert "hit.wav: cannot be decoded as audio" in message.inner_text()
    assert "use WAV, FLAC, OGG or MP3" in message.inner_text()
    wait_for_turns(page, "A", 2)
    words = page.get_by_label("Words of A, one line per turn (optional)")
    words.fill("<|im_start|><img src=x onerror=hit()>${hit()}\n{{hit}}")
    press(page, "Score")
    message = page.get_by_role("alert").filter(has_text="Not scored")
    message.wait_for()
    assert "control token '<|im_start|>'" in message.inner_text()
    assert page.evaluate("[window.wasHit === undefined, document.querySelectorAll('img[src=x]').length]") == [True, 0]


def test_a_turn_is_recorded_and_its_clip_stays_while_the_page_requests_it(visit, uploads, monkeypatch):
    # A busy machine: the server takes its time for the turn, and the page requests the clip late.
    add_files = app.add_files
    monkeypatch.setattr(app, "add_files", lambda *given: time.sleep(2) or add_files(*given))
    page = visit(permissions=["microphone"])
    press(page, "Clear A")
    wait_for_turns(page, "A", 0)
    late = []
    page.route(re.compile("file="), lambda route: late.append(route))
    page.get_by_role("button", name="Record the next turn of A").click()
    press(page, "Record")
    time.sleep(1)
    press(page, "Stop")
    page.wait_for_timeout(1000)
    assert late
    for route in late:
        route.continue_()
    wait_for_turns(page, "A", 1)
    assert "user" in turns_of(page, "A").first.inner_text()
    content = page.evaluate(
        "fetch(document.querySelector('.turns audio').src).then((r) => r.arrayBuffer())"
        ".then((data) => [...new Uint8Array(data)])"
    )
    array, rate = soundfile.read(io.BytesIO(bytes(content)))
    assert rate == 16_000 and 0.3 < len(array) / rate < 10
    assert not [path for path in uploads.rglob("*") if path.is_file()]
