import base64
import io
import json
import re

import pytest
import soundfile
from support import wavreward_eval_world
from support.chat_server import ChatServer, Reply
from support.keys import write_keys
from support.refusals import check_refused

from sdiareward.cli import main
from sdiareward.common.llm import ChatSettings, EndpointError
from sdiareward.judges.settings import read_endpoint
from sdiareward.judges.wavreward.evaluate import QUESTIONS, EvaluateArguments, predict, read_predictions
from sdiareward.judges.wavreward.judge import (
    EndpointJudge,
    Judgement,
    JudgingPrompt,
    choose_prompt,
    read_judging_prompt,
)
from sdiareward.judges.wavreward.scores import read_samples


OWN = JudgingPrompt(system="", task="How loud? ", with_reasoning="Think first.", without_reasoning="A number.")
FIVE = "<think>It fits.</think><score>5</score>"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return wavreward_eval_world.write_chatreward(tmp_path_factory.mktemp("chatreward"))


def test_a_prompt_is_saved_with_its_judge_and_replaced_by_that_of_a_file(tmp_path):
    assert choose_prompt(tmp_path, None) == choose_prompt(None, None) == JudgingPrompt()
    OWN.save(tmp_path)
    assert choose_prompt(tmp_path, None) == OWN
    assert JudgingPrompt().version == "1" and len({OWN.version, JudgingPrompt(system="").version, "1"}) == 3
    path = tmp_path / "prompts.yaml"
    path.write_text("wavreward_system: ''\nwavreward_task: 'Louder? '\nfilter: Listen.\n")
    assert choose_prompt(tmp_path, path) == read_judging_prompt(path) == JudgingPrompt(system="", task="Louder? ")
    (user,) = OWN.make_conversation("a.wav")
    assert user["content"] == [{"type": "audio", "audio": "a.wav"}, {"type": "text", "text": "How loud? Think first."}]
    assert OWN.make_conversation("a.wav", reasoning=False)[-1]["content"][1]["text"] == "How loud? A number."


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prompts.yaml", "filter: Listen.\n"),
        *(("p.json", text) for text in ('{"tusk": "b"}', '["task"]', '{"task": " "}', '{"system": 1}', "task")),
    ],
)
def test_an_invalid_prompt_file_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name}: .*"):
        read_judging_prompt(tmp_path / name)


class LoudnessJudge:
    """Score by how loud the end of a recording is; write down what was asked for."""

    def __init__(self, stop_after=None):
        self.calls = []
        self.stop_after = stop_after

    def judge(self, recordings, *, seed):
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((len(recordings), seed))
        return [self._judgement(array, seed) for array in recordings]

    def _judgement(self, array, seed):
        level = array[-1600:].std()
        score = 5 if level > 0.1 else 3 if level > 0.02 else 1
        return Judgement(score, None, (score,), (f"{score} with seed {seed}",), True, 4, 0.1)


def have_judged(judge, samples, folder, seed=0):
    return predict(lambda: judge, samples, folder, "predictions.jsonl", {}, {"seed": seed})


def test_a_resumed_run_scores_the_missing_chunks_and_gives_the_same_result(tmp_path):
    rows = wavreward_eval_world.make_scenarios(range(27), (("content", None),))[:80]
    rows[40]["audio"] = {"bytes": b"no audio", "path": None}
    wavreward_eval_world.write_split(tmp_path / "data", "test", rows)
    samples = read_samples(tmp_path / "data", "test")
    whole, lost = have_judged(LoudnessJudge(), samples, tmp_path / "whole", seed=7)
    assert [record["predicted"] for record in whole] == [record["score"] for record in whole]
    with pytest.raises(KeyboardInterrupt):
        have_judged(LoudnessJudge(stop_after=1), samples, tmp_path / "out", seed=7)
    judge = LoudnessJudge()
    assert have_judged(judge, samples, tmp_path / "out", seed=7) == (whole, lost)
    # Each chunk has its own seed.
    assert judge.calls == [(31, 39), (16, 71)]
    # A finished run loads no judge, not even for a recording that is still unreadable.
    assert have_judged(None, samples, tmp_path / "out", seed=7) == (whole, lost)
    assert (len(whole), [each["sample_id"] for each in lost]) == (79, ["content-13-3"])
    assert lost[0]["kind"] == "unreadable" and "cannot be decoded" in lost[0]["reason"]
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == whole
    assert len((tmp_path / "out" / "skipped_predictions.jsonl").read_text().splitlines()) == 1
    with pytest.raises(FileNotFoundError, match="has no results.json"):
        read_predictions(tmp_path / "out")
    # A mended recording has its chunk judged again.
    rows[40]["audio"] = rows[39]["audio"]
    wavreward_eval_world.write_split(tmp_path / "data", "test", rows)
    judge = LoudnessJudge()
    assert have_judged(judge, read_samples(tmp_path / "data", "test"), tmp_path / "out", seed=7)[1] == []
    assert judge.calls == [(32, 39)]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, data, tiny_judge):
    """Evaluate a random judge of a few thousand parameters; give the arguments and the folder."""
    folder = tmp_path_factory.mktemp("evaluated")
    outside = wavreward_eval_world.write_recordings(folder / "recordings")
    arguments = [
        "eval",
        "--recipe",
        "wavreward",
        "--model",
        tiny_judge,
        "--dataset",
        data,
        "--output_dir",
        folder / "eval",
    ]
    arguments += ["--out_of_domain", outside, "--max_new_tokens", 4, "--no-reasoning"]
    arguments += write_keys(folder, num_bootstrap=50)
    arguments = [str(argument) for argument in arguments]
    assert main(arguments) == 0
    return arguments, folder / "eval"


@pytest.mark.slow
def test_the_command_evaluates_a_real_thinker(evaluated):
    folder = evaluated[1]
    results, report = json.loads((folder / "results.json").read_text()), (folder / "results.md").read_text()
    assert list(results["scorers"]) == ["judge", "most_frequent", "text", "acoustic"]
    judge, acoustic = results["scorers"]["judge"], results["scorers"]["acoustic"]
    assert (judge["overall_micro"]["num_samples"], judge["columns"]["out_of_domain"]["num_samples"]) == (12, 3)
    assert (acoustic["overall_micro"]["accuracy"], acoustic["columns"]["out_of_domain"]) == (1.0, None)
    assert results["scorers"]["most_frequent"]["columns"]["out_of_domain"]["accuracy"] == pytest.approx(1 / 3)
    assert results["run"]["reasoning"] is False
    assert [len(read_predictions(folder, name)) for name in ("predictions.jsonl", "out_of_domain.jsonl")] == [12, 3]
    head = next(line for line in report.splitlines() if line.startswith("|"))
    columns = ["content", "age", "volume", "implicit", "out of domain", "micro", "macro", "macro with out of domain"]
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["", *columns]
    for line in (
        "| samples | 3 | 3 | 3 | 3 | 3 | 12 |  |  |",
        # No answer of four tokens has a score.
        "| **judge** | - | - | - | - | - | - | - | - |",
        "| cut | 3 | 3 | 3 | 3 | 3 | 12 |  |  |",
        "12 of these were cut at the token limit",
        "| **acoustic** | 100.00 | 100.00 | 100.00 | 100.00 | - | 100.00 | 100.00 | - |",
        "No samples of accent, language, gender, emotion, pitch, speed, audio",
        "Baselines were fitted on 36 training samples",
        "## Scores of the judge, out of domain",
    ):
        assert line in report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max_new_tokens", "5"], "results of another run .*max_new_tokens was 4, is 5"),
        (["--num_samples", "2"], "without a temperature"),
        (["--num_samples", "0"], "num_samples"),
        (["--judge", "j"], "one of the two"),
        (["--judge_options", "a=b"], "need a judge"),
    ],
)
def test_a_run_with_other_or_wrong_settings_is_refused(evaluated, capsys, more, message):
    assert check_refused(capsys, message, main, [*evaluated[0], *more])


@pytest.mark.slow
def test_a_training_split_with_scenarios_of_the_evaluated_one_is_refused(evaluated, tmp_path, capsys):
    arguments = evaluated[0][: evaluated[0].index("--config")]
    keys = write_keys(tmp_path, train_split="test")
    assert check_refused(capsys, "share 4 scenarios, such as 'content-3'", main, [*arguments, *keys])


def endpoint(server, tmp_path, **changes):
    fields = {"api_key_env": None, "max_retries": 0, "concurrency": 1, **changes}
    return EndpointJudge(ChatSettings("ears", server.url, **fields), tmp_path / "cache")


def recordings(count):
    return [wavreward_eval_world.noise(0.1, number) for number in range(count)]


@pytest.mark.parametrize(
    ("reply", "score", "num_cut"),
    [
        ("Score: 4/5", 4, 0),
        ("I like it.", None, 0),
        (Reply("<think>It goes on and on", finish_reason="length"), None, 1),
        (Reply(refusal="no"), None, 0),
        (Reply(status=400), None, 0),
    ],
)
def test_an_endpoint_gets_the_prompt_of_wavreward_and_its_answer_counts_without_asking_again(
    tmp_path, reply, score, num_cut
):
    with ChatServer(reply, FIVE) as server:
        first, second = endpoint(server, tmp_path).judge(recordings(2))
    assert (first.score, first.follows_format, first.num_cut) == (score, False, num_cut)
    assert (second.score, second.follows_format, second.texts, second.num_tokens) == (5, True, (FIVE,), 20)
    assert (first.problem is None) == (score is not None)
    assert len(server.requests) == 2
    asked, told = server.requests[0]["messages"], JudgingPrompt().make_conversation("recording")
    assert asked[0] == told[0] and asked[1]["content"][1] == told[1]["content"][1]
    assert [part["type"] for part in asked[1]["content"]] == ["input_audio", "text"]


def test_several_answers_have_different_seeds_and_vote(tmp_path):
    with ChatServer(*[f"<think>x</think><score>{score}</score>" for score in (3, 5, 3)]) as server:
        [found] = endpoint(server, tmp_path).judge(recordings(1), num_samples=3, temperature=1.0, seed=10)
        with pytest.raises(ValueError, match="omit expected"):
            endpoint(server, tmp_path).judge(recordings(1), expected=True)
        with pytest.raises(ValueError, match="need a seed"):
            endpoint(server, tmp_path, seed=None).judge(recordings(1), num_samples=2, temperature=1.0)
    assert (found.score, found.scores) == (3, (3, 5, 3))
    assert [(request["seed"], request["temperature"]) for request in server.requests] == [(10, 1), (11, 1), (12, 1)]
    with pytest.raises(ValueError, match="has the backend 'thinker'; choose an endpoint"):
        read_endpoint("qwen2.5-omni-7b")
    with ChatServer(Reply(status=400)) as server, pytest.raises(EndpointError, match="none of 2 .* as scripted"):
        endpoint(server, tmp_path / "other").judge(recordings(2))


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a command with the judge of a server."""

    def run(command, server, *more):
        judges = tmp_path / "judges.yaml"
        fields = {"model": "ears", "base_url": server.url, "api_key_env": None, "max_retries": 0, "concurrency": 1}
        judges.write_text(json.dumps({"ears": {"backend": "endpoint", **fields}}))
        arguments = ["eval", "--recipe", command, "--judge", "ears", "--judges_file", judges, *more]
        return main([str(argument) for argument in arguments])

    return run


@pytest.mark.slow
def test_the_command_evaluates_an_endpoint_and_caches_its_answers(tmp_path, data, run, capsys):
    arguments = ["--dataset", data, "--output_dir", tmp_path / "eval", "--no_baselines"]
    with ChatServer(*[FIVE] * 7, Reply(status=401)) as server:
        assert check_refused(capsys, r"^sdiareward eval: error: ", run, "wavreward", server, *arguments)
    with ChatServer(FIVE) as server:
        assert run("wavreward", server, *arguments) == 0
    assert len(server.requests) == 12 - 7
    assert (
        server.requests[0]["max_tokens"]
        == EvaluateArguments(dataset="data", output_dir="output", model="m").max_new_tokens
        == 5120
    )
    results = json.loads((tmp_path / "eval" / "results.json").read_text())
    assert list(results["scorers"]) == ["judge"]
    assert results["scorers"]["judge"]["overall_micro"]["accuracy"] == pytest.approx(1 / 3)
    assert (results["run"]["judge"], results["run"]["max_tokens"]) == ("ears", 5120)
    report = (tmp_path / "eval" / "results.md").read_text()
    assert report.startswith(f"# ears on {data}, split test\n") and report in capsys.readouterr().out


YES = dict.fromkeys(QUESTIONS, True) | {"reason": "It follows."}


@pytest.fixture
def examine(tmp_path, data, run):
    """Return a function that has a server rate three samples, the last one without thoughts."""
    folder = tmp_path / "eval"
    folder.mkdir()
    thoughts = ("<think>It fits.</think>", "<think>It is too quiet.</think>", "")
    records = [
        {**label, "predicted": 5, "text": f"{thought}<score>5</score>"}
        for label, thought in zip(read_samples(data, "test").labels, thoughts, strict=False)
    ]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "results.json").write_text("{}")

    def examine(server, *more):
        code = run("wavreward_reasoning", server, "--predictions", folder, "--dataset", data, *more)
        path = folder / "reasoning_quality.json"
        return code, json.loads(path.read_text()) if path.exists() else None

    return examine


def test_thoughts_are_good_if_all_four_answers_are_yes_and_missing_thoughts_are_poor(examine, tmp_path, capsys):
    with ChatServer(YES, {**YES, "is_right_on_sound": False}) as server:
        code, found = examine(server)
    assert (code, len(server.requests)) == (0, 2)
    assert (found["num_examined"], found["num_good"], found["num_without_thoughts"]) == (3, 1, 1)
    # The three samples are of one scenario.
    assert (found["share_good"], found["interval"]) == (pytest.approx(1 / 3), None)
    assert found["shares"] == dict.fromkeys(QUESTIONS, 1.0) | {"is_right_on_sound": 0.5}
    assert [each["quality"] for each in found["verdicts"].values()] == ["Good", "Poor"]
    report = (tmp_path / "eval" / "reasoning_quality.md").read_text()
    assert "| **Good** | 33.33 |" in report and capsys.readouterr().out == report
    system, user = server.requests[1]["messages"]
    assert all(name in system["content"] for name in QUESTIONS)
    audio, request = user["content"]
    array, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(audio["input_audio"]["data"])))
    assert (array.size, rate_hz) == (24_000, 16_000)
    # The second sample deserves 3 and was given 5.
    assert "It is too quiet." in request["text"] and re.findall(r"\d", request["text"]) == ["5"]


def test_a_sample_without_a_usable_answer_about_its_thoughts_is_skipped_and_named(examine, tmp_path):
    with ChatServer({**YES, "is_faithful": "yes"}, YES, Reply(refusal="no")) as server:
        code, found = examine(server)
    assert "is_faithful is 'yes'" in server.requests[1]["messages"][-1]["content"]
    assert (code, found["num_examined"], found["num_good"]) == (1, 2, 1)
    assert list(found["failures"]) == ["content-3-3"] and "refused" in found["failures"]["content-3-3"]
    assert found["failures"]["content-3-3"] in (tmp_path / "eval" / "reasoning_quality.md").read_text()


def test_thoughts_without_any_usable_answer_or_of_other_data_end_in_one_line(examine, tmp_path, capsys):
    with ChatServer("I like it.") as server:
        assert check_refused(capsys, "gave no usable answer", examine, server, "--max_samples", 1)
        path = tmp_path / "eval" / "predictions.jsonl"
        record = json.loads(path.read_text().splitlines()[0])
        path.write_text(json.dumps({**record, "sample_id": "unknown"}) + "\n")
        assert check_refused(capsys, "1 of 1 samples are not in the data", examine, server)
