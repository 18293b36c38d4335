import errno
import http.client
import json
import re
import threading

import pytest
from support import human_world

from sdiareward.cli import main
from sdiareward.evaluation.human.server import RatingServer
from sdiareward.evaluation.human.study import Study, read_texts


KEY = "a-key-of-16-signs"
TEXTS = read_texts()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return human_world.draw_study(tmp_path_factory.mktemp("source"), (3.0, 2.0, 1.0, -1.0), high=2, low=1, wrong=1)


@pytest.fixture
def study(source, tmp_path):
    """A folder of links, so that each test has answers of its own."""
    for path in source.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


class Client:
    """Send requests to a page as `rater`, malformed ones too; `headers` go with every request."""

    def __init__(self, port, rater="ann"):
        self.port, self.rater, self.headers = port, rater, {}

    def request(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, self.headers | headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def get(self, path):
        return json.loads(self.request("GET", path)[2])

    def state(self):
        return self.get(f"/api/study?rater={self.rater}")

    def post(self, path, given, **headers):
        body = given if isinstance(given, bytes) else json.dumps({"rater": self.rater, **given})
        status, _, content = self.request("POST", path, body, **{"Content-Type": "application/json", **headers})
        return status, json.loads(content)

    def answer(self, given, **headers):
        return self.post("/api/answers", given, **headers)

    def consent(self, **headers):
        return self.post("/api/consent", {"agrees": True}, **headers)


@pytest.fixture
def serve(study):
    """Return a function that serves the study and gives a client, who has agreed; all servers end with the test."""
    servers = []

    def start(rater="ann", agrees=True, folder=study, **options):
        servers.append(RatingServer(folder, rater, **options))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        client = Client(servers[-1].port, rater or "ann")
        if agrees:
            assert client.consent()[0] == 200
        return client

    yield start
    for server in servers:
        server.shutdown()


@pytest.fixture
def remote(serve):
    """A client who holds the key of a page for raters elsewhere, and has not agreed."""
    client = serve(None, agrees=False, host="0.0.0.0", key=KEY, public_url="https://study.example/")
    status, headers, _ = client.request("GET", f"/?key={KEY}")
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly; Path=/; SameSite=lax" in headers["Set-Cookie"]
    client.headers = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
    return client


def read_records(study):
    path = study / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_answers(study):
    return [(each["rater"], each["item"], each["choice"]) for each in read_records(study) if "item" in each]


def test_an_answer_is_on_the_disk_before_it_is_confirmed_can_be_changed_and_both_are_kept(serve, study):
    client = serve()
    item = client.state()["items"][0]["item"]
    assert client.answer({"item": item, "choice": "b", "heard": ["b", "a"]}) == (200, {"num_answered": 1})
    assert read_records(study)[-1]["heard"] == ["a", "b"]
    assert client.answer({"item": item, "choice": "tie"}) == (200, {"num_answered": 1})
    assert read_answers(study) == [("ann", item, "b"), ("ann", item, "tie")]
    assert client.state()["answers"] == {item: "tie"}


def test_an_answer_that_a_full_disk_refuses_leaves_nothing_behind(serve, study, monkeypatch):
    client = serve()
    first, second = (item["item"] for item in client.state()["items"][:2])
    client.answer({"item": first, "choice": "a"})

    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("sdiareward.evaluation.human.study.os.fsync", refuse)
        status, content = client.answer({"item": second, "choice": "b"})
        assert (status, "No space left" in content["detail"]) == (507, True)
    assert client.state()["answers"] == {first: "a"}
    client.answer({"item": second, "choice": "a"})
    assert read_answers(study) == [("ann", first, "a"), ("ann", second, "a")]


def test_nobody_sees_an_item_or_answers_before_consent_which_is_saved_with_the_texts(serve, study):
    client = serve(agrees=False)
    welcome = client.get("/api/study")
    assert (welcome["texts"], welcome["rater"], "items" in welcome) == (TEXTS, "ann", False)
    given = {"item": Study(study).items[0], "choice": "a"}
    assert client.answer(given)[0] == 403
    assert client.post("/api/consent", {"agrees": False})[0] == 422
    assert read_records(study) == []
    assert client.consent()[0] == client.consent()[0] == 200
    assert [(record["rater"], record["texts"]) for record in read_records(study)] == [("ann", TEXTS)]
    assert client.answer(given)[0] == 200


def test_a_study_has_texts_of_its_own_and_asks_again_if_they_change(serve, study, source, tmp_path):
    file = tmp_path / "texts.yaml"
    file.write_text("consent: You may stop at any time.\n")
    texts = read_texts(file)
    assert texts == {**TEXTS, "consent": "You may stop at any time."}
    assert "items" in serve().state()
    changed = {**json.loads((source / "study.json").read_text()), "texts": texts, "allow_tie": False}
    (study / "study.json").unlink()
    (study / "study.json").write_text(json.dumps(changed))
    client = serve(agrees=False)
    assert ("items" in client.state(), client.state()["texts"]) == (False, texts)
    # Raters of this one must choose.
    assert client.consent()[0] == 200
    assert client.answer({"item": changed["items"][0]["item"], "choice": "tie"})[0] == 400
    file.write_text("consnet: x\n")
    with pytest.raises(ValueError, match="consnet.*consent"):
        read_texts(file)


def test_without_the_key_a_page_for_other_machines_gives_nothing(serve):
    client = serve(None, agrees=False, host="0.0.0.0", key=KEY)
    for path in ("/", "/page.js", "/api/study?rater=ann", "/audio/x.wav", "/?key=wrong"):
        for cookie in ("", f"sdiareward-{client.port}=wrong", "="):
            status, headers, content = client.request("GET", path, Cookie=cookie)
            assert (status, headers["Set-Cookie"], KEY.encode() in content) == (401, None, False)
    assert client.consent()[0] == 401


def test_a_page_for_other_machines_does_not_start_without_a_key(study, tmp_path, capsys):
    with pytest.raises(ValueError, match="the page at 0.0.0.0 needs a key"):
        RatingServer(study, host="0.0.0.0")
    key = tmp_path / "key"
    key.write_text("short")
    assert main(["human", "rate", str(study), "--key_file", str(key)]) == 2
    assert "the key has 5 characters; use at least 16" in capsys.readouterr().err


FOREIGN = [({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403)]
FORMS = [({"Content-Type": "text/plain"}, 422), ({"Content-Type": "application/x-www-form-urlencoded"}, 422)]


@pytest.mark.parametrize(("headers", "status"), FOREIGN + FORMS)
def test_pages_of_other_sites_can_neither_answer_nor_use_the_key(serve, remote, study, headers, status):
    assert serve(agrees=False).consent(**headers)[0] == status
    assert remote.consent(**headers)[0] == status
    assert read_records(study) == []
    assert remote.consent(Host="study.example", Origin="https://study.example")[0] == 200


def test_raters_at_one_page_are_told_apart_by_name(remote, study):
    expected = []
    for remote.rater, choice in (("ann", "a"), ("bob", "b")):
        assert remote.consent()[0] == 200
        state = remote.state()
        assert (state["rater"], state["answers"]) == (remote.rater, {})
        expected.append((remote.rater, state["items"][0]["item"], choice))
        assert remote.answer({"item": expected[-1][1], "choice": choice}) == (200, {"num_answered": 1})
    assert read_answers(study) == expected
    remote.rater = "cho"
    assert remote.answer({"item": expected[0][1], "choice": "a"})[0] == 403
    for remote.rater in ("../key", ""):
        assert remote.consent()[0] == 400


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


def test_each_rater_has_another_order_and_always_the_same(study):
    orders = {rater: [item["item"] for item in Study(study).order_items(rater)] for rater in ("ann", "bob", "cho")}
    assert len(set(map(tuple, orders.values()))) > 1
    assert {tuple(sorted(order)) for order in orders.values()} == {tuple(sorted(orders["ann"]))}
    assert [item["item"] for item in Study(study).order_items("ann")] == orders["ann"]


def test_nothing_but_the_page_and_the_recordings_can_be_reached_and_nothing_tells_the_truth(serve, study, tmp_path):
    client = serve()
    client.answer({"item": client.state()["items"][0]["item"], "choice": "a"})
    names = ("key.json", "study.json", "answers.jsonl", "../key.json", "server.py", "/etc/passwd", "api/")
    audio = ("audio/../key.json", "audio/%2e%2e/key.json", "audio/..%2fkey.json", "audio/", "audio//etc/passwd")
    for name in (*names, *audio):
        assert client.request("GET", f"/{name}")[0] == 404, name
    _, headers, page = client.request("GET", "/")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert b"http" not in page
    served = b"".join(client.request("GET", path)[2] for path in ("/", "/page.js", "/api/study"))
    for word in ("chosen", "rejected", "stratum", "margin", "subset", "synthesizer", "group_id", "recording-"):
        assert word.encode() not in served
    for truth in json.loads((study / "key.json").read_text())["items"].values():
        assert f'"{truth["stratum"]}"'.encode() not in served


def test_recordings_are_served_in_whole_and_in_parts_and_links_are_not_followed(serve, source, tmp_path):
    content = json.loads((source / "study.json").read_text())
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "copy"
    (folder / "audio").mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(content))
    name = content["items"][0]["a"][0]["audio"]
    recording = (source / "audio" / name).read_bytes()
    (folder / "audio" / name).write_bytes(recording)
    (folder / "audio" / "link.wav").symlink_to(tmp_path / "secret")
    # A copy for a rater has no key.
    client = serve(folder=folder)
    for asked, expected in (("bytes=0-3", recording[:4]), ("bytes=10-", recording[10:]), (None, recording)):
        status, headers, body = client.request("GET", f"/audio/{name}", **({"Range": asked} if asked else {}))
        assert (status, body) == (206 if asked else 200, expected)
        assert headers["Content-Type"] in ("audio/wav", "audio/x-wav")
    assert client.request("GET", "/audio/link.wav")[0] == 404


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"item": "no such item", "choice": "a"}, 400),
        ({"choice": "a", "item": None}, 422),
        (b"{", 422),
        (b"[" * 4000, 400),
        (b"\xff\xfe\x00", 400),
        (b" " * 5000, 413),
        ({"choice": "c"}, 422),
        ({"choice": "a", "heard": "ab"}, 422),
        ({"choice": "a", "heard": ["context"]}, 400),
    ],
)
def test_a_bad_answer_is_refused_and_not_kept(serve, study, given, status):
    client = serve()
    if isinstance(given, dict):
        given = {"item": client.state()["items"][0]["item"], **given}
    found, content = client.answer(given)
    assert found == status
    assert content["detail"]
    assert read_answers(study) == []


def test_answers_given_at_the_same_time_are_all_kept(serve, study):
    client = serve()
    given = [{"item": item, "choice": choice} for item in Study(study).items for choice in "abab"]
    threads = [threading.Thread(target=client.answer, args=(each,)) for each in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_answers(study)) == sorted(("ann", each["item"], each["choice"]) for each in given)


@pytest.mark.parametrize("rater", ["", "../key", "a b", ".hidden", "x" * 65])
def test_a_name_with_other_signs_is_refused(study, capsys, rater):
    assert main(["human", "rate", str(study), "--rater", rater]) == 2
    assert "letters, digits" in capsys.readouterr().err


def test_a_killed_server_resumes_where_it_stopped(serve, study, monkeypatch, capsys):
    client = serve()
    item = client.state()["items"][0]["item"]
    client.answer({"item": item, "choice": "a"})
    with (study / "answers.jsonl").open("a") as file:
        file.write('{"item": "torn')

    def stop(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(RatingServer, "serve_forever", stop)
    assert main(["human", "rate", str(study), "--rater", "ann"]) == 0
    assert "1 of 4 answered" in capsys.readouterr().out
    assert read_answers(study) == [("ann", item, "a")]
