import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest
from support import human_world

from sdiareward.cli import main
from sdiareward.evaluation.results_files import read_evaluation
from sdiareward.human.page.server import RatingServer, RatingSession
from sdiareward.human.study import sample_study
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
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def study(self):
        return json.loads(self.request("GET", "/api/study")[2])

    def answer(self, answer, **headers):
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        headers = {"Content-Type": "application/json", **headers}
        status, _, content = self.request("POST", "/api/answers", body, headers)
        return status, json.loads(content)


@pytest.fixture
def serve(study):
    """Return a function serving the study to a rater and giving a client; all servers end with the test."""
    servers = []

    def start(rater="ann"):
        server = RatingServer(RatingSession(study, rater))
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return Client(server.server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def answers(study, rater="ann"):
    return [json.loads(line) for line in (study / "answers" / f"{rater}.jsonl").read_text().splitlines()]


def test_every_answer_is_on_the_disk_before_it_is_confirmed(serve, study):
    client = serve()
    item = client.study()["items"][0]["item"]
    assert client.answer({"item": item, "choice": "b", "heard": ["b", "a"]}) == (200, {"num_answered": 1})
    [record] = answers(study)
    assert (record["item"], record["choice"], record["heard"]) == (item, "b", ["a", "b"])
    assert client.study()["answers"] == {item: "b"}


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


def test_one_rater_does_not_see_what_another_answered(serve):
    ann, bob = serve("ann"), serve("bob")
    ann.answer({"item": ann.study()["items"][0]["item"], "choice": "a"})
    assert bob.study()["answers"] == {}


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
    status, _, content = client.request("GET", path)
    assert status == 404
    assert json.loads(content) == {"error": "not found."}


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


def test_a_recording_that_is_missing_is_not_found(serve, study):
    client = serve()
    name = client.study()["items"][0]["b"][0]["audio"]
    moved = (study / "audio").resolve() / name
    content = moved.read_bytes()
    moved.unlink()
    try:
        assert client.request("GET", f"/audio/{name}")[0] == 404
    finally:
        moved.write_bytes(content)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"item": "no such item", "choice": "a"}, "names no item"),
        ({"choice": "a"}, "names no item"),
        ({"item": ["x"], "choice": "a"}, "names no item"),
        ([1], "names no item"),
        (b"{", "Expecting"),
        (b"\xff\xfe\x00", "decode"),
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
    assert not (study / "answers").exists()


def test_bodies_without_or_of_too_great_length_are_refused(serve):
    client = serve()
    for length in ("1000000", "-1", "many", ""):
        assert client.answer(b"{}", **{"Content-Length": length})[0] == 413


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
    assert not (study / "answers").exists()


def test_a_name_that_leads_here_from_elsewhere_is_not_served(serve):
    assert serve().request("GET", "/api/study", headers={"Host": "rebound.example"})[0] == 403


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


def test_a_folder_without_a_study_is_refused(tmp_path, capsys):
    assert main(["human", "rate", str(tmp_path), "--rater", "ann"]) == 2
    assert "draw a study with sdiareward human sample" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_server_goes_on_where_it_stopped(study):
    command = [sys.executable, "-m", "sdiareward.cli", "human", "rate", str(study), "--rater", "ann"]

    def start():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        return process, Client(int(line.split("/")[2].rpartition(":")[2])), line

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
