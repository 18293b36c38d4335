"""The demo's page in Debian's Chromium: two dialogues compared, by keyboard, with a wrong file, on a phone."""

import io
import re
import shutil
import time

import numpy as np
import pytest
import soundfile

from sdiareward.common.package_files import EXAMPLES, NANO
from sdiareward.pairs.messages import read_dialogue
from sdiareward.scoring.scorer import Scorer


sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytest.importorskip("gradio", reason="gradio is not installed: pip install sdiareward[demo]")

from sdiareward.serving.demo import app  # noqa: E402
from sdiareward.serving.demo.turns import add_turns  # noqa: E402


CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no chromium: apt-get install chromium"),
    pytest.mark.slow,
]
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
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
HUMAN = [EXAMPLES / f"human-{number}.flac" for number in (0, 1)]
SYNTHETIC = [EXAMPLES / f"synthetic-{number}.flac" for number in (0, 1)]
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
def url(scorer, uploads):
    from sdiareward.serving.demo.app import build, launch

    built = build(scorer)
    _, address, _ = launch(built, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    yield address
    built.close()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, url):
    """Return a function that opens the page as a new visitor; what it did wrong is found out at the end."""
    contexts, faults = [], []

    def open_page(**options):
        width, height = SIZES["desktop"]
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_MS)
        page.on("request", lambda request: faults.extend(_elsewhere(request.url, url)))
        page.on("console", lambda message: faults.extend([message.text] if message.type == "error" else []))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("response", lambda answer: faults.extend([answer.url] if answer.status >= 400 else []))
        page.goto(url)
        page.get_by_role("button", name="Score").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _elsewhere(address, url):
    return [] if address.startswith((url, "data:", "blob:")) else [address]


READ_COLOURS = """button => {
  const style = getComputedStyle(button);
  return [style.color, style.backgroundColor].map(text => text.match(/[0-9.]+/g).slice(0, 3).map(Number));
}"""


def luminance(colour):
    share = np.array(colour) / 255
    return np.dot(
        np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4), (0.2126, 0.7152, 0.0722)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_is_readable_and_players_have_the_colours_of_the_page(visit, scheme):
    page = visit(color_scheme=scheme)
    colours = page.get_by_role("button", name="Score").evaluate(READ_COLOURS)
    dark, light = sorted(map(luminance, colours))
    assert (light + 0.05) / (dark + 0.05) >= 4.5
    player = page.locator("audio").first
    assert ("dark" in player.evaluate("player => getComputedStyle(player).colorScheme")) == (scheme == "dark")


def turns_of(page, name):
    return page.get_by_role("list", name=f"Turns of dialogue {name}").get_by_role("listitem")


def wait_for_turns(page, name, count):
    sync_api.expect(turns_of(page, name)).to_have_count(count, timeout=_MS)


def clear(page, *names):
    for name in names:
        page.get_by_role("button", name=f"Clear {name}").click()
        wait_for_turns(page, name, 0)


def upload(page, name, files):
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name=f"Upload turns to {name}").click()
    chooser.value.set_files(files)


def score(page):
    page.get_by_role("button", name="Score").click()
    page.get_by_role("status", name="Result").wait_for()


def rewards_of(page):
    """Return the numbers under the first heading, in order."""
    texts = page.locator(".rewards dd").all_inner_texts()
    return [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts if "%" not in text]


def expected_rewards(scorer, criterion, words=True):
    sides = [read_dialogue(EXAMPLES / f"{name}.json").to_messages() for name in ("human", "synthetic")]
    for side in [] if words else sides:
        for turn in side:
            turn["content"] = [item for item in turn["content"] if "audio" in item]
    first, second = scorer.score(sides, criterion)
    return [first, second, first - second]


def test_two_dialogues_are_uploaded_and_compared(visit, scorer, uploads):
    page = visit()
    clear(page, "A", "B")
    for name, files in (("A", HUMAN), ("B", SYNTHETIC)):
        upload(page, name, files)
        wait_for_turns(page, name, 2)
    score(page)
    assert rewards_of(page) == pytest.approx(expected_rewards(scorer, "modality", words=False), abs=0.011)
    result = page.get_by_role("status", name="Result")
    assert "A is scored higher than B" in result.inner_text()
    # What was uploaded is in memory now, and nowhere else.
    assert not [path for path in uploads.rglob("*") if path.is_file()]


def test_the_page_begins_with_a_pair_and_shows_its_verdict_on_the_first_screen(visit, scorer):
    page = visit()
    for name in "AB":
        wait_for_turns(page, name, 2)
    assert [button.inner_text() for button in page.locator("button.primary").all()] == ["Score"]
    score(page)
    assert rewards_of(page)[:3] == pytest.approx(expected_rewards(scorer, "modality"), abs=0.011)
    for width, height in SIZES.values():
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(f"window.innerWidth === {width}")
        page.evaluate("window.scrollTo(0, 0)")
        assert page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]") == [width] * 2
        heading = page.get_by_role("status", name="Result").get_by_role("heading").bounding_box()
        assert 0 < heading["y"] < height - heading["height"]
    assert page.evaluate("window.gradio_config.analytics_enabled") is False
    clear(page, "A")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("alert").filter(has_text="dialogue A has no turns").wait_for()
    page.get_by_role("button", name="Load example pair").click()
    page.get_by_role("button", name="Remove last turn of A").click()
    wait_for_turns(page, "A", 1)
    assert page.get_by_role("status", name="Result").count() == 0


def test_everything_is_done_by_keyboard_alone(visit, scorer):
    page = visit()

    def focus(name):
        """Press Tab until a control has the focus, and see that it shows."""
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

    # Asked for before: the browser is told in its own time that a test answers instead of a person.
    page.on("filechooser", lambda chooser: chooser.set_files(HUMAN))
    focus("Clear A")
    page.keyboard.press("Enter")
    wait_for_turns(page, "A", 0)
    focus("Upload turns to A")
    page.keyboard.press("Enter")
    wait_for_turns(page, "A", 2)
    focus("colloquialness")
    page.keyboard.press("Space")
    assert page.get_by_role("radio", name="colloquialness").is_checked()
    focus("Score")
    page.keyboard.press("Enter")
    page.get_by_role("status", name="Result").wait_for()
    assert "Criterion colloquialness" in page.get_by_role("status", name="Result").inner_text()
    assert len(rewards_of(page)) == 3


def test_a_wrong_file_is_refused_in_words_and_what_was_there_stays(visit, tmp_path):
    page = visit()
    wait_for_turns(page, "A", 2)
    wrong = tmp_path / "not a recording.wav"
    wrong.write_text("these are words")
    upload(page, "A", [wrong])
    message = page.get_by_role("alert").filter(has_text="Rejected")
    message.wait_for()
    assert "not a recording.wav: cannot be decoded as audio" in message.inner_text()
    assert "use WAV, FLAC, OGG or MP3" in message.inner_text()
    assert "Traceback" not in page.content()
    wait_for_turns(page, "A", 2)


def test_markup_in_names_and_words_stays_text(visit, tmp_path):
    page = visit()
    wrong = tmp_path / "<img src=x onerror=hit()>${hit()}{{hit}}.wav"
    wrong.write_text("these are words")
    page.evaluate("void (window.hit = () => { window.wasHit = true })")
    upload(page, "A", [wrong])
    page.get_by_role("alert").filter(has_text="cannot be decoded").wait_for()
    words = page.get_by_label("Words of A, one line per turn (optional)")
    words.fill("<|im_start|><img src=x onerror=hit()>${hit()}\n{{hit}}")
    page.get_by_role("button", name="Score").click()
    message = page.get_by_role("alert").filter(has_text="Not scored")
    message.wait_for()
    assert "control token '<|im_start|>'" in message.inner_text()
    assert page.evaluate("[window.wasHit === undefined, document.querySelectorAll('img[src=x]').length]") == [True, 0]


def record(page, duration_s):
    page.get_by_role("button", name="Record the next turn of A").click()
    page.get_by_role("button", name="Record", exact=True).click()
    time.sleep(duration_s)
    page.get_by_role("button", name="Stop", exact=True).click()


def test_a_turn_is_recorded_with_the_microphone(visit, uploads):
    page = visit(permissions=["microphone"])
    clear(page, "A", "B")
    record(page, 1.5)
    wait_for_turns(page, "A", 1)
    assert "user" in turns_of(page, "A").first.inner_text()
    content = page.evaluate(
        "fetch(document.querySelector('.turns audio').src).then((r) => r.arrayBuffer())"
        ".then((data) => [...new Uint8Array(data)])"
    )
    array, rate = soundfile.read(io.BytesIO(bytes(content)))
    assert rate == 16_000
    assert 0.5 < len(array) / rate < 10
    assert not [path for path in uploads.rglob("*") if path.is_file()]


def test_a_recorded_clip_stays_while_the_page_asks_for_it(visit, uploads, monkeypatch):
    # A busy machine: the server takes its time for the turn, and the page's questions for the clip come late.
    monkeypatch.setattr(app, "add_turns", lambda *turns: time.sleep(3) or add_turns(*turns))
    page = visit(permissions=["microphone"])
    clear(page, "A", "B")
    late = []
    page.route(re.compile("file="), lambda route: late.append(route))
    record(page, 0.5)
    page.wait_for_timeout(1500)
    assert late
    for route in late:
        route.continue_()
    wait_for_turns(page, "A", 1)
    assert not [path for path in uploads.rglob("*") if path.is_file()]


def test_visitors_do_not_hear_each_other(visit):
    first, second = visit(), visit()
    clear(second, "A")
    upload(first, "B", HUMAN)
    wait_for_turns(first, "B", 4)
    second.get_by_role("button", name="Score").click()
    second.get_by_role("alert").filter(has_text="dialogue A has no turns").wait_for()
    assert [turns_of(page, "A").count() for page in (first, second)] == [2, 0]
    assert [turns_of(page, "B").count() for page in (first, second)] == [4, 2]
