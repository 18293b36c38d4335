import errno
import http.client
import json
import re
import signal
import subprocess
import sys
import threading

import pytest
from support import human_world

from sdiareward.cli import main
from sdiareward.evaluation.human.agreement import read_answers
from sdiareward.evaluation.human.page import sessions
from sdiareward.evaluation.human.page.server import RatingServer
from sdiareward.evaluation.human.page.sessions import Raters, RatingSession
from sdiareward.evaluation.human.study import sample_study
from sdiareward.evaluation.human.texts import CONSENT, INSTRUCTIONS, read_texts
from sdiareward.evaluation.results_files import read_evaluation
from sdiareward.pairs.loading import load_pairs


SIZES = {"high": 2, "low": 1, "random": 0, "wrong": 1}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    scores = [human_world.make_score(number, margin) for number, margin in enumerate((3.0, 2.0, 1.0, -1.0))]
    pairs = human_world.write_pairs(folder / "pairs.parquet", scores)
    evaluation = read_evaluation(human_world.write_evaluation(folder / "eval", scores))
    sample_study(evaluation, load_pairs(pairs, "test"), folder / "study", seed=0, sizes=SIZES)
    return folder / "study"


@pytest.fixture
def study(source, tmp_path):
    """A folder of links, so that each test has answers of its own."""
    for path in source.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


class Client:
    """Talk to a server with plain requests, malformed ones too."""

    def __init__(self, port):
        self.port = port
        self.host = f"127.0.0.1:{port}"

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": self.host, **(headers or {})}.items():
                connection.putheader(name, value)
            if body is not None and "Content-Length" not in (headers or {}):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, {name.title(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def study(self):
        return json.loads(self.request("GET", "/api/study")[2])

    def answer(self, answer, path="/api/answers", **headers):
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        headers = {"Content-Type": "application/json", **headers}
        status, _, content = self.request("POST", path, body, headers)
        return status, json.loads(content)


@pytest.fixture
def serve(study):
    """Return a function serving the study to a rater and giving a client; all servers end with the test."""
    servers = []

    def start(rater="ann", agrees=True, **options):
        raters = Raters(study, rater)
        if rater and agrees:
            raters.find(rater).consent()
        server = RatingServer(raters, **options)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return Client(server.server_port)

    yield start
    for server in servers:
        server.shutdown()


KEY = "a-key-of-16-signs"


@pytest.fixture
def remote(serve):
    """A page for raters elsewhere, and a client who holds its key."""
    client = serve(None, host="0.0.0.0", key=KEY, public_url="https://study.example/")
    status, headers, _ = client.request("GET", f"/?key={KEY}")
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly; Path=/; SameSite=lax" in headers["Set-Cookie"]
    client.cookie = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
    return client


def answers(study, rater="ann"):
    return [json.loads(line) for line in (study / "answers" / f"{rater}.jsonl").read_text().splitlines()]


def test_every_answer_is_on_the_disk_before_it_is_confirmed(serve, study):
    client = serve()
    item = client.study()["items"][0]["item"]
    assert client.answer({"item": item, "choice": "b", "heard": ["b", "a"]}) == (200, {"num_answered": 1})
    [record] = answers(study)
    assert (record["item"], record["choice"], record["heard"]) == (item, "b", ["a", "b"])
    assert client.study()["answers"] == {item: "b"}


def test_an_answer_that_a_full_disk_refuses_leaves_nothing_behind(study, monkeypatch):
    session = RatingSession(study, "ann")
    first, second = sorted(session.items)[:2]
    session.answer({"item": first, "choice": "a"})

    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(sessions.os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            session.answer({"item": second, "choice": "b"})
    session.answer({"item": second, "choice": "a"})
    assert [(record["item"], record["choice"]) for record in answers(study)] == [(first, "a"), (second, "a")]


def test_nobody_answers_before_consent_which_is_saved_with_the_texts(serve, study):
    client = serve("ann", agrees=False)
    welcome = json.loads(client.request("GET", "/api/welcome")[2])
    assert (welcome["instructions"], welcome["consent"]) == (INSTRUCTIONS, CONSENT)
    assert (welcome["rater"], welcome["has_consented"]) == ("ann", False)
    item = RatingSession(study, "ann").study["items"][0]["item"]
    assert client.request("GET", "/api/study")[0] == 403
    assert client.answer({"item": item, "choice": "a"})[0] == 403
    assert client.answer({"agrees": False}, path="/api/consent")[0] == 400
    assert not (study / "answers").exists()
    assert client.answer({"agrees": True}, path="/api/consent") == (200, {"rater": "ann"})
    kept = json.loads((study / "answers" / "ann.consent.json").read_text())
    assert (kept["rater"], kept["instructions"], kept["consent"]) == ("ann", INSTRUCTIONS, CONSENT)
    assert client.answer({"item": item, "choice": "a"})[0] == 200
    assert json.loads(client.request("GET", "/api/welcome")[2])["has_consented"] is True
    # The consent is no file of answers.
    assert list(read_answers(study, [item])) == ["ann"]


def test_a_study_has_texts_of_its_own_and_asks_again_if_they_change(source, tmp_path):
    file = tmp_path / "texts.yaml"
    file.write_text("consent: You may stop at any time.\n")
    texts = read_texts(file)
    assert (texts.instructions, texts.consent) == (INSTRUCTIONS, "You may stop at any time.")
    study = json.loads((source / "study.json").read_text())
    assert study["texts"] == {"instructions": INSTRUCTIONS, "consent": CONSENT}
    (tmp_path / "study.json").write_text(json.dumps(study))
    RatingSession(tmp_path, "ann").consent()
    assert RatingSession(tmp_path, "ann").has_consented
    (tmp_path / "study.json").write_text(json.dumps({**study, "texts": texts.as_fields()}))
    assert not RatingSession(tmp_path, "ann").has_consented
    file.write_text("consnet: x\n")
    with pytest.raises(ValueError, match="consnet"):
        read_texts(file)


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/api/welcome", "/api/study?rater=ann", "/audio/x.wav", "/?key=wrong"]
)
def test_without_the_key_a_page_for_other_machines_gives_nothing(serve, path):
    client = serve(None, host="0.0.0.0", key=KEY)
    for cookie in ({}, {"Cookie": f"sdiareward-{client.port}=wrong"}, {"Cookie": "="}):
        status, headers, content = client.request("GET", path, headers=cookie)
        assert status == 401
        assert "Set-Cookie" not in headers
        assert KEY.encode() not in content
    assert client.answer({"agrees": True, "rater": "ann"}, path="/api/consent")[0] == 401


def test_a_page_for_other_machines_does_not_start_without_a_key(study, tmp_path, capsys):
    with pytest.raises(ValueError, match="the page at 0.0.0.0 needs a key"):
        RatingServer(Raters(study), host="0.0.0.0")
    key = tmp_path / "key"
    key.write_text("short")
    assert main(["human", "rate", str(study), "--key_file", str(key)]) == 2
    assert "the key has 5 characters; use at least 16" in capsys.readouterr().err


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Content-Type": "text/plain"},
    ],
)
def test_the_key_does_not_open_the_page_to_other_sites(remote, study, headers):
    given = {"agrees": True, "rater": "ann"}
    assert remote.answer(given, path="/api/consent", **remote.cookie, **headers)[0] == 403
    assert not (study / "answers").exists()
    public = {"Host": "study.example", "Origin": "https://study.example"}
    assert remote.answer(given, path="/api/consent", **remote.cookie, **public)[0] == 200


def test_raters_at_one_page_are_told_apart_by_name(remote, study):
    items = {}
    for rater, choice in (("ann", "a"), ("bob", "b")):
        assert remote.answer({"agrees": True, "rater": rater}, path="/api/consent", **remote.cookie)[0] == 200
        seen = json.loads(remote.request("GET", f"/api/study?rater={rater}", headers=remote.cookie)[2])
        assert (seen["rater"], seen["answers"]) == (rater, {})
        items[rater] = seen["items"][0]["item"]
        given = {"rater": rater, "item": items[rater], "choice": choice}
        assert remote.answer(given, **remote.cookie) == (200, {"num_answered": 1})
    for rater, choice in (("ann", "a"), ("bob", "b")):
        assert [(record["item"], record["choice"]) for record in answers(study, rater)] == [(items[rater], choice)]
    assert remote.answer({"rater": "cho", "item": items["ann"], "choice": "a"}, **remote.cookie)[0] == 403
    assert remote.answer({"agrees": True, "rater": "../key"}, path="/api/consent", **remote.cookie)[0] == 400
    assert remote.answer({"agrees": True}, path="/api/consent", **remote.cookie)[0] == 400


def test_the_address_for_raters_elsewhere_has_the_key_but_not_one_from_a_file(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(RatingServer, "serve_forever", lambda self: None)
    assert main(["human", "rate", str(study), "--host", "0.0.0.0"]) == 0
    assert re.search(r"http://[^ ]+:\d+/\?key=[\w-]{32} for raters", capsys.readouterr().out)
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    flags = ["--host", "0.0.0.0", "--key_file", str(key), "--public_url", "https://study.example"]
    assert main(["human", "rate", str(study), *flags]) == 0
    printed = capsys.readouterr()
    assert f"https://study.example/?key=(the key in {key})" in printed.out
    assert KEY not in printed.out + printed.err


def test_an_answer_can_be_changed_and_both_are_kept(serve, study):
    client = serve()
    item = client.study()["items"][0]["item"]
    for choice in ("a", "tie"):
        assert client.answer({"item": item, "choice": choice})[1] == {"num_answered": 1}
    assert [record["choice"] for record in answers(study)] == ["a", "tie"]
    assert client.study()["answers"] == {item: "tie"}


def test_raters_see_the_items_in_orders_of_their_own_and_each_always_in_the_same(serve):
    raters = ("ann", "bob", "cho", "dan")
    orders = {rater: [item["item"] for item in serve(rater).study()["items"]] for rater in raters}
    assert len({tuple(order) for order in orders.values()}) > 1
    assert {tuple(sorted(order)) for order in orders.values()} == {tuple(sorted(orders["ann"]))}
    assert [item["item"] for item in serve("ann").study()["items"]] == orders["ann"]


@pytest.mark.parametrize(
    "path",
    [
        "/key.json",
        "/study.json",
        "/answers/ann.jsonl",
        "/audio/../key.json",
        "/audio/%2e%2e/key.json",
        "/audio/..%2fkey.json",
        "/../key.json",
        "//etc/passwd",
        "/audio/",
        "/audio//etc/passwd",
        "/api/",
        "/page.html",
        "/server.py",
        "http://127.0.0.1/key.json",
    ],
)
def test_nothing_but_the_page_and_the_recordings_can_be_reached(serve, study, path):
    client = serve()
    client.answer({"item": client.study()["items"][0]["item"], "choice": "a"})
    assert client.request("GET", path)[0] == 404


def test_nothing_that_is_served_tells_the_truth(serve, study):
    client = serve()
    served = b"".join(client.request("GET", path)[2] for path in ("/", "/page.js", "/api/study"))
    key = json.loads((study / "key.json").read_text())
    for word in ("chosen", "rejected", "stratum", "margin", "subset", "synthesizer", "group_id", "recording-"):
        assert word.encode() not in served
    assert not any(f'"{truth["stratum"]}"'.encode() in served for truth in key["items"].values())


def test_a_study_can_be_rated_without_its_key(serve, study):
    (study / "key.json").unlink()
    client = serve()
    assert client.answer({"item": client.study()["items"][0]["item"], "choice": "a"})[0] == 200


def test_recordings_are_served_whole_and_in_parts(serve, study):
    client = serve()
    name = client.study()["items"][0]["a"][0]["audio"]
    content = (study / "audio" / name).read_bytes()
    status, headers, body = client.request("GET", f"/audio/{name}")
    assert (status, headers["Content-Type"], body) == (200, "audio/wav", content)
    for asked, expected in (("bytes=0-3", content[:4]), ("bytes=10-", content[10:]), ("bytes=-5", content[-5:])):
        status, headers, body = client.request("GET", f"/audio/{name}", headers={"Range": asked})
        assert (status, body) == (206, expected)
    assert headers["Content-Range"] == f"bytes {len(content) - 5}-{len(content) - 1}/{len(content)}"
    assert client.request("GET", f"/audio/{name}", headers={"Range": "bytes=999999-"})[0] == 416


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"item": "no such item", "choice": "a"}, "names no item"),
        ({"choice": "a"}, "names no item"),
        ({"item": ["x"], "choice": "a"}, "names no item"),
        ([1], "dictionary"),
        (b"{", "JSON"),
        (b"\xff\xfe\x00", "body"),
        (b"[" * 4000, ""),
        ({"choice": "c"}, "the choice is 'c'; it must be one of a, b, tie"),
        ({"choice": None}, "the choice is None"),
        ({"choice": "a", "heard": "ab"}, "heard is 'ab'"),
        ({"choice": "a", "heard": ["c"]}, "heard is"),
    ],
)
def test_a_bad_answer_is_refused_with_its_reason_and_not_kept(serve, study, answer, reason):
    client = serve()
    if isinstance(answer, dict) and "item" not in answer and answer != {"choice": "a"}:
        answer = {"item": client.study()["items"][0]["item"], **answer}
    status, content = client.answer(answer)
    assert status == 400
    assert reason in content["error"]
    assert not list((study / "answers").glob("*.jsonl"))


def test_bodies_without_or_of_too_great_length_are_refused(serve):
    client = serve()
    assert client.answer(b"{}", **{"Content-Length": "1000000"})[0] == 413
    for length in ("-1", "many", ""):
        assert client.request("POST", "/api/answers", b"{}", {"Content-Length": length})[0] in (400, 403, 413)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
def test_pages_of_other_sites_cannot_answer(serve, study, headers):
    client = serve()
    answer = {"item": client.study()["items"][0]["item"], "choice": "a"}
    assert client.answer(answer, **headers)[0] == 403
    assert not list((study / "answers").glob("*.jsonl"))


def test_the_page_may_load_nothing_from_elsewhere(serve):
    _, headers, page = serve().request("GET", "/")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"http" not in page.replace(b"http-equiv", b"")


def test_where_raters_must_choose_a_tie_is_refused(study):
    content = json.loads((study / "study.json").read_text())
    (study / "study.json").unlink()
    (study / "study.json").write_text(json.dumps({**content, "allow_tie": False}))
    session = RatingSession(study, "ann")
    with pytest.raises(ValueError, match="must be one of a, b"):
        session.answer({"item": content["items"][0]["item"], "choice": "tie"})


def test_answers_given_at_the_same_time_are_all_kept(serve, study):
    client = serve()
    items = [item["item"] for item in client.study()["items"]]
    threads = [
        threading.Thread(target=client.answer, args=({"item": item, "choice": choice},))
        for item in items
        for choice in "abab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers(study)) == 4 * len(items)


@pytest.mark.parametrize("rater", ["", "../key", "a/b", ".hidden", "x" * 65, "ann.jsonl"])
def test_a_name_that_is_no_file_name_is_refused(study, capsys, rater):
    assert main(["human", "rate", str(study), "--rater", rater]) == 2
    assert "letters, digits" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_server_goes_on_where_it_stopped(study):
    command = [sys.executable, "-m", "sdiareward.cli", "human", "rate", str(study), "--rater", "ann"]

    def start():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        return process, Client(int(line.split("/")[2].rpartition(":")[2])), line

    RatingSession(study, "ann").consent()
    process, client, line = start()
    try:
        assert "0 of 4 answered" in line
        item = client.study()["items"][0]["item"]
        assert client.answer({"item": item, "choice": "a"})[0] == 200
    finally:
        process.kill()
        process.wait()
    with (study / "answers" / "ann.jsonl").open("a") as file:
        file.write('{"item": "torn')
    process, client, line = start()
    try:
        assert "1 of 4 answered" in line
        assert client.study()["answers"] == {item: "a"}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
    assert [record["choice"] for record in answers(study)] == ["a"]
