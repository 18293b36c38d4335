import errno
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import httpx
import pytest
from fastapi.testclient import TestClient
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


class Client(TestClient):
    """Sends requests to a page as `rater`."""

    def __init__(self, folder, rater="ann", **options):
        server = RatingServer(folder, rater, **options)
        super().__init__(server.app, base_url=f"http://127.0.0.1:{server.port}", follow_redirects=False)
        self.rater = rater or "ann"

    def state(self):
        return self.get(f"/api/study?rater={self.rater}").json()

    def answer(self, **given):
        return self.post("/api/answers", json={"rater": self.rater, **given})

    def consent(self, **headers):
        return self.post("/api/consent", json={"rater": self.rater, "agrees": True}, headers=headers)


@pytest.fixture
def client(study):
    """A rater of this machine who has agreed."""
    client = Client(study)
    assert client.consent().status_code == 200
    return client


@pytest.fixture
def remote(study):
    """A client who holds the key of a page for raters elsewhere, and has not agreed."""
    client = Client(study, None, host="0.0.0.0", key=KEY, public_url="https://study.example/")
    response = client.get(f"/?key={KEY}")
    assert (response.status_code, response.headers["Location"]) == (303, "/")
    assert "HttpOnly; Path=/; SameSite=lax" in response.headers["Set-Cookie"]
    return client


def read_records(study):
    path = study / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_answers(study):
    return [(each["rater"], each["item"], each["choice"]) for each in read_records(study) if "item" in each]


def test_an_answer_is_on_the_disk_before_it_is_confirmed_can_be_changed_and_both_are_kept(client, study):
    item = client.state()["items"][0]["item"]
    for choice, heard in (("b", ["b", "a"]), ("tie", [])):
        assert client.answer(item=item, choice=choice, heard=heard).json() == {"num_answered": 1}
        assert read_records(study)[-1]["heard"] == sorted(heard)
    assert read_answers(study) == [("ann", item, "b"), ("ann", item, "tie")]
    assert client.state()["answers"] == Client(study).state()["answers"] == {item: "tie"}


def test_an_answer_that_a_full_disk_refuses_leaves_nothing_behind(client, study, monkeypatch):
    first, second = (item["item"] for item in client.state()["items"][:2])
    client.answer(item=first, choice="a")

    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("sdiareward.evaluation.human.study.os.fsync", refuse)
        response = client.answer(item=second, choice="b")
        assert response.status_code == 507 and "No space left" in response.json()["detail"]
    assert client.state()["answers"] == {first: "a"}
    client.answer(item=second, choice="a")
    assert read_answers(study) == [("ann", first, "a"), ("ann", second, "a")]


def test_nobody_sees_an_item_or_answers_before_consent_to_the_texts_that_the_study_has(study, source, tmp_path):
    client = Client(study)
    welcome = client.get("/api/study").json()
    assert (welcome["texts"], welcome["rater"], "items" in welcome) == (TEXTS, "ann", False)
    given = {"item": Study(study).items[0], "choice": "tie"}
    assert client.answer(**given).status_code == 403
    assert client.post("/api/consent", json={"agrees": False}).status_code == 422
    assert read_records(study) == []
    assert client.consent().status_code == client.consent().status_code == 200
    assert [(record["rater"], record["texts"]) for record in read_records(study)] == [("ann", TEXTS)]
    assert client.answer(**given).status_code == 200
    # Other texts are agreed to again. Raters of this study must choose.
    file = tmp_path / "texts.yaml"
    file.write_text("consent: You may stop at any time.\n")
    changed = {**json.loads((source / "study.json").read_text()), "texts": read_texts(file), "allow_tie": False}
    (study / "study.json").unlink()
    (study / "study.json").write_text(json.dumps(changed))
    client = Client(study)
    assert client.state()["texts"] == {**TEXTS, "consent": "You may stop at any time."}
    assert "items" not in client.state() and client.consent().status_code == 200
    assert client.answer(**given).status_code == 400
    file.write_text("consnet: x\n")
    with pytest.raises(ValueError, match="consnet.*consent"):
        read_texts(file)


def test_without_the_key_a_page_for_other_machines_gives_nothing(study):
    client = Client(study, None, host="0.0.0.0", key=KEY)
    for path in ("/", "/page.js", "/api/study?rater=ann", "/audio/x.wav", "/?key=wrong"):
        for headers in ({}, {"Cookie": "sdiareward-0=wrong"}, {"Cookie": "="}):
            response = client.get(path, headers=headers)
            assert response.status_code == 401 and "Set-Cookie" not in response.headers and KEY not in response.text
    assert client.consent().status_code == 401
    with pytest.raises(ValueError, match="the page at 0.0.0.0 needs a key"):
        RatingServer(study, host="0.0.0.0")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403), ({"Content-Type": "text/plain"}, 422)],
)
def test_pages_of_other_sites_can_neither_answer_nor_use_the_key(remote, study, headers, status):
    assert Client(study).consent(**headers).status_code == remote.consent(**headers).status_code == status
    assert read_records(study) == []
    assert remote.consent(Host="study.example", Origin="https://study.example").status_code == 200


def test_raters_at_one_page_are_told_apart_by_name_and_each_has_an_order(remote, study):
    expected, orders = [], []
    for remote.rater, choice in (("ann", "a"), ("bob", "b"), ("cho", "a")):
        assert remote.consent().status_code == 200
        state = remote.state()
        assert (state["rater"], state["answers"]) == (remote.rater, {})
        orders.append([item["item"] for item in state["items"]])
        assert [item["item"] for item in Study(study).order_items(remote.rater)] == orders[-1]
        expected.append((remote.rater, orders[-1][0], choice))
        assert remote.answer(item=orders[-1][0], choice=choice).json() == {"num_answered": 1}
    assert read_answers(study) == expected
    assert len(set(map(tuple, orders))) > 1 and len(set(map(frozenset, orders))) == 1
    remote.rater = "dan"
    assert remote.answer(item=expected[0][1], choice="a").status_code == 403
    for remote.rater in ("../key", ""):
        assert remote.consent().status_code == 400


def test_the_address_for_raters_elsewhere_has_the_key_but_not_one_from_a_file(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(RatingServer, "serve_forever", lambda self: None)
    assert main(["human", "rate", str(study), "--host", "0.0.0.0"]) == 0
    assert re.search(r"http://[^ ]+:\d+/\?key=[\w-]{32} for raters", capsys.readouterr().out)
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    flags = ["--host", "0.0.0.0", "--key_file", str(key), "--public_url", "https://study.example"]
    assert main(["human", "rate", str(study), *flags]) == 0
    printed = capsys.readouterr()
    assert f"https://study.example/?key=(the key in {key})" in printed.out and KEY not in printed.out + printed.err


def test_nothing_but_the_page_and_the_recordings_can_be_reached_and_nothing_tells_the_truth(source, tmp_path):
    # A copy for a rater has no key.
    folder = Path(shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("key.json")))
    [recording, *_] = (folder / "audio").iterdir()
    (folder / "audio" / "link.wav").symlink_to(source / "key.json")
    client = Client(folder)
    client.consent()
    names = ("key.json", "answers.jsonl", "..%2fkey.json", "server.py", "api/", "audio/", "audio/link.wav")
    for name in (*names, "audio/%2e%2e/study.json", "audio/..%2fstudy.json"):
        assert client.get(f"/{name}").status_code == 404, name
    page = client.get("/")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"] and "http" not in page.text
    served = page.text + client.get("/page.js").text + client.get("/api/study?rater=ann").text
    strata = {truth["stratum"] for truth in json.loads((source / "key.json").read_text())["items"].values()}
    for word in ("chosen", "rejected", "stratum", "margin", "subset", "synthesizer", "group_id", *strata):
        assert f'"{word}"' not in served
    for headers, expected in (({"Range": "bytes=0-3"}, slice(4)), ({}, slice(None))):
        response = client.get(f"/audio/{recording.name}", headers=headers)
        assert (response.status_code, response.content) == (206 if headers else 200, recording.read_bytes()[expected])
        assert response.headers["Content-Type"] in ("audio/wav", "audio/x-wav")


@pytest.mark.parametrize(
    ("given", "status"),
    [({"item": "no such item"}, 400), ({"item": None}, 422), ({"choice": "c"}, 422), ({"heard": "ab"}, 422)]
    + [({"heard": ["context"]}, 400), (b"{", 422), (b"\xff\xfe\x00", 400), (b" " * 5000, 413)],
)
def test_a_bad_answer_is_refused_and_not_kept(client, study, given, status):
    if isinstance(given, dict):
        given = json.dumps({"item": Study(study).items[0], "choice": "a", **given})
    response = client.post("/api/answers", content=given, headers={"Content-Type": "application/json"})
    assert response.status_code == status and response.json()["detail"]
    assert read_answers(study) == []


def test_answers_given_at_the_same_time_are_all_kept_and_a_killed_server_resumes(client, study, monkeypatch, capsys):
    given = [(item, choice) for item in Study(study).items for choice in "abab"]
    server = RatingServer(study, "ann")
    Thread(target=server.serve_forever, daemon=True).start()
    with ThreadPoolExecutor() as pool:
        bodies = ({"item": item, "choice": choice} for item, choice in given)
        list(pool.map(lambda body: httpx.post(f"{server.url}api/answers", json=body, trust_env=False), bodies))
    server.shutdown()
    answers = read_answers(study)
    assert sorted(answers) == sorted(("ann", *each) for each in given)
    with (study / "answers.jsonl").open("a") as file:
        file.write('{"item": "torn')

    def stop(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(RatingServer, "serve_forever", stop)
    assert main(["human", "rate", str(study), "--rater", "ann"]) == 0
    assert "4 of 4 answered" in capsys.readouterr().out
    assert read_answers(study) == answers


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--rater", rater], "letters, digits") for rater in ("", "../key", "x" * 65)]
    + [(["--key_file", "key"], "the key has 5 characters; use at least 16")],
)
def test_names_and_keys_with_other_signs_are_refused(study, capsys, monkeypatch, flags, message):
    monkeypatch.chdir(study)
    Path("key").write_text("short")
    assert main(["human", "rate", ".", *flags]) == 2
    assert message in capsys.readouterr().err
