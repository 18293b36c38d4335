"""The page of an audit: as text, and in Debian's Chromium at the width of a phone and of a desk."""

import json
import re

import datasets
import pytest
from support.audit_world import make_dataset
from support.chromium import (
    SIZES,
    measure_contrasts,
    measure_widths,
    needs_chromium,
    open_page,
    requested,
    started,
    take_screenshot,
)

from sdiareward.audit.checks import describe_worst
from sdiareward.audit.page import GROUPS, MARKS, SECTIONS, group_verdicts, render_page, write_page
from sdiareward.audit.run import AuditJob, Auditor
from sdiareward.scoring.model_spec import ModelSpec


pytestmark = pytest.mark.slow


SCRIPT = "<script>document.title = 'hit'</script><img src=x onerror=\"document.title='hit'\">"


@pytest.fixture(scope="module")
def auditor(tiny_checkpoint, make_tone, tmp_path_factory):
    """Return an auditor of pairs whose names want to run in a browser, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = make_dataset(make_tone, 4).to_list()
    for row in rows:
        row["pair_id"] = f"{row['pair_id']}{SCRIPT}"
    rows[3]["chosen"][0]["audio"]["bytes"] = b"no sound"
    datasets.Dataset.from_list(rows).to_parquet(folder / "pairs.parquet")
    job = AuditJob(
        ModelSpec(str(tiny_checkpoint)),
        str(folder / "pairs.parquet"),
        folder / "audit",
        nuisances=("gain", "polarity"),
        attacks=("shuffled", "written_demand", "fillers"),
        parts=("nuisances", "attacks", "hearing"),
        num_bootstrap=50,
    )
    return Auditor(job)


@pytest.fixture(scope="module")
def audit(auditor):
    return auditor.audit()


@pytest.fixture(scope="module")
def page(auditor, audit):
    earlier = [{**audit["verdicts"][0], "value": 0.5, "status": "fail"}]
    return write_page(auditor.folder, audit, earlier)


@pytest.fixture(scope="module")
def text(page):
    return page.read_text(encoding="utf-8")


def test_names_from_the_data_are_escaped_wherever_they_stand(text):
    assert SCRIPT not in text
    assert "&lt;script&gt;document.title" in text
    assert re.search(r"<li>.*p3&lt;script&gt;.*chosen turn 0.*</li>", text)


def test_nothing_is_requested_and_nothing_may_run(text):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "script-src" not in policy
    assert set(re.findall(r'(?:src|href)="([^"#][^:"]*:)', text)) == {"data:"}
    assert "<script" not in text


def test_every_verdict_is_a_word_and_a_sign_with_its_value_and_its_limit(text, audit):
    for verdict in audit["verdicts"]:
        name = verdict["name"].replace("_", "_<wbr>")
        (row,) = (line for line in text.splitlines() if f">{name}</span>" in line)
        assert MARKS[verdict["status"]] in row
    (first,) = (line for line in text.splitlines() if ">nuisances.accuracy_<wbr>change</span>" in line)
    assert re.search(r'data-label="before">50\.0 points(, failed)?</td>', first)
    assert "at most 2.0 points" in first


def test_failures_come_first_by_kind_and_the_others_are_folded(text, audit):
    verdicts = text[text.index('<h2 id="verdicts">') : text.index("</section>", text.index('<h2 id="verdicts">'))]
    first, *folded = verdicts.split("<details>")
    assert re.findall(r"</th>.*?<td class=\"(pass|fail|none)\">", first) == ["fail"] * first.count("✗ failed</td>")
    failed = [verdict["name"] for verdict in audit["verdicts"] if verdict["status"] == "fail"]
    shown = [name.replace("<wbr>", "") for name in re.findall(r'<span class="key-name">([^ ]*)</span>', first)]
    assert sorted(shown) == sorted(failed)
    assert [part.count("</td></tr>") for part in folded] == [
        sum(verdict["status"] == status for verdict in audit["verdicts"]) for status in ("pass", "not measured")
    ]
    headings = re.findall(r'colspan="6"><span>([^<]*)</span>', first)
    assert headings == [title for title, _ in GROUPS.values() if title in headings]
    assert not any("<details open" in part for part in (first, *folded))
    count = len(failed), sum(verdict["value"] is not None for verdict in audit["verdicts"])
    assert f"fails {count[0]} of {count[1]} measured checks" in re.sub(r"<[^>]+>", "", text)


def test_names_of_checks_are_short_and_no_title_is_a_template(text, audit):
    names = [
        row["short"]
        for status in MARKS
        for group in group_verdicts(audit["verdicts"], status)
        for row in group["rows"]
    ]
    assert len(names) == len(audit["verdicts"])
    assert max(map(len, names)) <= 40
    assert "…" not in text and "{}" not in text
    assert "N s of silence before each turn" in text


def test_where_nothing_flips_no_worst_change_is_named(text, audit):
    (polarity,) = (row for row in audit["nuisances"]["by_nuisance"] if row["nuisance"] == "polarity")
    still = {**polarity, "worst": {**polarity["worst"], "flip_rate": 0.0}}
    page = render_page({**audit, "nuisances": {**audit["nuisances"], "by_nuisance": [still]}})
    page = page[page.index('<h2 id="nuisances">') :]
    (row,) = (line for line in page.splitlines() if '<th scope="row">polarity <span' in line)
    assert row.endswith('<td class="note"></td>')
    assert describe_worst({**polarity["worst"], "flip_rate": 0.1}).startswith("polarity inverted, on ")


def test_every_section_that_has_something_is_in_the_contents_and_no_other(text, audit):
    linked = re.findall(r'<li><a href="#(\w+)">', text)
    assert linked == list(SECTIONS)
    assert all(f'<h2 id="{key}">' in text for key in linked)
    bare = render_page({**audit, "hearing": None, "attacks": None, "nuisances": None})
    assert re.findall(r'<li><a href="#(\w+)">', bare) == ["verdicts", "excluded", "provenance"]


def test_the_same_audit_gives_the_same_bytes(audit, tmp_path):
    assert write_page(tmp_path, json.loads(json.dumps(audit))).read_text() == render_page(audit)


@pytest.fixture(scope="module")
def browser():
    with started("--mute-audio") as driver:
        yield driver


@pytest.fixture(params=SIZES)
def opened(request, browser, page):
    return browser, open_page(browser, page, request.param)


@needs_chromium
def test_the_page_fits_requests_nothing_and_runs_no_name(opened):
    browser, width = opened
    window, page = measure_widths(browser)
    assert window == width
    assert page <= width
    assert requested(browser) == []
    assert browser.get_log("browser") == []
    assert "hit" not in browser.title
    assert browser.execute_script("return document.querySelectorAll('script, [onerror]').length") == 0
    assert min(measure_contrasts(take_screenshot(browser, width))) > 10


@needs_chromium
def test_the_keyboard_reaches_the_skip_link_the_contents_and_the_tables(opened):
    from selenium.webdriver.common.keys import Keys

    browser, _ = opened
    reached = []
    for _ in range(len(SECTIONS) + 4):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        reached.append((focused.tag_name, focused.get_attribute("class") or focused.get_attribute("href")))
    assert reached[0] == ("a", "skip")
    assert reached[1][1].endswith("#verdicts")
    assert ("div", "scroll") in reached
