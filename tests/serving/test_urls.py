"""Which addresses a server fetches, and how much of what they give."""

import asyncio
import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


pytest.importorskip("aiohttp", reason="no serving: pip install 'sdiareward[serve]'")

from sdiareward.serving.urls import UrlError, UrlFetcher, parse_prefixes, require_public


PREFIX = "https://audio.example.org/open/"


def fetcher(*prefixes, max_bytes=1000, timeout_s=5.0, total_timeout_s=10.0):
    return UrlFetcher(prefixes, max_bytes=max_bytes, timeout_s=timeout_s, total_timeout_s=total_timeout_s)


def test_without_a_list_nothing_is_fetched():
    with pytest.raises(UrlError, match="^this server fetches no addresses"):
        fetcher().require_allowed(PREFIX)


@pytest.mark.parametrize("address", [f"{PREFIX}a.wav", f"{PREFIX}deep/a%20b.wav?x=1", PREFIX])
def test_addresses_below_a_prefix_are_allowed(address):
    assert str(fetcher(PREFIX).require_allowed(address)) == address


def test_the_port_of_the_scheme_may_be_written_out():
    address = "https://audio.example.org:443/open/a.wav"
    assert fetcher(PREFIX).require_allowed(address).path == "/open/a.wav"


@pytest.mark.parametrize(
    "address",
    [
        "http://audio.example.org/open/a.wav",
        "https://audio.example.org:8443/open/a.wav",
        "https://audio.example.org/opened/a.wav",
        "https://audio.example.org/open/../secret.wav",
        "https://audio.example.org/open/%2e%2e/secret.wav",
        "https://audio.example.org/open/%252e%252e/secret.wav",
        "https://audio.example.org/open/..\\secret.wav",
        "https://audio.example.org/open/..%5csecret.wav",
        "https://audio.example.org@evil.example/open/a.wav",
        "https://user@audio.example.org/open/a.wav",
        "https://audio.example.org.evil.example/open/a.wav",
        "https://evil.example/https://audio.example.org/open/a.wav",
        "https://audio.example.org/open/\na.wav",
        "//audio.example.org/open/a.wav",
        "file:///etc/passwd",
        "ftp://audio.example.org/open/a.wav",
        "https://[::1/open/",
        "",
    ],
)
def test_every_other_address_is_refused(address):
    with pytest.raises(UrlError, match="not among those"):
        fetcher(PREFIX).require_allowed(address)


@pytest.mark.parametrize("prefix", ["audio.example.org", "file:///etc", "https://u:p@x/", "https://x/?a=1", ""])
def test_a_prefix_that_is_no_address_is_refused(prefix):
    with pytest.raises(ValueError, match="is no prefix of addresses"):
        parse_prefixes([prefix])


PRIVATE = "127.0.0.1 10.1.2.3 192.168.0.1 169.254.169.254 0.0.0.0 ::1 fe80::1%eth0 ::ffff:10.0.0.1"


@pytest.mark.parametrize("host", PRIVATE.split())
def test_private_addresses_are_not_public(host):
    with pytest.raises(UrlError, match="private address"):
        require_public(["8.8.8.8", host])


def test_one_private_address_among_public_ones_is_refused():
    public = ["8.8.8.8", "2001:4860:4860::8888"]
    require_public(public)
    with pytest.raises(UrlError, match="private address"):
        require_public([*public, "10.1.2.3"])


@pytest.fixture(scope="module")
def files():
    """Return the address of a real server of files, redirects and silence."""
    finished = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            path = self.path.partition("?")[0]
            if path == "/open/slow":
                finished.wait(5)
            redirects = {
                "/open/in": "/open/a",
                "/open/out": "/secret",
                "/open/away": "http://127.0.0.2/open/a",
                "/open/loop": "/open/loop",
            }
            if self.path in redirects:
                self.send_response(302)
                self.send_header("Location", redirects[self.path])
                self.end_headers()
                return
            sizes = {"/open/a": 10, "/open/large": 1001, "/secret": 10}
            self.send_response(200 if path in sizes else 404)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(b"x" * sizes.get(path, 0))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    finished.set()
    server.shutdown()
    server.server_close()


def fetch(address, prefix, **options):
    return asyncio.run(fetcher(prefix, **options).fetch_all([address]))[address]


@pytest.mark.parametrize("name", ["a", "in"])
def test_a_recording_is_fetched_and_a_redirect_on_the_list_followed(files, name):
    assert fetch(f"http://{files}/open/{name}", f"http://{files}/open/") == b"x" * 10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("out", "its address is not among those"),
        ("away", "its address is not among those"),
        ("loop", "redirects more than 3 times"),
        ("large", "give more than 1000 bytes"),
        ("missing", "answered with status 404"),
    ],
)
def test_an_address_that_gives_nothing_good_says_why(files, name, reason):
    assert reason in fetch(f"http://{files}/open/{name}", f"http://{files}/open/")


def test_an_address_that_is_slow_is_given_up(files):
    reason = fetch(f"http://{files}/open/slow", f"http://{files}/open/", timeout_s=0.2)
    assert reason == "its address did not answer within 0.2 s."


def fetch_all(files, names, **options):
    address = f"http://{files}/open/"
    found = asyncio.run(fetcher(address, **options).fetch_all([address + name for name in names]))
    return list(found.values())


def test_the_time_of_an_address_begins_when_it_is_asked(files):
    # Eight at once for as long as they may take; those behind them are answered at once.
    found = fetch_all(files, [*(f"slow?{k}" for k in range(8)), "a", "in"], timeout_s=0.3, total_timeout_s=5.0)
    assert found[8:] == [b"x" * 10] * 2
    assert set(found[:8]) == {"its address did not answer within 0.3 s."}


def test_all_addresses_of_a_request_have_a_time_together(files):
    found = fetch_all(files, [f"slow?{k}" for k in range(9)], timeout_s=3.0, total_timeout_s=0.3)
    assert set(found) == {"the recordings of its request took longer than 0.3 s; send fewer at once."}


def test_all_addresses_of_a_request_give_no_more_bytes_than_one_may(files):
    found = fetch_all(files, [f"a?{k}" for k in range(5)], max_bytes=30)
    assert found.count(b"x" * 10) == 3
    assert "the addresses of its request give more than 30 bytes; send fewer." in found


def test_more_addresses_than_files_may_be_sent_are_not_fetched(files):
    found = fetch_all(files, [f"a?{k}" for k in range(1025)])
    assert set(found) == {"its request names 1025 addresses; send at most 1024 at once."}


def test_a_name_that_stands_for_this_machine_is_not_reached(files):
    address = f"http://localhost:{files.rpartition(':')[2]}/open/a"
    assert "its name stands for a private address" in fetch(address, address.removesuffix("a"))


def test_a_server_that_is_not_there_is_a_reason():
    assert fetch("http://127.0.0.1:9/a", "http://127.0.0.1:9/") == "its address cannot be fetched (no answer)."
