import json

import pytest
from support import wavreward_eval_world
from support.chat_server import ChatServer, Reply
from support.refusals import check_refused

from sdiareward.cli import main
from sdiareward.common.llm import ChatSettings, EndpointError
from sdiareward.judges.settings import choose_endpoint
from sdiareward.judges.wavreward.evaluate import EvaluateArguments
from sdiareward.judges.wavreward.judge import EndpointJudge
from sdiareward.judges.wavreward.prompts import JudgingPrompt


FIVE = "<think>It fits.</think><score>5</score>"


def endpoint(server, tmp_path, **changes):
    fields = {"api_key_env": None, "max_retries": 0, "concurrency": 1, **changes}
    return EndpointJudge(ChatSettings("ears", server.url, **fields), tmp_path / "cache")


def recordings(count):
    return [wavreward_eval_world.noise(0.1, number) for number in range(count)]


def test_an_endpoint_gets_the_prompt_of_wavreward(tmp_path):
    with ChatServer(FIVE) as server:
        [found] = endpoint(server, tmp_path).judge(recordings(1))
    asked = server.requests[0]["messages"]
    told = JudgingPrompt().make_conversation("recording")
    assert asked[0] == told[0]
    assert [part["type"] for part in asked[1]["content"]] == ["input_audio", "text"]
    assert asked[1]["content"][1] == told[1]["content"][1]
    assert (found.score, found.follows_format, found.texts, found.num_tokens) == (5, True, (FIVE,), 20)


@pytest.mark.parametrize(
    ("reply", "score", "follows"),
    [
        ("Score: 4/5", 4, False),
        ("I like it.", None, False),
        (Reply("<think>It goes on and on", finish_reason="length"), None, False),
        (Reply(refusal="no"), None, False),
        (Reply(status=400), None, False),
    ],
    ids=["prose", "no score", "cut off", "refused", "rejected"],
)
def test_an_answer_counts_without_asking_again(tmp_path, reply, score, follows):
    with ChatServer(reply, FIVE) as server:
        first, second = endpoint(server, tmp_path).judge(recordings(2))
    assert (first.score, first.follows_format, second.score) == (score, follows, 5)
    assert first.num_cut == (reply.finish_reason == "length" if isinstance(reply, Reply) else 0)
    assert (first.problem is None) == (score is not None)
    assert len(server.requests) == 2


def test_several_answers_have_different_seeds_and_vote(tmp_path):
    replies = [f"<think>x</think><score>{score}</score>" for score in (3, 5, 3)]
    with ChatServer(*replies) as server:
        [found] = endpoint(server, tmp_path).judge(recordings(1), num_samples=3, temperature=1.0, seed=10)
    assert (found.score, found.scores) == (3, (3, 5, 3))
    assert [request["seed"] for request in server.requests] == [10, 11, 12]
    assert [request["temperature"] for request in server.requests] == [1.0] * 3


def test_unsupported_options_of_an_endpoint_are_refused(tmp_path):
    with ChatServer(FIVE) as server:
        with pytest.raises(ValueError, match="omit expected"):
            endpoint(server, tmp_path).judge(recordings(1), expected=True)
        with pytest.raises(ValueError, match="need a seed"):
            endpoint(server, tmp_path, seed=None).judge(recordings(1), num_samples=2, temperature=1.0)
    with pytest.raises(ValueError, match="has the backend 'thinker'; an endpoint is needed"):
        choose_endpoint("qwen2.5-omni-7b")


def test_an_endpoint_that_refuses_a_parameter_is_asked_once_with_it_and_one_that_refuses_all_ends_the_run(tmp_path):
    def refuse(body):
        return Reply(status=400, error="no seed, please") if "seed" in body else FIVE

    with ChatServer(refuse) as server:
        judge = endpoint(server, tmp_path)
        for number in range(3):
            [found] = judge.judge([wavreward_eval_world.noise(0.1, number)])
            assert (found.score, found.changed_parameters) == (5, {"seed": None})
        assert len(server.requests) == 4
    with ChatServer(Reply(status=400)) as server, pytest.raises(EndpointError, match="none of 2 .* as scripted"):
        endpoint(server, tmp_path / "other").judge(recordings(2))


@pytest.mark.slow
def test_the_command_evaluates_an_endpoint_and_caches_its_answers(tmp_path, capsys):
    data = wavreward_eval_world.write_chatreward(tmp_path / "data")
    judges = tmp_path / "judges.yaml"

    def run(server):
        fields = {"backend": "endpoint", "model": "ears", "base_url": server.url, "api_key_env": None}
        judges.write_text(json.dumps({"ears": {**fields, "max_retries": 0, "concurrency": 1}}))
        arguments = ["--judge", "ears", "--judges_file", judges, "--dataset", data, "--output_dir", tmp_path / "eval"]
        arguments += ["--baselines", "false", "--num_bootstrap", 20]
        return main(["wavreward", "eval", *(str(argument) for argument in arguments)])

    with ChatServer(*[FIVE] * 7, Reply(status=401)) as server:
        assert check_refused(capsys, r"^python -m sdiareward.judges.wavreward.evaluate: error: ", run, server)
    with ChatServer(FIVE) as server:
        assert run(server) == 0
    assert len(server.requests) == 12 - 7
    assert server.requests[0]["max_tokens"] == EvaluateArguments("data", "output", model="m").max_new_tokens == 5120
    results = json.loads((tmp_path / "eval" / "results.json").read_text())
    assert list(results["scorers"]) == ["judge"]
    assert results["scorers"]["judge"]["overall_micro"]["accuracy"] == pytest.approx(1 / 3)
    assert (results["run"]["judge"], results["run"]["max_tokens"]) == ("ears", 5120)
    assert (tmp_path / "eval" / "results.md").read_text().startswith(f"# ears on {data}, split test\n")


@pytest.mark.parametrize(
    "more",
    [{}, {"model": "m", "judge": "j"}, {"model": "m", "judge_options": ["a=b"]}],
    ids=["none", "both", "foreign"],
)
def test_the_command_needs_either_a_model_or_a_judge(more):
    with pytest.raises(ValueError, match="name one|one of the two"):
        EvaluateArguments("data", "output", **more)
