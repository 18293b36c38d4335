"""Fetching through yt-dlp without the web: `file://` addresses, and a server of this test that the kill interrupts."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import forked
from support.paths import ROOT

from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import Recording
from sdiareward.dataset_builder.sources import fetching, locate, read_source
from sdiareward.dataset_builder.sources.fetching import Channel, FetchSettings, fetch


SAMPLE = ROOT / "sample" / "asterisk"
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
    for name, path in zip(("one", "two", "three"), sorted(SAMPLE.glob("*.ogg")), strict=False):
        shutil.copy(path, root / f"{name}.ogg")
    return root


@pytest.fixture
def settings(tmp_path, media):
    """Return a function that makes settings for the recordings, without any pause."""

    def make(**fields):
        videos = {"videos": tuple(path.as_uri() for path in sorted(media.glob("*.ogg")))}
        common = {"output_dir": str(tmp_path / "fetched"), "sleep_s": 0, "retries": 0, "allow_file_urls": True}
        return FetchSettings(**{**common, **({} if "channels" in fields else videos), **fields})

    return make


class Server(ThreadingHTTPServer):
    """Serves a folder with byte ranges, as slowly as `pause_s` a block says, and remembers what it was asked for."""

    def __init__(self, root):
        self.root, self.pause_s, self.requests, self.headers = root, 0.0, [], []
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Say nothing of clients that were killed."""


class Handler(BaseHTTPRequestHandler):
    def answer(self):
        wanted = self.headers.get("Range", "")
        self.server.requests.append((self.path, wanted))
        self.server.headers.append(self.headers)
        path = self.server.root / self.path[1:]
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Type", "audio/ogg" if path.suffix == ".ogg" else "application/rss+xml")
        self.send_header("Content-Length", str(len(data) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        for offset in range(start, len(data) if self.command == "GET" else 0, 1024):
            self.wfile.write(data[offset : offset + 1024])
            time.sleep(self.server.pause_s)

    do_GET = do_HEAD = answer  # noqa: N815

    def log_message(self, *args):
        """Stay quiet."""


@pytest.fixture
def server(media):
    server = Server(media)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_fetched_recordings_are_the_originals_and_come_out_of_the_source(settings, media, tmp_path):
    report = fetch(settings(language="de"))
    assert sorted(report.fetched) == ["one.ogg", "three.ogg", "two.ogg"]
    assert report.skipped == []
    recordings = list(read_source("youtube", tmp_path / "fetched"))
    assert [(r.recording_id, r.ref, r.language) for r in recordings] == [
        (name, f"youtube:{name}", "de") for name in ("one", "three", "two")
    ]
    for recording in recordings:
        assert Path(recording.path).read_bytes() == (media / Path(recording.path).name).read_bytes()
    assert {(r.source, r.subset, r.license) for r in recordings} == {("youtube", "wild", "LicenseRef-YouTube")}


@pytest.mark.slow
def test_a_second_fetch_downloads_nothing(server, settings):
    chosen = settings(videos=(f"{server.url}/one.ogg", f"{server.url}/two.ogg"))
    assert len(fetch(chosen).fetched) == 2
    manifest = Path(chosen.output_dir, "manifest.jsonl").read_bytes()
    files = {path.name: path.stat().st_mtime_ns for path in Path(chosen.output_dir).iterdir()}
    report = fetch(chosen)
    assert (report.fetched, report.num_present, report.skipped) == ([], 2, [])
    assert {path.name: path.stat().st_mtime_ns for path in Path(chosen.output_dir).iterdir()} == files
    assert Path(chosen.output_dir, "manifest.jsonl").read_bytes() == manifest


def test_a_failure_is_recorded_and_does_not_stop_the_others(settings, media):
    gone = (media / "gone.ogg").as_uri()
    report = fetch(settings(videos=(gone, (media / "one.ogg").as_uri())))
    assert report.fetched == ["one.ogg"]
    assert [(skip.item, skip.kind) for skip in report.skipped] == [(f"youtube {gone}", "fetch_failed")]
    assert "No such file" in report.skipped[0].reason
    # File addresses are refused unless they are allowed.
    report = fetch(settings(allow_file_urls=False))
    assert (report.fetched, {skip.kind for skip in report.skipped}) == ([], {"fetch_failed"})


def test_two_files_of_one_name_are_not_taken_for_the_same(settings, media):
    (media / "other").mkdir()
    shutil.copy(media / "two.ogg", media / "other/one.ogg")
    addresses = tuple((media / name).as_uri() for name in ("one.ogg", "other/one.ogg"))
    for expected in (["one.ogg"], []):
        report = fetch(settings(videos=addresses))
        assert report.fetched == expected
        assert [(skip.item, skip.kind) for skip in report.skipped] == [(f"youtube {addresses[1]}", "duplicate")]


def test_a_channel_gives_the_recordings_with_a_keyword_in_the_title_and_no_names(server, settings, media):
    (media / "feed.xml").write_text(FEED.format(root=server.url))
    chosen = settings(channels=[{"url": f"{server.url}/feed.xml"}])
    report = fetch(chosen)
    assert report.fetched == ["first.ogg"]
    assert report.num_other_titles == 1
    assert [(skip.item, skip.kind) for skip in report.skipped] == [
        (f"youtube {server.url}/feed.xml, {server.url}/gone.ogg", "fetch_failed")
    ]
    folder = Path(chosen.output_dir)
    assert (folder / "first.ogg").read_bytes() == (media / "one.ogg").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["first.ogg", "manifest.jsonl"]
    assert not any(name in (folder / "manifest.jsonl").read_text() for name in ("Ann", "Nobody", "Podcast"))
    channel = Channel(f"{server.url}/feed.xml", title_keywords=(), limit=2)
    report = fetch(settings(channels=[channel], output_dir=str(folder / "all")))
    assert (report.fetched, report.num_other_titles) == (["first.ogg", "second.ogg"], 0)
    # A list among the videos is not fetched whole.
    report = fetch(settings(videos=(f"{server.url}/feed.xml",)))
    assert (report.fetched, [skip.kind for skip in report.skipped]) == ([], ["not_a_recording"])


def test_a_channel_that_cannot_be_listed_is_recorded(server, settings):
    report = fetch(settings(channels=[Channel(f"{server.url}/nowhere.xml"), Channel(f"{server.url}/one.ogg")]))
    assert [(skip.item, skip.kind) for skip in report.skipped] == [
        (f"youtube {server.url}/nowhere.xml", "listing_failed"),
        (f"youtube {server.url}/one.ogg", "empty_listing"),
    ]


@pytest.mark.slow
def test_a_fetch_that_was_killed_continues_its_file_where_it_stopped(server, settings, media):
    chosen = settings(videos=(f"{server.url}/one.ogg",))
    server.pause_s = 0.05
    code = (
        "from sdiareward.dataset_builder.sources.fetching import FetchSettings, fetch\n"
        f"fetch(FetchSettings(output_dir={chosen.output_dir!r}, videos={chosen.videos!r}, sleep_s=0))"
    )
    process = forked.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    part = Path(chosen.output_dir, "one.ogg.part")
    deadline = time.monotonic() + 30
    while not (part.is_file() and part.stat().st_size) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    size = part.stat().st_size
    assert 0 < size < (media / "one.ogg").stat().st_size
    assert not Path(chosen.output_dir, "manifest.jsonl").exists()

    server.pause_s, server.requests = 0.0, []
    assert fetch(chosen).fetched == ["one.ogg"]
    assert ("/one.ogg", f"bytes={size}-") in server.requests
    assert Path(chosen.output_dir, "one.ogg").read_bytes() == (media / "one.ogg").read_bytes()


def test_options_of_yt_dlp_reach_it_and_those_that_are_set_here_are_its_own(server, settings, tmp_path, monkeypatch):
    from yt_dlp import YoutubeDL, parse_options
    from yt_dlp.downloader import common

    known = {*parse_options([]).ydl_opts, *re.findall(r"^    (\w+):", YoutubeDL.__doc__, re.MULTILINE)}
    plain = fetching._make_options(FetchSettings("x", videos=("dQw4w9WgXcQ",)))
    assert set(plain) <= set(fetching._SET_HERE) <= known
    given = {"impersonate": "chrome-110:windows", "cookiesfrombrowser": "firefox"}
    found = fetching._make_options(settings(yt_dlp=given, rate_limit_bytes_per_s=7))
    assert (found["impersonate"].client, found["cookiesfrombrowser"]) == ("chrome", ("firefox",))
    assert found["ratelimit"] == 7
    cookies = tmp_path / "cookies.txt"
    cookies.write_text("# Netscape HTTP Cookie File\n127.0.0.1\tFALSE\t/\tFALSE\t4102444800\tsession\tours\n")
    pauses = []
    monkeypatch.setattr(common.time, "sleep", pauses.append)
    options = {"cookiefile": str(cookies), "http_headers": {"X-Lab": "speech"}, "max_sleep_interval": 3.0}
    videos = tuple(f"{server.url}/{name}.ogg" for name in ("one", "two", "three"))
    assert len(fetch(settings(videos=videos, sleep_s=2.0, yt_dlp=options)).fetched) == 3
    assert {(headers["Cookie"], headers["X-Lab"]) for headers in server.headers} == {("session=ours", "speech")}
    assert len({pause for pause in pauses if 2.0 <= pause <= 3.0}) == 3


def test_bad_lines_of_a_manifest_are_skipped_and_a_deleted_file_is_fetched_again(settings, tmp_path):
    with pytest.raises(FileNotFoundError, match="fetch recordings first"):
        list(read_source("youtube", tmp_path))
    fetch(settings())
    (tmp_path / "fetched/two.ogg").unlink()
    report = fetch(settings())
    assert (report.fetched, report.num_present) == (["two.ogg"], 2)
    path = tmp_path / "fetched/manifest.jsonl"
    good = path.read_text()
    row = json.loads(good.splitlines()[0])
    bad = [{**row, "file": "../media/one.ogg"}, {**row, "file": "gone.ogg"}, {**row, "license": None}]
    path.write_text(good + "".join(json.dumps(line) + "\n" for line in bad) + good.splitlines()[0] + "\nnot JSON\n")
    items = list(read_source("youtube", tmp_path / "fetched"))
    assert len([item for item in items if isinstance(item, Recording)]) == 3
    kinds = ["outside_root", "missing_audio", "missing_field", "duplicate", "not_json"]
    found = [(item.item, item.kind) for item in items if isinstance(item, Skipped)]
    assert found == [(f"youtube manifest.jsonl line {line}", kind) for line, kind in enumerate(kinds, start=4)]
    (first, *_) = read_source("youtube", tmp_path / "fetched", {"language": "cs", "license": "CC-BY-4.0"})
    assert (first.language, first.license) == ("cs", "CC-BY-4.0")


def test_a_video_is_located_in_whatever_format_it_lies(tmp_path):
    for name in ("abc.webm.part", "abc.info.json", "abc.m4a", "abc.d.webm", "x[1].ogg"):
        (tmp_path / name).write_bytes(b"x")
    assert locate("youtube", tmp_path, "abc") == tmp_path / "abc.m4a"
    assert locate("youtube", tmp_path, "abc.d") == tmp_path / "abc.d.webm"
    assert locate("youtube", tmp_path, "x[1]") == tmp_path / "x[1].ogg"
    with pytest.raises(FileNotFoundError, match="fetch video ab again"):
        locate("youtube", tmp_path, "ab")
    for path in ("../abc", "a/abc"):
        with pytest.raises(ValueError, match="lies outside|must read"):
            locate("youtube", tmp_path, path)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"videos": ()}, "all empty"),
        ({"videos": ("short",)}, "short"),
        ({"channels": ["https://x.org"]}, "channels"),
        ({"channels": [{"url": "https://x.org", "keywords": []}]}, "keywords"),
        ({"channels": [{"url": "@name"}]}, "@name"),
        ({"channels": [{"url": "https://x.org", "title_keywords": "podcast"}]}, "title_keywords"),
        ({"channels": [{"url": "https://x.org", "limit": 0}]}, "limit"),
        ({"sleep_s": -1}, "sleep_s"),
        ({"yt_dlp": {"cookies": "c.txt"}}, "'cookies'.*'cookiefile'"),
        ({"yt_dlp": {"_warnings": []}}, "_warnings"),
        ({"yt_dlp": {"sleep_interval": 1, "outtmpl": "x"}}, r"'outtmpl', 'sleep_interval'"),
        ({"yt_dlp": ["proxy"]}, "yt_dlp"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(fields, place):
    with pytest.raises(ValueError, match=place):
        FetchSettings(**{"output_dir": "x", "videos": ("dQw4w9WgXcQ",), **fields})
