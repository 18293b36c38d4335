import json
import re
from functools import partial

import datasets
import numpy as np
import pytest
import yaml
from support import judge_world
from support.chat_server import ChatServer, Reply
from support.judge_world import always_first, deaf, listening, verdict
from support.refusals import check_refused

from sdiareward import eval as evaluation
from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.errors import UserError
from sdiareward.common.llm import ChatClient, EndpointError
from sdiareward.evaluation.pair_scoring import score_pairs
from sdiareward.judges.settings import JUDGES_FILE, EndpointSettings
from sdiareward.judges.thinker import Generation, Thinker
from sdiareward.judges.wavreward.judge import Judgement, WavRewardJudge
from sdiareward.judges.zero_shot.answers import PROMPTS
from sdiareward.judges.zero_shot.judging import PairwiseJudge, PointwiseJudge, Recorded, ask_endpoint, ask_thinker
from sdiareward.judges.zero_shot.settings import choose_judge
from sdiareward.judges.zero_shot.summary import summarise_judge
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.messages import join_turns
from sdiareward.pairs.prompts import PromptSet


DRAWS = {"num_bootstrap": 50, "seed": 0}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture(scope="module")
def pairs():
    return judge_world.make_pairs()


@pytest.fixture
def judge_with(tmp_path, pairs):
    """Return a function that has `answer` decide the first pairs, and gives their scores and what is said of them."""

    def judge(answer, num_pairs=1, some=None, **more):
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        some = pairs.select(range(num_pairs)) if some is None else some
        labels = describe_pairs(some)
        scores, skipped = score_pairs(lambda: PairwiseJudge(answer, folder, **more), some, labels, folder, {})
        scored = [label for label in labels if label["pair_id"] in scores]
        return scores, skipped, lambda: summarise_judge("j", scored, scores, folder, DRAWS, "both")

    return judge


@pytest.fixture
def ask_server(tmp_path, judge_with):
    """Return a function that has a server judge the first pairs."""

    def ask(server, num_pairs=1, **settings):
        common = {"model": "tiny", "base_url": server.url, "api_key_env": None, "timeout_s": 5.0, "concurrency": 2}
        client = ChatClient(EndpointSettings(**{**common, **settings}), tmp_path / "out" / "cache")
        scores, _, describe = judge_with(partial(ask_endpoint, client, 3), num_pairs, usage=lambda: client.usage)
        return scores, describe

    return ask


def test_a_judge_gets_the_audio_of_both_versions_in_both_orders_without_transcripts(ask_server):
    with ChatServer(listening) as server:
        scores, _ = ask_server(server, 1, concurrency=1)
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
    score = scores["pair-0"]
    assert (score["chosen"], score["margin"], score["decided_by"]) == (4.0, 2.0, "verdict")


@pytest.mark.parametrize(
    ("judge", "margin", "rule", "bias", "agreement", "contradictory"),
    # Of a judge that prefers what it hears first, the scores of one order go against its verdict.
    [
        (listening, 2.0, "verdict", 0.0, 1.0, 0),
        (always_first, 1.0, "scores", 0.5, 0.0, 6),
        (deaf, 0.0, "tie", 0.5, 0.0, 0),
    ],
)
def test_the_summary_reports_decisions_position_bias_and_orders(
    ask_server, judge, margin, rule, bias, agreement, contradictory
):
    with ChatServer(judge) as server:
        scores, describe = ask_server(server, 6)
    found = describe()
    assert {score["margin"] for score in scores.values()} == {margin}
    groups = {"all pairs": 6, "modality": 4, "colloquialness": 2, "wild": 2, "semi_wild": 1, "scripted": 1}
    assert {group["criterion"]: group["num_pairs"] for group in found["groups"]} == groups
    everything = found["groups"][0]
    assert everything["decided_by"] == dict.fromkeys(("verdict", "scores", "tie", "failed"), 0) | {rule: 6}
    assert everything["ties"]["share"] == float(rule == "tie")
    assert (everything["position_bias"]["bias"], everything["order_agreement"]["share"]) == (bias, agreement)
    low, high = everything["position_bias"]["interval"]
    assert low < high and (not bias or 0 < low < high == 0.5)
    shares = [share["share"] for share in everything["one_order"].values()]
    assert shares == ([1.0, 1.0] if rule == "verdict" else [1.0, 0.0])
    assert found["answers"]["contradictory"] == contradictory
    counts = ("num_answers", "num_replies", "prompt_tokens", "completion_tokens")
    assert [found[name] for name in counts] == [12, 12, 1200, 240]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (Reply(refusal="I will not."), "refused"),
        (Reply(finish_reason="content_filter"), "refused"),
        ("I'm sorry, but I can't listen to audio.", "refused"),
        ("Hm.", "unusable"),
        (Reply(status=500, headers={"Retry-After": "0.01"}), "unanswered"),
        (Reply(status=400), "unanswered"),
    ],
)
def test_a_pair_without_a_usable_answer_has_a_status_and_no_reward(ask_server, bad, status):
    # An answer that is a text is asked for three times.
    with ChatServer(*[bad] * (3 if isinstance(bad, str) else 1), listening) as server:
        scores, describe = ask_server(server, 2, max_retries=0, concurrency=1)
    found = describe()
    assert {scores["pair-0"][name] for name in ("chosen", "rejected", "margin")} == {None}
    assert found["groups"][0]["decided_by"] == {"verdict": 1, "scores": 0, "tie": 0, "failed": 1}
    assert (found["answers"][status], found["answers"]["usable"]) == (1, 3)
    (problem,) = found["problems"]
    assert (problem["pair_id"], problem["order"], problem["status"]) == ("pair-0", "chosen_first", status)


def test_answers_are_kept_when_the_endpoint_stops_answering(ask_server):
    with ChatServer(*[listening] * 5, Reply(status=401)) as server, pytest.raises(EndpointError):
        ask_server(server, 6, concurrency=1)
    with ChatServer(listening) as server:
        scores, describe = ask_server(server, 6)
    # Five of twelve answers were in the cache.
    assert (len(server.requests), len(scores)) == (7, 6)
    assert (describe()["sessions"]["cached"], describe()["prompt_tokens"]) == (5, 1200)


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
def test_the_command_line_fills_a_row_of_table_2_with_cost_and_bias_and_a_replay_repeats_it(run, capsys):
    prices = {"usd_per_million_input_tokens": 2.5, "usd_per_million_output_tokens": 10}
    with ChatServer(always_first) as server:
        code, out = run("--judge", "own-endpoint", options=at(server, **prices))
    results, report = read(out), (out / "results.md").read_text()
    assert code == 0
    assert results["accuracies"]["model"]["overall_macro"] == 1.0
    assert results["judge"]["usd"] == pytest.approx((1200 * 2.5 + 240 * 10) / 1e6)
    # Two sides of two turns of a tenth of a second.
    assert results["timing"]["audio_s"] == pytest.approx(6 * 4 * 0.1)
    assert report == capsys.readouterr().out.removesuffix("\n")
    assert report.startswith("# judge own-endpoint on ") and "12 answers (12 usable, 0 refused" in report
    # The pairs, their recordings, and those that the scores decided.
    assert re.search(r"\| all pairs +\| +6 \| +6 \| +6 \|", report)
    assert (results["run"]["judge"], results["run"]["judge_settings"]["model"]) == ("own-endpoint", "tiny")
    assert server.url not in json.dumps(results["run"])
    _, again = run("--judge", "replay", out="again", options=[f"path={out / 'answers.jsonl'}"])
    second = read(again)
    assert len(server.requests) == 12
    assert second["accuracies"] == results["accuracies"]
    assert all(second["judge"][name] == results["judge"][name] for name in ("groups", "answers", "prompt_tokens"))
    assert second["timing"]["real_time_factor"] is None


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
    assert results["run"]["judge_settings"]["orders"] == "one"
    _, again = run("--judge", "replay", out="again", options=[f"path={out / 'answers.jsonl'}", "orders=one"])
    assert read(again)["judge"]["groups"] == results["judge"]["groups"]


def test_a_judge_without_one_usable_answer_has_no_accuracy_but_reasons(run, capsys):
    with ChatServer(Reply(status=200, body='{"error": {"message": "no GPU is free"}}')) as server:
        code, out = run("--judge", "own-endpoint", options=at(server, max_retries=0))
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert "no GPU is free" in printed.err and "no GPU is free" in (out / "results.md").read_text()
    assert not (out / "results.json").exists()
    with ChatServer(listening) as server:
        assert run("--judge", "own-endpoint", "--retry_failed", options=at(server))[0] == 0
    assert read(out)["accuracies"]["model"]["overall_micro"] == 1.0


def test_reasons_and_refused_parameters_are_on_the_page_of_results(run):
    def pick(body):
        if "temperature" in body:
            return Reply(status=400, error="temperature must be 1")
        is_colloquial = judge_world.first_is_low(body)[1] == "colloquialness"
        return Reply(status=400, error="the audio is too long") if is_colloquial else listening(body)

    with ChatServer(pick) as server:
        code, out = run("--judge", "own-endpoint", options=at(server, max_retries=0))
    report = (out / "results.md").read_text()
    assert code == 0
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
        for flags, accuracy, num_more in ((), 5 / 6, 13), ((), 5 / 6, 0), (("--retry_failed",), 1.0, 1):
            asked = len(server.requests)
            _, out = run("--judge", "own-endpoint", *flags, options=at(server, concurrency=1))
            assert read(out)["accuracies"]["model"]["overall_micro"] == accuracy
            # The other order's answer is in the cache.
            assert len(server.requests) == asked + num_more
        judge = read(out)["judge"]
        # Failed answers were paid for, too; that of the cache counts once.
        assert (judge["num_replies"], judge["prompt_tokens"], judge["num_answers"]) == (14, 1400, 12)
    assert len((out / "scores.jsonl").read_text().splitlines()) == 6


def test_a_replay_needs_only_pair_order_and_answer_and_the_later_of_two_counts(tmp_path, judge_with):
    lines = [
        {"pair_id": "pair-0", "order": "chosen_first", "answer": json.dumps(verdict("A", first=4, second=2))},
        {"pair_id": "pair-0", "order": "rejected_first", "answer": "I'm sorry, I can't."},
        {"pair_id": "pair-0", "order": "rejected_first", "answer": json.dumps(verdict("B", first=1, second=5))},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    scores, _, _ = judge_with(Recorded(path))
    assert (scores["pair-0"]["chosen"], scores["pair-0"]["rejected"]) == (4.5, 1.5)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("answers.jsonl", "{", r"answers\.jsonl.*line 1"),
        ("answers.jsonl", "[1]", r"answers\.jsonl.*line 1"),
        ("answers.jsonl", '{"pair_id": "a", "order": "AB", "answer": ""}', r"answers\.jsonl.*line 1"),
        ("answers.jsonl", '{"pair_id": "pair-0", "order": "chosen_first", "answer": "x"}', "pair-0', rejected_first"),
        ("no.jsonl", "", "no such file"),
    ],
)
def test_a_replay_of_an_invalid_or_incomplete_file_is_refused(run, tmp_path, capsys, name, line, message):
    (tmp_path / "answers.jsonl").write_text(line)
    assert check_refused(capsys, message, partial(run, options=[f"path={tmp_path / name}"]), "--judge", "replay")


@pytest.mark.slow
def test_a_folder_refuses_other_settings_but_not_another_way_of_asking(run, capsys):
    with ChatServer(listening) as server:
        run("--judge", "own-endpoint", options=at(server))
        changed = partial(run, options=[*at(server), "temperature=0.5"])
        assert check_refused(capsys, "results of another run .judge_settings was", changed, "--judge", "own-endpoint")
        run("--judge", "own-endpoint", options=[*at(server), "concurrency=1", "timeout_s=9"])
    assert len(server.requests) == 12


def spoil(row, number):
    if row["pair_id"] == f"pair-{number}":
        row["rejected"][1]["audio"] = {"bytes": b"no audio", "path": None}
    return row


@pytest.mark.slow
def test_an_unreadable_turn_skips_its_pair_without_a_request(run, data_folder, pairs):
    pairs.map(partial(spoil, number=2), keep_in_memory=True).to_parquet(data_folder / "test.parquet")
    with ChatServer(listening) as server:
        code, out = run("--judge", "own-endpoint", "--strict", options=at(server))
    assert (code, len(server.requests)) == (1, 10)
    (skipped,) = map(json.loads, (out / "skipped.jsonl").read_text().splitlines())
    assert skipped["pair_id"] == "pair-2"
    assert skipped["reason"].startswith("rejected, turn 1: cannot be decoded")
    assert read(out)["accuracies"]["model"]["num_pairs"]["overall_micro"] == 5
    _, again = run("--judge", "replay", out="again", options=[f"path={out / 'answers.jsonl'}"])
    assert read(again)["skipped"] == read(out)["skipped"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--judge", "own-endpoint", "--judge_options", "modle=x"], "own-endpoint: unknown keys .'modle'."),
        (["--judge", "own-endpoint", "--judge_options", "model"], "KEY=VALUE"),
        (["--judge", "own-endpoint", "--judge_options", "attempts=0"], "attempts is 0"),
        (["--judge", "own-endpoint", "--dtype", "bfloat16"], "dtype can be set for a model only; give judge_options"),
        (["--model", "m", "--retry_failed"], "retry_failed can be set for a judge only"),
        (["--judge", "own-endpoint", "--judge_options", "orders=ab"], "orders is 'ab'"),
        (["--judge", "own-endpoint", "--judge_options", "backend=fax"], "backend is 'fax'; it must be one of"),
    ],
)
def test_an_invalid_judge_is_refused_before_any_request(run, flags, message, capsys):
    assert check_refused(capsys, message, run, *flags)


def test_messages_of_the_released_form_are_heard_without_their_system_turn(tmp_path, pairs):
    row = pairs[0]
    for side in ("chosen", "rejected"):
        turns = [
            {"role": turn["role"], "content": [{"type": kind, kind: turn[kind]} for kind in ("text", "audio")]}
            for turn in row[side]
        ]
        row[side] = [{"role": "system", "content": [{"type": "text", "text": "Be kind."}]}, *turns]
    (_, user), audio_s = PairwiseJudge(None, tmp_path).build_messages([row], 0, "chosen_first", "modality")
    assert len([part for part in user["content"] if part["type"] == "input_audio"]) == 4
    assert audio_s == pytest.approx(0.4) and "Be kind." not in json.dumps(user)


@pytest.fixture(scope="module")
def real_thinker(tiny_judge):
    return Thinker.from_pretrained(tiny_judge, device="cpu", batch_size=4)


class Scripted:
    """A thinker that prepares its conversations as the real one does, and says what a test has it say."""

    def __init__(self, real, say):
        self.processor, self.batch_size, self.say = real.processor, 4, say
        self.batches = []

    def generate(self, conversations, *, max_new_tokens, temperature, seed):
        self.batches.append(len(conversations))
        texts = [self.say(conversation) for conversation in conversations]
        assert all(self.processor.prepare(conversation).clips for conversation in conversations)
        return [[Generation(text, len(text), 0.0, len(text) >= max_new_tokens)] for text in texts]


def ask_with(thinker, attempts=2, max_new_tokens=1000):
    return partial(ask_thinker, thinker, attempts, {"max_new_tokens": max_new_tokens, "temperature": 0.0, "seed": 0})


def test_a_thinker_hears_the_samples_and_decides_pairs_in_batches_of_both_orders(real_thinker, judge_with, tmp_path):
    def listen(conversation):
        criterion = "colloquialness" if "COLLOQUIAL" in conversation[0]["content"] else "modality"
        clip = real_thinker.processor.prepare(conversation).clips[0]
        is_low = (np.diff(np.signbit(clip)) != 0).sum() / 2 / (len(clip) / 16_000) < 550
        return json.dumps(verdict("A", criterion, 4, 2) if is_low else verdict("B", criterion, 2, 4))

    thinker = Scripted(real_thinker, listen)
    scores, _, describe = judge_with(ask_with(thinker), 6)
    found = describe()
    assert [score["margin"] for score in scores.values()] == [2.0] * 6
    assert thinker.batches == [4, 4, 4]
    assert found["answers"]["usable"] == 12
    assert found["prompt_tokens"] > 12 * 100
    assert read(tmp_path / "out", "sessions.jsonl")["audio_s"] == pytest.approx(6 * 4 * 0.1)


def test_a_thinker_is_asked_again_with_the_problem_of_its_answer(real_thinker, judge_with):
    remarks = []

    def learn(conversation):
        if len(conversation) == 2:
            return "<|im_start|>Both are fine."
        remarks.append(conversation[-2:])
        return json.dumps(verdict("A"))

    thinker = Scripted(real_thinker, learn)
    scores, _, describe = judge_with(ask_with(thinker))
    assert scores["pair-0"]["decided_by"] == "tie"
    assert thinker.batches == [2, 2]
    # A control token that the judge spells out is not repeated: the processor would refuse it.
    assert remarks[0][0] == {"role": "assistant", "content": "Both are fine."}
    assert "holds no valid JSON" in remarks[0][1]["content"]
    assert (describe()["num_answers"], describe()["num_replies"]) == (2, 4)


def test_a_pair_fails_after_all_attempts_without_a_verdict_and_a_cut_answer_is_none(real_thinker, pairs, judge_with):
    text = f"So: {json.dumps(verdict('A'))} and"
    answers = iter(["no"] * 4 + [text] * 4 + ["no"] * 4)
    thinker = Scripted(real_thinker, lambda _: next(answers))
    spoiled = pairs.select([0, 1, 2]).map(partial(spoil, number=2))
    scores, skipped, describe = judge_with(ask_with(thinker, 3, len(text)), some=spoiled)
    assert thinker.batches == [4, 4, 4]
    assert {score["margin"] for score in scores.values()} == {None}
    assert [line["pair_id"] for line in skipped] == ["pair-2"]
    with pytest.raises(UserError, match="none of 2 pairs got a usable answer.*no valid JSON"):
        describe()


def test_a_real_thinker_answers_through_transformers(real_thinker, judge_with, tmp_path):
    scores, _, _ = judge_with(ask_with(real_thinker, 1, 4))
    # Its weights are random, so there is no verdict in what it says; that it said it is on record.
    assert scores["pair-0"]["decided_by"] == "failed"
    lines = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert [line["completion_tokens"] for line in lines] == [4, 4]


def options(tiny_judge, **more):
    named = {"path": tiny_judge, "device": "cpu", "dtype": "float32", **more}
    return [f"{name}={value}" for name, value in named.items()]


def test_wavreward_scores_each_side_by_itself(tiny_judge, pairs, tmp_path):
    choice = choose_judge("wavreward", None, options(tiny_judge, max_new_tokens=4, batch_size=2))
    some = pairs.select([0, 1])
    labels = describe_pairs(some)
    scores, _ = score_pairs(lambda: choice.load(tmp_path), some, labels, tmp_path, {})
    judge = WavRewardJudge.from_pretrained(tiny_judge, device="cpu", batch_size=2)
    recording = join_turns([read_audio(turn["audio"]["bytes"]) for turn in pairs[0]["chosen"]])
    (alone,) = judge.judge([recording], expected=True, max_new_tokens=4)
    assert scores["pair-0"]["chosen"] == pytest.approx(alone.expected_score, abs=1e-4)
    assert 1 <= scores["pair-0"]["rejected"] <= 5
    found = choice.describe(labels, scores, tmp_path, **DRAWS)["judge"]
    assert (found["kind"], found["num_answers"]) == ("pointwise", 4)
    assert found["answers"] == {"follow_format": 0, "without_score": 4, "cut": 4}
    assert "no score in the answer" in found["problems"][0]["problem"]
    assert found["groups"][0]["decided_by"]["scores"] == 2
    assert read(tmp_path, "sessions.jsonl")["audio_s"] == pytest.approx(4 * 1.2)


class Grades:
    """A judge of single answers that gives the grades of a test, one after the other."""

    def __init__(self, thinker, *grades):
        self.thinker, self.grades, self.recordings = thinker, list(grades), []

    def judge(self, recordings, **options):
        self.recordings += recordings
        scores = [self.grades.pop(0) for _ in recordings]
        return [Judgement(score, None, (score,), (str(score),), True, 3, 0.0) for score in scores]


def test_scores_alone_tie_and_a_side_without_a_score_has_no_reward(real_thinker, pairs, tmp_path):
    judge = PointwiseJudge(Grades(real_thinker, 5, 3, 3, 3, None, 5), tmp_path, {})
    some = pairs.select([0, 1, 2])
    scores, _ = score_pairs(lambda: judge, some, describe_pairs(some), tmp_path, {})
    found = [(score["margin"], score["decided_by"]) for score in scores.values()]
    assert found == [(2, "scores"), (0, "tie"), (None, "failed")]


def test_the_beginning_of_a_dialogue_that_is_too_long_is_omitted(real_thinker, tmp_path, monkeypatch):
    pairs = judge_world.make_pairs(num_turns=4).select([0])
    grades = Grades(real_thinker, 5, 3)
    # Two turns of a tenth of a second and a second between them fit, three do not.
    monkeypatch.setattr(real_thinker.processor, "max_turn_s", 2.0)
    score_pairs(lambda: PointwiseJudge(grades, tmp_path, {}), pairs, describe_pairs(pairs), tmp_path, {})
    assert [recording.size / 16_000 for recording in grades.recordings] == [1.2, 1.2]


def test_every_judge_of_the_file_can_be_chosen():
    backends = {choose_judge(name).settings.backend for name in yaml.safe_load(JUDGES_FILE.read_text())}
    assert backends == {"endpoint", "thinker", "replay", "wavreward"}


@pytest.mark.parametrize("name", ["qwen2.5-omni-7b", "qwen2.5-omni-7b-pointwise", "gemini-2.5-pro"])
def test_the_identity_of_a_judge_is_its_checkpoint_and_prompts_but_not_its_speed(name, tiny_judge, tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text("judge_modality: Listen well.\nwavreward_task: Louder?\n")
    own = [] if name == "gemini-2.5-pro" else options(tiny_judge, batch_size=3)
    before = choose_judge(name, None, own).identity()["judge_settings"]
    after = choose_judge(name, None, [*own, f"prompt_file={path}"]).identity()["judge_settings"]
    key = "prompt_version" if name.endswith("pointwise") else "prompt_versions"
    assert before[key] != after[key] and {**before, key: after[key]} == after
    assert not {"batch_size", "device", "concurrency", "base_url"} & set(before)
    if own:
        assert before["model"].startswith(f"{tiny_judge} (")
    if key == "prompt_versions":
        assert before[key]["colloquialness"] == after[key]["colloquialness"]


def test_a_judge_is_asked_with_its_own_prompts(tmp_path, pairs):
    own = PromptSet(dict(zip(PROMPTS["modality"], ("Listen well.", "Now?"), strict=True)))
    judge = PairwiseJudge(None, tmp_path, prompts=own)
    (system, user), audio_s = judge.build_messages(pairs, 0, "chosen_first", "modality")
    assert system["content"] == "Listen well." and user["content"][-1]["text"] == "Now?"
    assert audio_s == pytest.approx(0.4)
