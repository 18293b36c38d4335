import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import datasets
import diskcache
import pytest
from support import forked, judge_world
from support.chat_server import ChatServer, Reply
from support.judge_world import always_first, deaf, listening, verdict
from support.refusals import check_refused

from sdiareward import eval as evaluation
from sdiareward.common.llm import ChatClient, EndpointError
from sdiareward.evaluation.pair_scoring import score_pairs
from sdiareward.judges.settings import EndpointSettings
from sdiareward.judges.zero_shot.judging import EndpointBackend, PairwiseJudge, ReplayBackend
from sdiareward.judges.zero_shot.summary import summarise_pairwise
from sdiareward.pairs.labels import describe_pairs


_here = Path(__file__)
SOON = {"Retry-After": "0.01"}
DRAWS = {"num_bootstrap": 50, "seed": 0}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture(scope="module")
def pairs():
    return judge_world.make_pairs()


@pytest.fixture
def judge_with(tmp_path, pairs):
    """Return a function that has a server judge the first pairs, and gives their scores and what is said of them."""

    def judge(server, num_pairs=1, **settings):
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        some = pairs.select(range(num_pairs))
        labels = describe_pairs(some)
        common = {"model": "tiny", "base_url": server.url, "api_key_env": None, "timeout_s": 5.0, "concurrency": 2}
        client = ChatClient(EndpointSettings(**{**common, **settings}), folder / "cache")
        scorer = PairwiseJudge(EndpointBackend(client, attempts=3), folder)
        scores, skipped = score_pairs(lambda: scorer, some, labels, folder, {})
        assert skipped == []
        return scores, summarise_pairwise(labels, scores, folder, DRAWS)

    return judge


def first_then(*replies, rest=listening):
    """Return a server that begins with some replies."""
    return ChatServer(*replies, rest)


@pytest.mark.slow
def test_a_judge_gets_the_audio_of_both_versions_in_both_orders_without_transcripts(judge_with):
    with ChatServer(listening) as server:
        scores, _ = judge_with(server, 1, concurrency=1)
    orders = []
    for request in server.requests:
        system, user = request["messages"]
        assert "final_turn_naturalness_prosody" in system["content"]
        texts = [part["text"] for part in user["content"] if part["type"] == "text"]
        turns = ["turn 1, user:", "last turn, assistant:"]
        assert texts[:-1] == ["Version A:", *turns, "Version B:", *turns]
        assert not any(word in json.dumps(request) for word in ("secret", "chosen", "rejected", "pair-0", "made_up"))
        sounds = [judge_world.hertz_of(part) for part in user["content"] if part["type"] == "input_audio"]
        orders.append([round(hertz / 100) for hertz in sounds])
    assert orders == [[2, 2, 9, 9], [9, 9, 2, 2]]
    assert scores["pair-0"]["chosen"] == 4.0
    assert (scores["pair-0"]["margin"], scores["pair-0"]["decided_by"]) == (2.0, "verdict")


def test_the_scores_decide_if_a_judge_always_prefers_the_first_version(judge_with):
    with ChatServer(always_first) as server:
        scores, found = judge_with(server, 6)
    assert {score["decided_by"] for score in scores.values()} == {"scores"}
    assert {score["margin"] for score in scores.values()} == {1.0}
    everything, modality, *_ = found["groups"]
    groups = {"all pairs": 6, "modality": 4, "colloquialness": 2, "wild": 2, "semi_wild": 1, "scripted": 1}
    assert {group["criterion"]: group["num_pairs"] for group in found["groups"]} == groups
    assert everything["position_bias"]["bias"] == 0.5
    low, high = everything["position_bias"]["interval"]
    assert 0 < low < high == 0.5
    assert everything["order_agreement"]["share"] == 0.0
    assert everything["one_order"]["chosen_first"]["share"] == 1.0
    assert everything["one_order"]["rejected_first"]["share"] == 0.0
    assert modality["decided_by"] == {"verdict": 0, "scores": 4, "tie": 0, "failed": 0}
    # In one order the scores go with the verdict, in the other against it.
    assert found["answers"]["contradictory"] == 6


def test_a_judge_asked_in_one_order_hears_each_side_first_about_as_often_and_may_read_the_words(run):
    with ChatServer(listening) as server:
        code, out = run("--judge", "own-endpoint", options=at(server, orders="one", transcripts="true"))
    results = read(out)
    everything = results["judge"]["groups"][0]
    assert (code, len(server.requests), results["judge"]["num_answers"]) == (0, 6, 6)
    assert results["accuracies"]["model"]["overall_micro"] == 1.0
    counts = [share["num_values"] for share in everything["one_order"].values()]
    assert sum(counts) == 6 and min(counts) > 0
    assert everything["order_agreement"]["share"] is None
    asked = [json.dumps(body) for body in server.requests]
    assert all("secret chosen" in words and "secret rejected" in words for words in asked)
    assert read(out)["run"]["judge_settings"]["orders"] == "one"
    _, again = run("--judge", "replay", out="again", options=[f"path={out / 'answers.jsonl'}", "orders=one"])
    assert read(again)["judge"]["groups"] == results["judge"]["groups"]


def test_a_judge_with_equal_scores_and_position_bias_ties_everywhere(judge_with):
    with ChatServer(deaf) as server:
        scores, found = judge_with(server, 6)
    assert {score["margin"] for score in scores.values()} == {0.0}
    assert found["groups"][0]["decided_by"] == {"verdict": 0, "scores": 0, "tie": 6, "failed": 0}
    assert found["groups"][0]["ties"]["share"] == 1.0


def test_a_correct_judge_has_no_position_bias(judge_with):
    with ChatServer(listening) as server:
        _, found = judge_with(server, 6)
    everything = found["groups"][0]
    assert everything["position_bias"]["bias"] == 0.0
    assert everything["order_agreement"]["share"] == 1.0
    assert everything["decided_by"]["verdict"] == 6
    assert (found["num_answers"], found["num_replies"]) == (12, 12)
    assert (found["prompt_tokens"], found["completion_tokens"]) == (1200, 240)


@pytest.mark.parametrize(
    ("bad", "remark"),
    [
        (Reply('{"scores": {"final_turn_content": {"A": 4,', finish_reason="length"), "cut off at the token limit"),
        ("Version A sounds like a person, and B like a machine.", "no valid JSON"),
        (verdict("A", first=7), "'final_turn_content' of version A is 7"),
    ],
)
def test_an_unusable_answer_is_requested_again_with_its_problem(judge_with, bad, remark):
    with first_then(bad) as server:
        scores, found = judge_with(server, 1, concurrency=1)
    assert len(server.requests) == 3
    assert remark in server.requests[1]["messages"][-1]["content"]
    assert scores["pair-0"]["margin"] == 2.0
    assert (found["num_answers"], found["num_replies"], found["answers"]["usable"]) == (2, 3, 2)
    assert found["sessions"]["reasks"] == 1
    # What was of no use was paid for, too.
    assert found["prompt_tokens"] == 300


def test_swapped_keys_and_prose_are_repaired_without_asking_again(judge_with):
    def swapped(body):
        answer = listening(body)
        scores = {version: {name: both[version] for name, both in answer["scores"].items()} for version in "BA"}
        return f"Gladly! {json.dumps({**answer, 'scores': scores})}"

    with ChatServer(swapped) as server:
        scores, found = judge_with(server, 1)
    assert len(server.requests) == 2
    assert scores["pair-0"]["margin"] == 2.0
    assert found["answers"]["repaired"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (Reply(refusal="I will not."), "refused"),
        (Reply(finish_reason="content_filter"), "refused"),
        ("I'm sorry, but I can't listen to audio.", "refused"),
        ("Hm.", "unusable"),
        (Reply(status=500, headers=SOON), "unanswered"),
        (Reply(status=400), "unanswered"),
        (Reply(json.dumps(verdict("A")), delay_s=2.5), "unanswered"),
    ],
)
def test_a_pair_without_a_usable_answer_has_a_status_and_no_reward(judge_with, bad, status):
    def only_low_first(body):
        return bad if judge_world.first_is_low(body)[0] else listening(body)

    with ChatServer(only_low_first) as server:
        scores, found = judge_with(server, 1, max_retries=0, timeout_s=2.0)
    assert scores["pair-0"]["chosen"] is scores["pair-0"]["margin"] is None
    assert found["answers"][status] == found["answers"]["usable"] == 1
    assert found["groups"][0]["decided_by"]["failed"] == 1
    (problem,) = found["problems"]
    assert (problem["pair_id"], problem["order"], problem["status"]) == ("pair-0", "chosen_first", status)


def test_answers_are_kept_when_the_endpoint_stops_answering(judge_with, tmp_path):
    replies = [listening] * 5 + [Reply(status=401)]
    with ChatServer(*replies) as server, pytest.raises(EndpointError):
        judge_with(server, 6, concurrency=1)
    with ChatServer(listening) as server:
        scores, found = judge_with(server, 6)
    # Five of twelve answers were in the cache.
    assert len(server.requests) == 7
    assert len(scores) == 6
    assert (found["sessions"]["cached"], found["prompt_tokens"]) == (5, 1200)


@pytest.fixture
def data_folder(tmp_path, pairs):
    folder = tmp_path / "pairs"
    folder.mkdir()
    pairs.to_parquet(folder / "test.parquet")
    return folder


@pytest.fixture
def run(tmp_path, data_folder):
    """Return a function that runs the command line on the six pairs, and gives its exit code and folder."""

    def run(*flags, out="out", options=()):
        folder = tmp_path / out
        required = ["--dataset", data_folder, "--output_dir", folder, "--no_baselines", "--num_bootstrap", 50]
        overrides = ["--judge_options", *options] if options else []
        return evaluation.main([str(flag) for flag in (*required, *flags, *overrides)]), folder

    return run


def at(server, **more):
    return [f"base_url={server.url}", "model=tiny", *(f"{name}={value}" for name, value in more.items())]


def read(folder, name="results.json"):
    return json.loads((folder / name).read_text())


@pytest.mark.slow
def test_the_command_line_fills_a_row_of_table_2_with_cost_and_bias(run, capsys):
    prices = {"usd_per_million_input_tokens": 2.5, "usd_per_million_output_tokens": 10}
    with ChatServer(listening) as server:
        code, out = run("--judge", "own-endpoint", options=at(server, **prices))
    assert code == 0
    results = read(out)
    assert results["accuracies"]["model"]["overall_macro"] == 1.0
    assert results["judge"]["usd"] == pytest.approx((1200 * 2.5 + 240 * 10) / 1e6)
    # Two sides of two turns of a tenth of a second.
    assert results["timing"]["audio_s"] == pytest.approx(6 * 4 * 0.1)
    assert results["config"]["nan"] == "wrong"
    report = (out / "results.md").read_text()
    assert report == capsys.readouterr().out.removesuffix("\n")
    assert report.startswith("# judge own-endpoint on ")
    assert "| **judge**" in report
    assert re.search(r"\| decided: verdict +\| +6 \|", report)
    assert "12 answers (12 usable, 0 refused" in report
    identity = read(out)["run"]
    assert (identity["judge"], identity["judge_settings"]["model"]) == ("own-endpoint", "tiny")
    assert server.url not in json.dumps(identity)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=400, error="Invalid value: 'input_audio'"), "Invalid value: 'input_audio'"),
        (Reply(status=200, body='{"error": {"message": "no GPU is free"}}'), "no GPU is free"),
        ("Hm.", "begins 'Hm.'"),
        (Reply(refusal="I will not."), "I will not."),
    ],
)
def test_a_judge_without_one_usable_answer_has_no_accuracy_but_reasons(run, capsys, reply, reason):
    with ChatServer(reply) as server:
        code, out = run("--judge", "own-endpoint", options=at(server, max_retries=0))
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert reason in printed.err and reason in (out / "results.md").read_text()
    assert not (out / "results.json").exists()
    with ChatServer(listening) as server:
        assert run("--judge", "own-endpoint", "--retry_failed", options=at(server))[0] == 0
    assert read(out)["accuracies"]["model"]["overall_micro"] == 1.0


def test_reasons_and_refused_parameters_are_on_the_page_of_results(run, capsys):
    def pick(body):
        if "temperature" in body:
            return Reply(status=400, error="temperature must be 1")
        is_colloquial = judge_world.first_is_low(body)[1] == "colloquialness"
        return Reply(status=400, error="the audio is too long") if is_colloquial else listening(body)

    with ChatServer(pick) as server:
        code, out = run("--judge", "own-endpoint", options=at(server, max_retries=0))
    report = (out / "results.md").read_text()
    assert code == 0 and report in capsys.readouterr().out
    assert "the audio is too long" in report and "`temperature` was refused by the endpoint and omitted" in report
    (row,) = [line for line in report.splitlines() if "**judge**" in line]
    # Three subsets, their averages, the subset without an answer, and the averages over all.
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [*["100.00"] * 5, "-", "66.67", "-"]


@pytest.mark.slow
def test_a_failed_pair_counts_as_wrong_until_it_is_retried(run):
    def not_the_first(body):
        return "Hm." if len(server.requests) <= 2 else listening(body)

    server = ChatServer(not_the_first)
    with server:
        _, out = run("--judge", "own-endpoint", options=at(server, concurrency=1))
        assert read(out)["accuracies"]["model"]["num_invalid"]["overall_micro"] == 1
        assert read(out)["accuracies"]["model"]["overall_micro"] == 5 / 6
        assert "judge: 1 of 6 pairs got no usable answer, counted as wrong." in (out / "results.md").read_text()
        asked = len(server.requests)
        run("--judge", "own-endpoint", options=at(server, concurrency=1))
        assert len(server.requests) == asked
        run("--judge", "own-endpoint", "--retry_failed", options=at(server, concurrency=1))
        # The other order's answer is in the cache.
        assert len(server.requests) == asked + 1
        judge = read(out)["judge"]
        # Failed answers were paid for, too; that of the cache counts once.
        assert (judge["num_replies"], judge["prompt_tokens"]) == (asked + 1, 100 * (asked + 1))
        assert judge["num_answers"] == 12
    assert read(out)["accuracies"]["model"]["overall_micro"] == 1.0
    assert len((out / "scores.jsonl").read_text().splitlines()) == 6


@pytest.mark.slow
def test_a_run_can_be_replayed_without_endpoint_and_audio(run):
    with ChatServer(always_first) as server:
        _, out = run("--judge", "own-endpoint", options=at(server))
    asked = len(server.requests)
    _, again = run("--judge", "replay", out="again", options=[f"path={out / 'answers.jsonl'}"])
    assert len(server.requests) == asked
    first, second = read(out), read(again)
    assert second["accuracies"] == first["accuracies"]
    assert second["judge"]["groups"] == first["judge"]["groups"]
    assert second["judge"]["answers"] == first["judge"]["answers"]
    assert second["judge"]["prompt_tokens"] == first["judge"]["prompt_tokens"]
    assert second["timing"]["real_time_factor"] is None


def test_a_replay_needs_only_pair_order_and_answer(tmp_path, pairs):
    lines = [
        {"pair_id": "pair-0", "order": "chosen_first", "answer": json.dumps(verdict("A", first=4, second=2))},
        {"pair_id": "pair-0", "order": "rejected_first", "answer": "I'm sorry, I can't."},
        # Of two lines about the same the later one counts.
        {"pair_id": "pair-0", "order": "rejected_first", "answer": json.dumps(verdict("B", first=1, second=5))},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    one = pairs.select([0])
    scores, _ = score_pairs(
        lambda: PairwiseJudge(ReplayBackend(path), tmp_path), one, describe_pairs(one), tmp_path / ".", {}
    )
    assert (scores["pair-0"]["chosen"], scores["pair-0"]["rejected"]) == (4.5, 1.5)


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"pair_id": "a", "order": "AB", "answer": ""}'], ids=["no JSON", "no object", "order"]
)
def test_an_invalid_file_of_answers_is_named_with_the_line(tmp_path, line):
    path = tmp_path / "answers.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=r"answers\.jsonl.*line 1"):
        ReplayBackend(path)


def test_a_replay_without_an_answer_names_the_pair(run, tmp_path, capsys):
    record = {"pair_id": "pair-0", "order": "chosen_first", "answer": "x"}
    (tmp_path / "answers.jsonl").write_text(json.dumps(record) + "\n")
    for name, message in (("answers.jsonl", "of pair 'pair-0', rejected_first"), ("no.jsonl", "no such file")):
        replay = partial(run, options=[f"path={tmp_path / name}"])
        assert check_refused(capsys, message, replay, "--judge", "replay")


@pytest.mark.slow
def test_a_folder_refuses_another_judge_or_other_settings(run, capsys):
    with ChatServer(listening) as server:
        run("--judge", "own-endpoint", options=at(server))
        for change in ("temperature=0.5", "max_turn_s=10"):
            changed = partial(run, options=[*at(server), change])
            message = "results of another run .judge_settings was"
            assert check_refused(capsys, message, changed, "--judge", "own-endpoint")
        # How, and where, it is asked changes nothing.
        run("--judge", "own-endpoint", options=[*at(server), "concurrency=1", "timeout_s=9"])
    assert len(server.requests) == 12


@pytest.mark.slow
def test_an_unreadable_turn_skips_its_pair_without_a_request(run, data_folder, pairs):
    def spoil(row):
        if row["pair_id"] == "pair-2":
            row["rejected"][1]["audio"] = {"bytes": b"no audio", "path": None}
        return row

    pairs.map(spoil, keep_in_memory=True).to_parquet(data_folder / "test.parquet")
    with ChatServer(listening) as server:
        code, out = run("--judge", "own-endpoint", "--strict", options=at(server))
    assert code == 1
    (skipped,) = map(json.loads, (out / "skipped.jsonl").read_text().splitlines())
    assert skipped["pair_id"] == "pair-2"
    assert skipped["reason"].startswith("rejected, turn 1: cannot be decoded")
    assert len(server.requests) == 10
    assert read(out)["accuracies"]["model"]["num_pairs"]["overall_micro"] == 5
    _, again = run("--judge", "replay", out="again", options=[f"path={out / 'answers.jsonl'}"])
    assert read(again)["skipped"] == read(out)["skipped"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--judge", "own-endpoint", "--judge_options", "modle=x"], "own-endpoint: unknown keys .'modle'."),
        (["--judge", "own-endpoint", "--judge_options", "model"], "give KEY=VALUE"),
        (
            ["--judge", "own-endpoint", "--judge_options", "attempts=0"],
            "attempts is 0: Input should be greater than 0",
        ),
        (["--judge", "own-endpoint", "--dtype", "bfloat16"], "dtype can be set for a model only; give judge_options"),
        (["--model", "m", "--retry_failed"], "retry_failed can be set for a judge only"),
        (
            ["--judge", "own-endpoint", "--judge_options", "orders=ab"],
            "orders is 'ab': Input should be 'both' or 'one'",
        ),
        (["--judge", "own-endpoint", "--judge_options", "backend=fax"], "backend is 'fax'; it must be one of"),
    ],
)
def test_an_invalid_judge_is_refused_before_any_request(run, flags, message, capsys):
    assert check_refused(capsys, message, run, *flags)


@pytest.mark.slow
def test_a_resumed_run_sends_no_answered_question_again(data_folder, tmp_path):
    flags = ["--judge", "own-endpoint", "--dataset", data_folder, "--output_dir", tmp_path / "out", "--no_baselines"]
    with ChatServer(lambda body: Reply(json.dumps(listening(body)), delay_s=0.15)) as server:
        options = ["--judge_options", *at(server, concurrency=2)]
        command = [sys.executable, "-m", "sdiareward.eval", *map(str, flags), "--num_bootstrap", "50", *options]
        process = forked.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(server.requests) < 7:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # The server is still writing to a reader that is gone.
        time.sleep(0.3)
        answered = len(diskcache.Cache(tmp_path / "out" / "cache"))
        server.requests.clear()
        forked.run(command, check=True)
        assert len(server.requests) == 12 - answered
    assert 3 <= answered <= 7
    assert read(tmp_path / "out")["accuracies"]["model"]["overall_micro"] == 1.0
    assert len((tmp_path / "out" / "scores.jsonl").read_text().splitlines()) == 6


def test_pairs_of_the_released_form_are_judged_by_their_subset(tmp_path):
    rows = []
    for row in judge_world.make_pairs().select([0, 4]):
        sides = {
            side: [
                {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
                *(
                    {"role": turn["role"], "content": [{"type": kind, kind: turn[kind]} for kind in ("text", "audio")]}
                    for turn in row[side]
                ),
            ]
            for side in ("chosen", "rejected")
        }
        rows.append({**sides, "category": row["subset"], "source": "somewhere"})
    released = datasets.Dataset.from_list(rows)
    with ChatServer(listening) as server:
        client = ChatClient(EndpointSettings("tiny", server.url, api_key_env=None, concurrency=1), tmp_path / "cache")
        scorer = PairwiseJudge(EndpointBackend(client, attempts=3), tmp_path)
        scores, _ = score_pairs(lambda: scorer, released, describe_pairs(released), tmp_path, {})
    assert [score["margin"] for score in scores.values()] == [2.0, 2.0]
    asked = ["COLLOQUIAL" in request["messages"][0]["content"] for request in server.requests]
    assert asked == [False, False, True, True]
    assert "Be kind." not in json.dumps(server.requests)
