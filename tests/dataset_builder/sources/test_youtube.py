"""Fetching through yt-dlp without the web: a server of this test, and `file://` addresses."""

import json
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.paths import ROOT

from sdiareward.common.errors import Skipped
from sdiareward.common.settings import make_settings
from sdiareward.dataset_builder.episodes import Recording
from sdiareward.dataset_builder.sources import fetching, locate, read_source
from sdiareward.dataset_builder.sources.fetching import Channel, FetchSettings, fetch


FEED = """<?xml version="1.0"?><rss version="2.0"><channel><title>Ann Example speaks</title>
<item><title>Podcast with Jo Nobody</title><guid>first</guid><enclosure url="{root}/one.ogg" type="audio/ogg"/></item>
<item><title>Trailer</title><guid>second</guid><enclosure url="{root}/two.ogg" type="audio/ogg"/></item>
<item><title>An INTERVIEW</title><guid>third</guid><enclosure url="{root}/gone.ogg" type="audio/ogg"/></item>
</channel></rss>"""


@pytest.fixture
def media(tmp_path):
    """Three real recordings in a folder of their own."""
    root = tmp_path / "media"
    root.mkdir()
    for name, path in zip(("one", "two", "three"), sorted((ROOT / "sample/asterisk").glob("*.ogg")), strict=False):
        shutil.copy(path, root / f"{name}.ogg")
    return root


@pytest.fixture
def server(media):
    """Serve the recordings; `requests` are the headers of each."""

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {".ogg": "audio/ogg", ".xml": "application/rss+xml"}

        def log_message(self, *args):
            self.server.requests.append(self.headers)

    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: Handler(*args, directory=str(media)))
    server.requests, server.url = [], f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def make(tmp_path, server):
    """Return a function that makes settings for the recordings of those names, without any pause."""

    def make(*names, **fields):
        videos = tuple(f"{server.url}/{name}" for name in names)
        common = {"output_dir": str(tmp_path / "fetched"), "sleep_s": 0, "retries": 0, "videos": videos}
        return FetchSettings(**{**common, **fields})

    return make


NAMES = ("one.ogg", "three.ogg", "two.ogg")


def list_skipped(found):
    return [(skip.item, skip.kind) for skip in found]


def test_recordings_are_the_originals_and_are_fetched_once(make, media, tmp_path):
    report = fetch(make(*NAMES, language="de"))
    assert (report.fetched, report.skipped) == ([*NAMES], [])
    recordings = list(read_source("youtube", tmp_path / "fetched"))
    for recording, name in zip(recordings, NAMES, strict=True):
        assert (recording.ref, recording.language) == (f"youtube:{name[:-4]}", "de")
        assert (recording.subset, recording.license) == ("wild", "LicenseRef-YouTube")
        assert Path(recording.path).read_bytes() == (media / name).read_bytes()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "fetched").iterdir()}
    report = fetch(make(*NAMES))
    assert (report.fetched, report.num_present, report.skipped) == ([], 3, [])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "fetched").iterdir()} == files


def test_a_failure_is_recorded_and_does_not_stop_the_others(make, server, media):
    (media / "other").mkdir()
    shutil.copy(media / "two.ogg", media / "other/one.ogg")
    for fetched in (["one.ogg"], []):
        report = fetch(make("gone.ogg", "one.ogg", "other/one.ogg"))
        assert report.fetched == fetched
        # Two files of one name are not taken for the same.
        problems = {"gone.ogg": "fetch_failed", "other/one.ogg": "duplicate"}
        assert list_skipped(report.skipped) == [
            (f"youtube {server.url}/{name}", kind) for name, kind in problems.items()
        ]
    # File addresses are refused unless they are allowed.
    videos = ((media / "two.ogg").as_uri(),)
    with pytest.raises(ValueError, match=r"two\.ogg"):
        make(videos=videos)
    assert fetch(make(videos=videos, allow_file_urls=True)).fetched == ["two.ogg"]


def test_a_channel_gives_the_recordings_with_a_keyword_in_the_title_and_no_names(make, server, media, tmp_path):
    (media / "feed.xml").write_text(FEED.format(root=server.url))
    feed = f"{server.url}/feed.xml"
    report = fetch(
        make(channels=(Channel(feed), Channel(f"{server.url}/nowhere.xml"), Channel(f"{server.url}/one.ogg")))
    )
    assert (report.fetched, report.num_other_titles) == (["first.ogg"], 1)
    assert list_skipped(report.skipped) == [
        (f"youtube {server.url}/nowhere.xml", "listing_failed"),
        (f"youtube {server.url}/one.ogg", "empty_listing"),
        (f"youtube {feed}, {server.url}/gone.ogg", "fetch_failed"),
    ]
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == ["first.ogg", "manifest.jsonl"]
    manifest = (tmp_path / "fetched/manifest.jsonl").read_text()
    assert not any(name in manifest for name in ("Ann", "Nobody", "Podcast"))
    channel = Channel(feed, title_keywords=(), limit=2)
    report = fetch(make(channels=(channel,), output_dir=str(tmp_path / "all")))
    assert (report.fetched, report.num_other_titles) == (["first.ogg", "second.ogg"], 0)
    # A list among the videos is not fetched whole.
    assert [skip.kind for skip in fetch(make("feed.xml")).skipped] == ["not_a_recording"]


def test_options_of_yt_dlp_reach_it_and_those_that_are_set_here_are_its_own(server, make, monkeypatch):
    from yt_dlp.downloader import common

    given = {"impersonate": "chrome-110:windows", "cookiesfrombrowser": "firefox"}
    found = fetching._make_options(make("one.ogg", yt_dlp=given, rate_limit_bytes_per_s=7))
    assert (found["impersonate"].client, found["cookiesfrombrowser"]) == ("chrome", ("firefox",))
    pauses = []
    monkeypatch.setattr(common.time, "sleep", pauses.append)
    options = {"http_headers": {"X-Lab": "speech"}, "max_sleep_interval": 3.0}
    assert len(fetch(make(*NAMES, sleep_s=2.0, yt_dlp=options)).fetched) == 3
    assert {headers["X-Lab"] for headers in server.requests} == {"speech"}
    assert len({pause for pause in pauses if 2.0 <= pause <= 3.0}) == 3


def test_bad_lines_of_a_manifest_are_skipped_and_a_deleted_file_is_fetched_again(make, tmp_path):
    with pytest.raises(FileNotFoundError, match="fetch recordings first"):
        list(read_source("youtube", tmp_path))
    fetch(make(*NAMES))
    (tmp_path / "fetched/two.ogg").unlink()
    report = fetch(make(*NAMES))
    assert (report.fetched, report.num_present) == (["two.ogg"], 2)
    path = tmp_path / "fetched/manifest.jsonl"
    good = path.read_text()
    row = json.loads(good.splitlines()[0])
    bad = [{**row, "file": "../media/one.ogg"}, {**row, "file": "gone.ogg"}, {**row, "license": None}]
    path.write_text(good + "".join(json.dumps(line) + "\n" for line in bad) + "not JSON\n")
    items = list(read_source("youtube", tmp_path / "fetched"))
    assert len([item for item in items if isinstance(item, Recording)]) == 3
    kinds = ["outside_root", "missing_audio", "missing_field", "not_json"]
    skipped = list_skipped(item for item in items if isinstance(item, Skipped))
    assert skipped == [(f"youtube manifest.jsonl line {line}", kind) for line, kind in enumerate(kinds, start=4)]
    (first, *_) = read_source("youtube", tmp_path / "fetched", {"language": "cs", "license": "CC-BY-4.0"})
    assert (first.language, first.license) == ("cs", "CC-BY-4.0")


def test_a_video_is_located_in_whatever_format_it_lies(tmp_path):
    for name in ("abc.webm.part", "abc.info.json", "abc.m4a", "abc.d.webm", "x[1].ogg"):
        (tmp_path / name).write_bytes(b"x")
    for name, file in (("abc", "abc.m4a"), ("abc.d", "abc.d.webm"), ("x[1]", "x[1].ogg")):
        assert locate("youtube", tmp_path, name) == tmp_path / file
    with pytest.raises(FileNotFoundError, match="fetch video ab again"):
        locate("youtube", tmp_path, "ab")
    with pytest.raises(ValueError, match="must have the form"):
        locate("youtube", tmp_path, "../abc")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"videos": []}, "all empty"),
        ({"videos": ["ftp://x.org/a"]}, "ftp"),
        ({"channels": [{"url": "https://x.org", "keywords": []}]}, "keywords"),
        ({"channels": [{"url": "@name"}]}, "@name"),
        ({"yt_dlp": {"cookies": "c.txt"}}, "'cookies'.*'cookiefile'"),
        ({"yt_dlp": {"_warnings": [], "outtmpl": "x"}}, "'_warnings', 'outtmpl'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(fields, place):
    with pytest.raises(ValueError, match=place):
        make_settings(FetchSettings, {"output_dir": "x", "videos": ["dQw4w9WgXcQ"], **fields}, "youtube")
