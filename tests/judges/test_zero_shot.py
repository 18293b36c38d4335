import dataclasses
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
from support.keys import write_keys
from support.paths import ROOT
from support.refusals import check_refused

from sdiareward import eval as evaluation
from sdiareward.audio_sdiareward import read_audio
from sdiareward.evaluation.scores import score_pairs
from sdiareward.judges.settings import BACKENDS, JUDGES_FILE, EndpointSettings, PairwiseSettings
from sdiareward.judges.thinker import Generation, Thinker
from sdiareward.judges.wavreward.judge import Judgement, WavRewardJudge
from sdiareward.judges.zero_shot import judging
from sdiareward.judges.zero_shot.answers import (
    DIMENSIONS,
    PROMPTS,
    VERDICT_MARGIN,
    Answer,
    Verdict,
    decide,
    is_refusal,
)
from sdiareward.judges.zero_shot.answers import read_text as read_answer
from sdiareward.judges.zero_shot.judging import (
    Judge,
    JudgeSpec,
    choose_judge,
    find_criterion,
    join_side,
    make_comparison,
)
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.messages import join_turns
from sdiareward.pairs.prompts import PromptSet


DRAWS = {"num_bootstrap": 50, "seed": 0}


def test_the_prompts_name_every_key_of_a_valid_answer():
    for criterion, names in DIMENSIONS.items():
        system = PromptSet().fill(PROMPTS[criterion][0])
        form = system[system.index("{") :]
        assert all(f'"{key}"' in form for key in (*names, "scores", "overall_preference", "reason"))
    assert DIMENSIONS == judge_world.DIMENSIONS


def by_version(answer):
    scores = {version: {name: both[version] for name, both in answer["scores"].items()} for version in "AB"}
    return {**answer, "scores": scores}


SAID = json.dumps(verdict("A"))
AROUND, TYPE, WORDS = (
    "text around the JSON",
    "a score that was not of integer type",
    "a preference in other words",
)


@pytest.mark.parametrize(
    ("said", "repair"),
    [
        *((text, AROUND) for text in (f"Here you are:\n{SAID}\nI hope.", f"```json\n{SAID}\n```", f"[{SAID}]")),
        *((verdict("A", first=score), TYPE) for score in ("4", 4.0)),
        *((verdict(preference), WORDS) for preference in ("Version A", "a")),
        (by_version(verdict("A")), "scores by version"),
        ({**verdict("A"), "reason": None}, "no reason"),
        ({key: value for key, value in verdict("A").items() if key != "reason"}, "no reason"),
        (SAID, None),
    ],
)
def test_a_valid_answer_is_parsed_and_clear_errors_of_form_are_repaired_and_recorded(said, repair):
    found = read_answer(said if isinstance(said, str) else json.dumps(said), "modality")
    assert found.repairs == (() if repair is None else (repair,))
    assert (found.preference, found.sum_scores("A"), found.sum_scores("B")) == ("A", 12, 6)
    assert found.reason == ("" if repair == "no reason" else "It is how it sounds.")


def with_scores(**changes):
    return {**verdict("A"), "scores": {**verdict("A")["scores"], **changes}}


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([1], "dictionary"),
        ({"overall_preference": "A", "reason": ""}, "scores"),
        ({"scores": verdict("A")["scores"]}, "overall_preference"),
        (verdict("A", "colloquialness"), "final_turn_content"),
        ({**verdict("A"), "confidence": 0.9}, "confidence"),
        (with_scores(humour={"A": 1, "B": 2}), "humour"),
        (with_scores(final_turn_content={"A": 3}), "final_turn_content.B"),
        ({**verdict("A"), "scores": {"A": 4, "B": 2}}, "scores"),
        *((verdict("A", first=bad), f"A is {bad!r}") for bad in (7, 0, 3.5, True, "four")),
        *((verdict(bad), f"overall_preference is {bad!r}") for bad in ("both", None)),
    ],
)
def test_missing_or_wrong_scores_and_preferences_are_refused(answer, named):
    with pytest.raises(ValueError, match=named):
        read_answer(json.dumps(answer), "modality")


def test_cut_answers_are_refused_and_refusals_recognised_by_their_beginning():
    for text, is_cut in ((SAID[:-20], False), (f"Sure: {SAID} and", True)):
        with pytest.raises(ValueError, match="incomplete|cut off"):
            read_answer(text, "modality", is_cut=is_cut)
    refusals = ["I’m sorry, but I can’t help with that.", "Unfortunately, I am unable to process recordings."]
    refusals += ["As an AI language model, I have no ears.", "I can't compare these."]
    others = ["Version A is better; sorry, B.", "", "A sounds like an AI."]
    assert [text for text in (*refusals, *others) if is_refusal(text)] == refusals


def answer(preference, first, second, dimensions=3):
    """Return a usable answer with the same scores in every dimension."""
    return Answer(Verdict(preference, {f"d{number}": (first, second) for number in range(dimensions)}))


HALF = VERDICT_MARGIN / 2


@pytest.mark.parametrize(
    ("chosen_first", "rejected_first", "expected"),
    [
        # Both name the chosen side: (4 + 5) / 2 against (2 + 1) / 2.
        (answer("A", 4, 2), answer("B", 1, 5), (4.5, 1.5, "verdict")),
        # Both name the rejected side.
        (answer("B", 2, 4), answer("A", 4, 2), (2.0, 4.0, "verdict")),
        # Both name the chosen side, whose scores are lower, or the same: the sign is the verdict's.
        (answer("A", 2, 4), answer("B", 4, 2), (3 + HALF, 3 - HALF, "verdict")),
        (answer("A", 3, 3), answer("B", 3, 3), (3 + HALF, 3 - HALF, "verdict")),
        (answer("B", 3, 3), answer("A", 3, 3), (3 - HALF, 3 + HALF, "verdict")),
        # They name different sides: the scores decide, or nothing does.
        (answer("A", 4, 2), answer("A", 3, 3), (3.5, 2.5, "scores")),
        (answer("A", 4, 2), answer("A", 4, 2), (3.0, 3.0, "tie")),
        (answer("B", 2, 3), answer("B", 2, 4), (3.0, 2.5, "scores")),
        (answer("A", 4, 2), Answer(None, "I cannot.", "refused", "refused"), (None, None, "failed")),
        # The smallest difference of scores is larger than the margin of a verdict.
        (
            Answer(Verdict("A", {f"d{number}": (3, 3) for number in range(4)} | {"d4": (4, 3)})),
            answer("A", 3, 3, 5),
            (3.1, 3.0, "scores"),
        ),
    ],
)
def test_the_verdict_decides_if_both_orders_agree_else_the_scores(chosen_first, rejected_first, expected):
    found = decide({"chosen_first": chosen_first, "rejected_first": rejected_first})
    assert (found["chosen"], found["rejected"], found["decided_by"]) == pytest.approx(expected)
    assert found["margin"] == (None if expected[0] is None else pytest.approx(expected[0] - expected[1]))


def test_the_subset_decides_the_criterion_of_a_pair_of_the_released_form():
    labels = [("modality", "wild"), ("colloquialness", "wild"), ("joint", "scripted"), ("joint", "colloquialness")]
    found = [find_criterion({"criterion": criterion, "subset": subset}) for criterion, subset in labels]
    assert found == ["modality", "colloquialness", "modality", "colloquialness"]


def test_the_guide_lists_every_judge_and_setting_and_its_python_runs():
    guide = (ROOT / "docs" / "judges.md").read_text()
    fields = {field.name for backend in BACKENDS.values() for field in dataclasses.fields(backend)}
    judges = yaml.safe_load(JUDGES_FILE.read_text())
    assert {choose_judge(name).settings.backend for name in judges} == {*BACKENDS}
    names = {*judges, *fields}
    assert [name for name in names if f"`{name}`" not in guide] == []
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    found = {}
    exec(compile(example, "judges.md", "exec"), found)
    assert found["found"]["decided_by"] == "tie"


@pytest.fixture(scope="module")
def pairs():
    return judge_world.make_pairs()


@pytest.fixture
def decide_with(tmp_path, pairs):
    """Return a function that has a judge decide the first pairs, and gives their scores and what is said of them."""

    def run(judge, num_pairs=1, some=None):
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        some = pairs.select(range(num_pairs)) if some is None else some
        labels = describe_pairs(some)
        spec = judge if isinstance(judge, JudgeSpec) else JudgeSpec("j", EndpointSettings(model="m"))
        load = partial(spec.load, folder) if judge is spec else partial(judge, folder)
        scores, skipped = score_pairs(load, some, labels, folder, {})
        scored = [label for label in labels if label["pair_id"] in scores]
        return scores, skipped, lambda: spec.describe(scored, scores, folder, **DRAWS)["judge"]

    return run


@pytest.fixture
def ask_server(decide_with):
    """Return a function that has a server judge the first pairs."""

    def ask(server, num_pairs=1, **settings):
        common = {"model": "tiny", "base_url": server.url, "api_key_env": None, "timeout_s": 5.0, "concurrency": 1}
        spec = JudgeSpec("tiny", EndpointSettings(**{**common, "attempts": 3, "max_retries": 0, **settings}))
        scores, _, describe = decide_with(spec, num_pairs)
        return scores, describe

    return ask


def test_a_judge_gets_the_audio_of_both_versions_in_both_orders_without_transcripts(ask_server):
    with ChatServer(listening) as server:
        scores, _ = ask_server(server)
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
        *[(listening, 2.0, "verdict", 0.0, 1.0, 0), (always_first, 1.0, "scores", 0.5, 0.0, 6)],
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


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (Reply(refusal="I will not."), "refused"),
        ("I'm sorry, but I can't listen to audio.", "refused"),
        ("Hm.", "unusable"),
        (Reply(status=500, headers={"Retry-After": "0.01"}), "unanswered"),
    ],
)
def test_a_pair_without_a_usable_answer_has_a_status_and_no_reward(ask_server, bad, status):
    # An answer that is a text is asked for three times.
    with ChatServer(*[bad] * (3 if isinstance(bad, str) else 1), listening) as server:
        scores, describe = ask_server(server, 2)
    found = describe()
    assert {scores["pair-0"][name] for name in ("chosen", "rejected", "margin")} == {None}
    assert found["groups"][0]["decided_by"] == {"verdict": 1, "scores": 0, "tie": 0, "failed": 1}
    assert (found["answers"][status], found["answers"]["usable"]) == (1, 3)
    (problem,) = found["problems"]
    assert (problem["pair_id"], problem["order"], problem["status"]) == ("pair-0", "chosen_first", status)


@pytest.fixture
def run(tmp_path, pairs, monkeypatch):
    """Return a function that runs the command line on the six pairs, and gives its exit code and folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    pairs.to_parquet(tmp_path / "pairs.parquet")

    def run(*flags, judge="own-endpoint", out="out", options=(), **keys):
        required = ["--dataset", tmp_path / "pairs.parquet", "--output_dir", tmp_path / out, "--no_baselines"]
        chosen = ["--judge", judge, *(["--judge_options", *options] if options else [])]
        return evaluation.main(
            [str(flag) for flag in (*required, *write_keys(tmp_path, num_bootstrap=50, **keys), *flags, *chosen)]
        ), tmp_path / out

    return run


def at(server, **more):
    return [f"base_url={server.url}", "model=tiny", *(f"{name}={value}" for name, value in more.items())]


def read(folder, name="results.json"):
    return json.loads((folder / name).read_text())


@pytest.mark.slow
def test_the_command_line_fills_a_row_of_table_2_with_cost_and_bias_and_a_replay_repeats_it(run, capsys):
    prices = {"usd_per_million_input_tokens": 2.5, "usd_per_million_output_tokens": 10}
    with ChatServer(always_first) as server:
        code, out = run(options=at(server, **prices))
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
    _, again = run("--report", judge="replay", out="again", options=[f"path={out / 'answers.jsonl'}"])
    second = read(again)
    assert len(server.requests) == 12
    assert second["accuracies"] == results["accuracies"]
    assert all(second["judge"][name] == results["judge"][name] for name in ("groups", "answers", "prompt_tokens"))
    assert second["timing"]["real_time_factor"] is None
    assert "position bias" in (again / "report" / "index.html").read_text()


@pytest.mark.slow
def test_refused_parameters_are_reported_and_a_failed_pair_counts_as_wrong_until_it_is_retried(run, capsys):
    def pick(body):
        if "temperature" in body:
            return Reply(status=400, error="temperature must be 1")
        is_colloquial = judge_world.first_is_low(body)[1] == "colloquialness"
        return Reply(status=400, error="the audio is too long") if is_colloquial else listening(body)

    with ChatServer(pick) as server:
        code, out = run(options=at(server, max_retries=0, concurrency=1))
        assert len(server.requests) == 13
        assert run(options=at(server, timeout_s=9))[0] == 0 and len(server.requests) == 13
        changed = partial(run, options=[*at(server), "temperature=0.5"])
        assert check_refused(capsys, "results of another run .judge_settings was", changed)
    report = (out / "results.md").read_text()
    assert code == 0
    assert "the audio is too long" in report and "`temperature` was refused by the endpoint and omitted" in report
    (row,) = [line for line in report.splitlines() if line.startswith("| judge ")]
    # Three subsets, their averages, the subset without an answer, and the averages over all.
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [*["100.00"] * 5, "-", "66.67", "-"]
    with ChatServer(listening) as server:
        assert run(options=at(server), retry_failed=True)[0] == 0
    assert len(server.requests) == 4
    judge = read(out)["judge"]
    assert read(out)["accuracies"]["model"]["overall_micro"] == 1.0
    assert (judge["num_answers"], judge["answers"]["usable"], judge["prompt_tokens"]) == (12, 12, 1200)


def test_a_judge_asked_in_one_order_hears_each_side_first_about_as_often_and_may_read_the_words(ask_server):
    with ChatServer(listening) as server:
        scores, describe = ask_server(server, 6, orders="one", transcripts=True)
    everything = describe()["groups"][0]
    assert (len(server.requests), describe()["num_answers"]) == (6, 6)
    assert {score["margin"] for score in scores.values()} == {2.0}
    counts = [share["num_values"] for share in everything["one_order"].values()]
    assert sum(counts) == 6 and min(counts) > 0
    assert everything["order_agreement"]["share"] is None
    asked = [json.dumps(body) for body in server.requests]
    assert all("secret chosen" in words and "secret rejected" in words for words in asked)


def spoil(row, number):
    if row["pair_id"] == f"pair-{number}":
        row["rejected"][1]["audio"] = {"bytes": b"no audio", "path": None}
    return row


def test_a_judge_without_a_usable_answer_has_no_accuracy_but_reasons_and_unreadable_pairs_are_skipped(
    run, tmp_path, pairs, capsys
):
    pairs.map(partial(spoil, number=2), keep_in_memory=True).to_parquet(tmp_path / "pairs.parquet")
    with ChatServer(Reply(status=200, body='{"error": {"message": "no GPU is free"}}')) as server:
        code, out = run(options=at(server, max_retries=0))
    printed = capsys.readouterr()
    assert (code, printed.out, len(server.requests)) == (2, "", 10)
    assert "no GPU is free" in printed.err and "no GPU is free" in (out / "results.md").read_text()
    assert not (out / "results.json").exists()
    (skipped,) = map(json.loads, (out / "skipped.jsonl").read_text().splitlines())
    assert skipped["pair_id"] == "pair-2" and skipped["reason"].startswith("rejected, turn 1: cannot be decoded")
    with ChatServer(listening) as server:
        assert run("--strict", options=at(server), retry_failed=True)[0] == 1
    micro = read(out)["accuracies"]["model"]
    assert (micro["overall_micro"], micro["num_pairs"]["overall_micro"]) == (1.0, 5)


def test_a_replay_needs_only_pair_order_and_answer_and_the_later_of_two_counts(tmp_path, decide_with):
    lines = [
        {"pair_id": "pair-0", "order": "chosen_first", "answer": json.dumps(verdict("A", first=4, second=2))},
        {"pair_id": "pair-0", "order": "rejected_first", "answer": "I'm sorry, I can't."},
        {"pair_id": "pair-0", "order": "rejected_first", "answer": json.dumps(verdict("B", first=1, second=5))},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    scores, _, _ = decide_with(choose_judge("replay", None, [f"path={path}"]))
    assert (scores["pair-0"]["chosen"], scores["pair-0"]["rejected"]) == (4.5, 1.5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((line, r"answers\.jsonl.*line 1") for line in ("{", "[1]", '{"pair_id": "a", "order": "AB", "answer": ""}')),
        ('{"pair_id": "pair-0", "order": "chosen_first", "answer": "x"}', "pair-0', rejected_first"),
        (None, "No such file"),
    ],
)
def test_a_replay_of_an_invalid_or_incomplete_file_is_refused(decide_with, tmp_path, line, message):
    if line is not None:
        (tmp_path / "answers.jsonl").write_text(line)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        decide_with(choose_judge("replay", None, [f"path={tmp_path / 'answers.jsonl'}"]))


def test_an_invalid_judge_is_refused():
    for option, message in {
        "modle=x": "own-endpoint: unknown keys .'modle'.",
        "model": "KEY=VALUE",
        "attempts=0": "attempts is 0",
        "orders=ab": "orders is 'ab'",
        "backend=fax": "backend is 'fax'; it must be one of",
    }.items():
        with pytest.raises(ValueError, match=message):
            choose_judge("own-endpoint", None, [option])


def test_options_of_a_model_for_a_judge_and_the_other_way_round_are_refused(tmp_path, capsys):
    for flags, message in (
        (["--judge", "own-endpoint", "--dtype", "bfloat16"], "dtype can be set for a model only; give judge_options"),
        (["--model", "m", *write_keys(tmp_path, retry_failed=True)], "retry_failed can be set for a judge only"),
    ):
        required = ["--dataset", str(tmp_path), "--output_dir", str(tmp_path / "out")]
        assert check_refused(capsys, message, evaluation.main, [*required, *flags])


def test_messages_of_the_released_form_are_heard_without_their_system_turn_by_a_judge_with_custom_prompts(pairs):
    row = pairs[0]
    for side in ("chosen", "rejected"):
        turns = [
            {"role": turn["role"], "content": [{"type": kind, kind: turn[kind]} for kind in ("text", "audio")]}
            for turn in row[side]
        ]
        row[side] = [{"role": "system", "content": [{"type": "text", "text": "Be kind."}]}, *turns]
    own = PromptSet(dict(zip(PROMPTS["modality"], ("Listen well.", "Now?"), strict=True)))
    (system, user), audio_s = make_comparison(PairwiseSettings(orders="one"), own, row, "chosen_first", "modality")
    assert system["content"] == "Listen well." and user["content"][-1]["text"] == "Now?"
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


def judge_by(thinker, attempts=2, max_new_tokens=1000):
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "seed": 0}
    build = partial(make_comparison, PairwiseSettings(), PromptSet())
    return lambda folder: Judge(partial(judging.ask_thinker, thinker, attempts, sampling), folder, build)


def test_a_thinker_hears_the_samples_and_decides_pairs_in_batches_of_both_orders(real_thinker, decide_with, tmp_path):
    def listen(conversation):
        criterion = "colloquialness" if "COLLOQUIAL" in conversation[0]["content"] else "modality"
        clip = real_thinker.processor.prepare(conversation).clips[0]
        is_low = (np.diff(np.signbit(clip)) != 0).sum() / 2 / (len(clip) / 16_000) < 550
        return json.dumps(verdict("A", criterion, 4, 2) if is_low else verdict("B", criterion, 2, 4))

    thinker = Scripted(real_thinker, listen)
    scores, _, describe = decide_with(judge_by(thinker), 6)
    assert [score["margin"] for score in scores.values()] == [2.0] * 6
    assert thinker.batches == [4, 4, 4]
    assert describe()["answers"]["usable"] == 12
    assert describe()["prompt_tokens"] > 12 * 100
    assert read(tmp_path / "out", "sessions.jsonl")["audio_s"] == pytest.approx(6 * 4 * 0.1)


def test_a_thinker_is_asked_again_with_the_problem_and_a_pair_fails_after_all_attempts(
    real_thinker, pairs, decide_with
):
    text, remarks = f"So: {json.dumps(verdict('A'))} and", []
    # A control token that the judge spells out is not repeated: the processor would refuse it.
    answers = iter(["<|im_start|>Both are fine."] * 4 + [text] * 4 + ["no"] * 2 + [json.dumps(verdict("A"))] * 2)

    def learn(conversation):
        remarks.append(conversation[-2:])
        return next(answers)

    thinker = Scripted(real_thinker, learn)
    spoiled = pairs.select([0, 1, 2]).map(partial(spoil, number=2))
    scores, skipped, describe = decide_with(judge_by(thinker, 3, len(text)), some=spoiled)
    assert thinker.batches == [4, 4, 4]
    assert remarks[4][0] == {"role": "assistant", "content": "Both are fine."}
    assert "has no valid JSON" in remarks[4][1]["content"] and "cut off" in remarks[8][1]["content"]
    assert [score["decided_by"] for score in scores.values()] == ["failed", "tie"]
    assert [line["pair_id"] for line in skipped] == ["pair-2"]
    assert (describe()["num_answers"], describe()["num_replies"], describe()["answers"]["unusable"]) == (4, 12, 2)


def options(tiny_judge, **more):
    return [
        f"{name}={value}" for name, value in {"path": tiny_judge, "device": "cpu", "dtype": "float32", **more}.items()
    ]


def test_a_real_thinker_and_a_real_wavreward_answer_through_transformers(tiny_judge, decide_with, pairs, tmp_path):
    thinker = choose_judge("qwen2.5-omni-7b", None, options(tiny_judge, max_new_tokens=4, attempts=1))
    scores, _, _ = decide_with(thinker)
    # Its weights are random, so there is no verdict in what it says; that it said it is on record.
    assert scores["pair-0"]["decided_by"] == "failed"
    lines = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert [line["completion_tokens"] for line in lines] == [4, 4]
    for path in (tmp_path / "out").iterdir():
        path.rename(tmp_path / path.name)
    wavreward = choose_judge("wavreward", None, options(tiny_judge, max_new_tokens=4, batch_size=2))
    scores, _, describe = decide_with(wavreward, 2)
    judge = WavRewardJudge.from_pretrained(tiny_judge, device="cpu", batch_size=2)
    recording = join_turns([read_audio(turn["audio"]["bytes"]) for turn in pairs[0]["chosen"]])
    (alone,) = judge.judge([recording], expected=True, max_new_tokens=4)
    assert scores["pair-0"]["chosen"] == pytest.approx(alone.expected_score, abs=1e-4)
    assert 1 <= scores["pair-0"]["rejected"] <= 5
    found = describe()
    assert (found["kind"], found["num_answers"]) == ("pointwise", 4)
    assert found["answers"] == {"follow_format": 0, "without_score": 4, "cut": 4}
    assert "no score in the answer" in found["problems"][0]["problem"]
    assert found["groups"][0]["decided_by"]["scores"] == 2
    assert read(tmp_path / "out", "sessions.jsonl")["audio_s"] == pytest.approx(4 * 1.2)


class Grades:
    """A judge of single answers that gives the grades of a test, one after the other."""

    def __init__(self, thinker, *grades):
        self.thinker, self.grades, self.recordings = thinker, list(grades), []

    def judge(self, recordings, **options):
        self.recordings += recordings
        scores = [self.grades.pop(0) for _ in recordings]
        return [Judgement(score, None, (score,), (str(score),), True, 3, 0.0) for score in scores]


def test_scores_alone_tie_a_side_without_a_score_has_no_reward_and_a_long_one_loses_its_beginning(
    real_thinker, decide_with
):
    ask = partial(judging.ask_wavreward, Grades(real_thinker, 5, 3, 3, 3, None, 5), {})
    scores, _, _ = decide_with(lambda folder: Judge(ask, folder, partial(join_side, 30.0, 60.0), None), 3)
    found = [(score["margin"], score["decided_by"]) for score in scores.values()]
    assert found == [(2, "scores"), (0, "tie"), (None, "failed")]
    # Two turns of a tenth of a second and a second between them fit, three do not.
    recording, audio_s = join_side(30.0, 2.0, judge_world.make_pairs(num_turns=4)[0], "chosen", "modality")
    assert recording.size / 16_000 == audio_s == 1.2


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
