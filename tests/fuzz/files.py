"""Targets that read files of runs and studies (torn, edited, of another kind) and requests of a rater's browser."""

import contextlib
import json
import shutil
import socket
import threading
from typing import Any

from fuzz.rows import tone_wav
from fuzz.running import Target, World
from fuzz.values import changed, damaged, json_texts, values
from hypothesis import strategies as st

from sdiareward.common.files import JsonLines
from sdiareward.common.run_identity import claim_run_dir
from sdiareward.evaluation.calibrate import _read_config
from sdiareward.evaluation.results_files import read_evaluation
from sdiareward.evaluation.human.agreement import render_study, score_study
from sdiareward.evaluation.human.page.server import RatingServer
from sdiareward.evaluation.human.page.sessions import RatingSession
from sdiareward.judges.wavreward.score_samples import read_out_of_domain


_RECORDS = st.lists(st.dictionaries(st.text(max_size=4), values(3), max_size=3), max_size=4)


@st.composite
def torn_lines(draw: Any) -> tuple[list[dict[str, Any]], bytes]:
    """Return records, and the beginning of a line whose writer was killed."""
    line = json.dumps({"text": draw(st.text(max_size=5)), "number": 1.5}, ensure_ascii=False).encode()
    return draw(_RECORDS.map(_writable)), line[: draw(st.integers(0, len(line) - 1))]


def _writable(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return json.loads(json.dumps(records).replace("\\ud", "\\u0").replace("NaN", "0"))


def _read_torn(world: World, case: tuple[list[dict[str, Any]], bytes]) -> None:
    records, torn = case
    path = world.write("torn.jsonl", b"")
    lines = JsonLines(path)
    lines.append(records)
    with path.open("ab") as file:
        file.write(torn)
    assert lines.read() == records
    lines.append(records[:1])
    assert lines.read() == records + records[:1]


def _read_lines(world: World, data: bytes) -> None:
    assert all(isinstance(record, dict) for record in JsonLines(world.write("lines.jsonl", data)).read())


def _claim_run_dir(world: World, text: str) -> None:
    claim_run_dir(world.write("run/identity.json", text).parent, {"model": "m", "pairs": "p"})


_STUDY = {
    "study": "s1",
    "allow_tie": True,
    "items": [
        {
            **{"item": "i1", "question": "Which?", "context": []},
            **{side: [{"role": "user", "text": "hi", "audio": f"{side}.wav", "duration_s": 0.3}] for side in "ab"},
        }
    ],
}
_KEY = {
    **{
        "study": "s1",
        "seed": 0,
        "asked": {"high": 1, "low": 0},
        "drawn": {"high": 1, "low": 0, "random": 0, "wrong": 0},
    },
    "evaluation": {},
    "items": {
        "i1": {"stratum": "high", "chosen_is": "a", "pair_id": "p", "subset": "wild", "margin": 0.5, "group_id": "g"}
    },
}
_ANSWER = {"item": "i1", "choice": "a", "heard": ["a", "b"]}


def _studies(_: World) -> st.SearchStrategy[tuple[str, str, str]]:
    answers = st.lists(json_texts(_ANSWER), min_size=1, max_size=2).map(lambda lines: "\n".join(lines) + "\n")
    return st.tuples(json_texts(_STUDY), json_texts(_KEY), answers)


def _rate(world: World, case: tuple[str, str, str]) -> None:
    study, key, answers = case
    shutil.rmtree(world.folder / "study", ignore_errors=True)
    path = world.write("study/study.json", study)
    world.write("study/key.json", key)
    world.write("study/answers/anna.jsonl", answers)
    render_study(score_study(path.parent))


def _serve_study(world: World, text: str) -> None:
    shutil.rmtree(world.folder / "rated", ignore_errors=True)
    session = RatingSession(world.write("rated/study.json", text).parent, "anna")
    json.dumps(session.read_state())
    folder = (world.folder / "rated" / "audio").resolve()
    assert all(path.resolve().parent == folder for path in session.audio.values())


def _answer(world: World, given: Any) -> None:
    session = RatingSession(world.write("answered/study.json", json.dumps(_STUDY)).parent, "anna")
    assert session.answer(given) == 1
    assert session.answers["i1"] in session.choices


_REQUESTS = (
    b"GET /api/study HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n",
    b"GET /audio/a.wav HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nRange: bytes=0-9\r\nConnection: close\r\n\r\n",
    b"GET /audio/a.wav HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nRange: bytes="
    + b"9" * 5000
    + b"-\r\nConnection: close\r\n\r\n",
    b"POST /api/answers HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Type: application/json\r\n"
    b"Content-Length: 46\r\nConnection: close\r\n\r\n" + json.dumps(_ANSWER).encode(),
    b"POST /api/answers HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
)


class _Page:
    """A rater's server that keeps its errors instead of printing them."""

    def __init__(self, world: World):
        path = world.write("page/study.json", json.dumps(_STUDY))
        for side in "ab":
            world.write(f"page/audio/{side}.wav", tone_wav())
        session = RatingSession(path.parent, "anna")
        session.consent()
        self.server = RatingServer(session)
        self.failures: list[BaseException] = []
        # Set as an attribute: the server's own method would only print the error.
        setattr(self.server, "handle_error", self._keep)  # noqa: B010
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _keep(self, *_: Any) -> None:
        import sys

        self.failures.append(sys.exc_info()[1] or RuntimeError("unknown"))

    def send(self, request: bytes) -> bytes:
        port = self.server.server_port
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(request.replace(b"PORT", str(port).encode()))
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while part := connection.recv(65_536):
                answer += part
        return answer


_PAGES: dict[int, _Page] = {}


def _ask_page(world: World, request: bytes) -> None:
    if id(world) not in _PAGES:
        _PAGES[id(world)] = _Page(world)
    page = _PAGES[id(world)]
    page.failures.clear()
    with contextlib.suppress(ConnectionError, TimeoutError):
        page.send(request)
    broken = [error for error in page.failures if not isinstance(error, (ConnectionError, TimeoutError))]
    if broken:
        raise broken[0]


def _read_list(world: World, case: tuple[str, str]) -> None:
    suffix, text = case
    shutil.rmtree(world.folder / "list", ignore_errors=True)
    world.write("list/a.wav", tone_wav())
    samples = read_out_of_domain(world.write(f"list/scores.{suffix}", text).parent, "test")
    assert all(1 <= label["score"] <= 5 for label in samples.labels)


def _lists(_: World) -> st.SearchStrategy[tuple[str, str]]:
    table = damaged(b"file,score,scenario_id\na.wav,3,x\n", b'file,score\n"a.wav","5"\n')
    tables = table.map(lambda data: data.decode("utf-8", "surrogateescape"))
    lines = st.lists(json_texts({"file": "a.wav", "score": 4}), max_size=2).map("\n".join)
    return st.tuples(st.just("csv"), tables) | st.tuples(st.just("jsonl"), lines)


_SCORE = {"pair_id": "p", "chosen": 1.0, "rejected": 0.5, "margin": 0.5, "subset": "wild", "criterion": "modality"}


def _evaluations(_: World) -> st.SearchStrategy[tuple[str, str, str]]:
    scores = st.lists(json_texts(_SCORE), max_size=2).map(lambda lines: "".join(f"{line}\n" for line in lines))
    return st.tuples(scores, json_texts({"model": "m", "split": "test"}), json_texts({"config": {"model": "m"}}))


def _read_evaluation(world: World, case: tuple[str, str, str]) -> None:
    for name, text in zip(("scores.jsonl", "identity.json", "results.json"), case, strict=True):
        path = world.write(f"evaluation/{name}", text)
    found = read_evaluation(path.parent)
    assert all(isinstance(record["pair_id"], str) for record in found.scores)


def _read_own_config(world: World, text: str) -> None:
    _read_config(world.write("calibrated/config.json", text).parent)


TARGETS = (
    Target("torn lines", "files", lambda _: torn_lines(), _read_torn, ()),
    Target("lines", "files", lambda _: damaged(b'{"a": 1}\n{"b": "\xc3\xa9"}\n', b"[1]\n5\n"), _read_lines),
    Target("identity.json", "files", lambda _: json_texts({"model": "m", "pairs": "p"}), _claim_run_dir),
    Target("study and answers", "files", _studies, _rate, (ValueError, FileNotFoundError)),
    Target("study of a rater", "files", lambda _: json_texts(_STUDY), _serve_study),
    Target("answer of a rater", "requests", lambda _: changed(_ANSWER) | values(), _answer),
    Target("request of a rater", "requests", lambda _: damaged(*_REQUESTS), _ask_page, ()),
    Target("list of scores", "files", _lists, _read_list, (ValueError, FileNotFoundError)),
    Target("evaluation", "files", _evaluations, _read_evaluation, (ValueError, FileNotFoundError)),
)
