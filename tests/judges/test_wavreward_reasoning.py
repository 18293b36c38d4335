import base64
import io
import json
import re

import pytest
import soundfile
from support import wavreward_eval_world
from support.chat_server import ChatServer, Reply
from support.refusals import check_refused

from sdiareward.cli import main
from sdiareward.judges.wavreward.reasoning_quality import QUESTIONS
from sdiareward.judges.wavreward.scores import read_samples


YES = dict.fromkeys(QUESTIONS, True) | {"reason": "It follows."}


def verdict(**changes):
    return {**YES, **changes}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return wavreward_eval_world.write_chatreward(tmp_path_factory.mktemp("chatreward"))


@pytest.fixture
def predictions(tmp_path, data):
    """Three judged samples, the last one without thoughts."""
    folder = tmp_path / "eval"
    folder.mkdir()
    thoughts = ("<think>It fits.</think>", "<think>It is too quiet.</think>", "")
    records = [
        {**label, "predicted": 5, "text": f"{thought}<score>5</score>"}
        for label, thought in zip(read_samples(data, "test").labels, thoughts, strict=False)
    ]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "results.json").write_text("{}")
    return folder


@pytest.fixture
def ask(tmp_path, data, predictions):
    """Return a function running the command against a server, and giving its exit code and results."""

    def run(server, *more):
        judges = tmp_path / "judges.yaml"
        fields = {"model": "ears", "base_url": server.url, "api_key_env": None, "max_retries": 0, "concurrency": 1}
        judges.write_text(json.dumps({"examiner": {"backend": "endpoint", **fields}}))
        arguments = ["--predictions", predictions, "--dataset", data, "--judge", "examiner", "--judges_file", judges]
        arguments += more
        code = main(["wavreward", "reasoning", *(str(argument) for argument in arguments)])
        path = predictions / "reasoning_quality.json"
        return code, json.loads(path.read_text()) if path.exists() else None

    return run


def test_thoughts_are_good_if_all_four_answers_are_yes_and_missing_thoughts_are_poor(ask, predictions, capsys):
    with ChatServer(YES, verdict(is_right_on_sound=False)) as server:
        code, found = ask(server)
    assert code == 0
    assert len(server.requests) == 2
    assert (found["num_examined"], found["num_good"], found["num_without_thoughts"]) == (3, 1, 1)
    assert found["share_good"] == pytest.approx(1 / 3)
    # The three samples are of one scenario.
    assert found["interval"] is None
    assert found["shares"] == dict.fromkeys(QUESTIONS, 1.0) | {"is_right_on_sound": 0.5}
    assert [each["quality"] for each in found["verdicts"].values()] == ["Good", "Poor"]
    report = (predictions / "reasoning_quality.md").read_text()
    assert "| **Good** | 33.33 |" in report
    assert capsys.readouterr().out == report


def test_the_judge_gets_recording_thoughts_and_score_but_not_the_gold_score(ask):
    with ChatServer(YES) as server:
        ask(server, "--limit", 2)
    system, user = server.requests[1]["messages"]
    assert all(name in system["content"] for name in QUESTIONS)
    audio, request = user["content"]
    array, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(audio["input_audio"]["data"])))
    assert (array.size, rate_hz) == (24_000, 16_000)
    # The second sample deserves 3 and was given 5.
    assert "It is too quiet." in request["text"]
    assert re.findall(r"\d", request["text"]) == ["5"]


def test_answers_are_kept_when_the_endpoint_fails(ask, predictions, capsys):
    with ChatServer(YES, Reply(status=401)) as server:
        assert check_refused(capsys, "does not accept the key", ask, server)
    assert not (predictions / "reasoning_quality.json").exists()
    with ChatServer(YES) as server:
        first = ask(server)[1]
        again = ask(server)[1]
    assert len(server.requests) == 1
    assert again["verdicts"] == first["verdicts"]
    assert (first["usage"]["cached"], again["usage"]["cached"]) == (1, 2)


def test_an_unusable_answer_is_requested_again_with_the_reason(ask):
    with ChatServer(verdict(is_faithful="yes"), YES) as server:
        code, found = ask(server, "--limit", 1)
    assert (code, found["num_good"]) == (0, 1)
    assert "is_faithful is 'yes': Input should be a valid boolean" in server.requests[1]["messages"][-1]["content"]


def test_a_sample_without_a_usable_answer_is_skipped_and_named(ask, predictions):
    with ChatServer(YES, Reply(refusal="no")) as server:
        code, found = ask(server)
    assert code == 1
    assert (found["num_examined"], found["num_good"]) == (2, 1)
    assert list(found["failures"]) == ["content-3-3"]
    assert "refused" in found["failures"]["content-3-3"]
    assert found["failures"]["content-3-3"] in (predictions / "reasoning_quality.md").read_text()


def test_a_judge_without_any_usable_answer_ends_in_one_line(ask, capsys):
    with ChatServer("I like it.") as server:
        assert check_refused(capsys, "gave no usable answer", ask, server, "--limit", 1)


def test_data_without_the_evaluated_samples_is_refused(ask, predictions, capsys):
    record = json.loads((predictions / "predictions.jsonl").read_text().splitlines()[0])
    (predictions / "predictions.jsonl").write_text(json.dumps({**record, "sample_id": "unknown"}) + "\n")
    with ChatServer(YES) as server:
        assert check_refused(capsys, "1 of 1 samples are not in the data", ask, server)
