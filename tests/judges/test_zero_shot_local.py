import json

import numpy as np
import pytest
from support import judge_world
from support.judge_world import verdict

from sdiareward.evaluation.pair_scoring import score_pairs
from sdiareward.judges.settings import JUDGES_FILE
from sdiareward.judges.thinker import Generation, Thinker
from sdiareward.judges.wavreward.judge import Judgement, WavRewardJudge
from sdiareward.judges.zero_shot.judging import PairwiseJudge, PointwiseJudge, ThinkerBackend
from sdiareward.judges.zero_shot.settings import choose_judge
from sdiareward.judges.zero_shot.summary import summarise_pairwise
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.messages import join_turns


DRAWS = {"num_bootstrap": 50, "seed": 0}


@pytest.fixture(scope="module")
def pairs():
    return judge_world.make_pairs()


@pytest.fixture(scope="module")
def real_thinker(tiny_judge):
    return Thinker.from_pretrained(tiny_judge, device="cpu", batch_size=4)


class Scripted:
    """A thinker that prepares its conversations as the real one does, and says what a test has it say."""

    def __init__(self, real, say, batch_size=4):
        self.processor, self.batch_size, self.say = real.processor, batch_size, say
        self.batches = []

    def generate(self, conversations, *, max_new_tokens, temperature, seed):
        self.batches.append(len(conversations))
        texts = [self.say(conversation) for conversation in conversations]
        assert all(self.processor.prepare(conversation).clips for conversation in conversations)
        return [[Generation(text, len(text), 0.0, len(text) >= max_new_tokens)] for text in texts]


def judge_with(thinker, pairs, folder, attempts=2, max_new_tokens=1000):
    folder.mkdir(exist_ok=True)
    labels = describe_pairs(pairs)
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "seed": 0}
    backend = ThinkerBackend(thinker, attempts, sampling)
    scores, skipped = score_pairs(lambda: PairwiseJudge(backend, folder), pairs, labels, folder, {})
    scored = [label for label in labels if label["pair_id"] in scores]
    return scores, skipped, summarise_pairwise(scored, scores, folder, DRAWS)


def is_low_first(real, conversation):
    """Return whether the first recording is the low one, by the samples that the thinker would hear."""
    clip = real.processor.prepare(conversation).clips[0]
    return (np.diff(np.signbit(clip)) != 0).sum() / 2 / (len(clip) / 16_000) < 550


def test_a_thinker_decides_pairs_by_its_verdicts(real_thinker, pairs, tmp_path):
    def listen(conversation):
        criterion = "colloquialness" if "COLLOQUIAL" in conversation[0]["content"] else "modality"
        is_low = is_low_first(real_thinker, conversation)
        return json.dumps(verdict("A", criterion, 4, 2) if is_low else verdict("B", criterion, 2, 4))

    thinker = Scripted(real_thinker, listen)
    scores, _, found = judge_with(thinker, pairs, tmp_path / "out")
    assert [score["margin"] for score in scores.values()] == [2.0] * 6
    # Both orders of two pairs at a time.
    assert thinker.batches == [4, 4, 4]
    assert found["answers"]["usable"] == 12
    assert found["prompt_tokens"] > 12 * 100
    assert json.loads((tmp_path / "out" / "sessions.jsonl").read_text())["audio_s"] == pytest.approx(6 * 4 * 0.1)


def test_a_thinker_is_asked_again_with_the_problem_of_its_answer(real_thinker, pairs, tmp_path):
    remarks = []

    def learn(conversation):
        if len(conversation) == 2:
            return "<|im_start|>Both are fine."
        remarks.append(conversation[-2:])
        return json.dumps(verdict("A"))

    thinker = Scripted(real_thinker, learn)
    scores, _, found = judge_with(thinker, pairs.select([0]), tmp_path / "out")
    assert scores["pair-0"]["decided_by"] == "tie"
    assert thinker.batches == [2, 2]
    # A control token that the judge spells out is not repeated: the processor would refuse it.
    assert remarks[0][0] == {"role": "assistant", "content": "Both are fine."}
    assert "holds no valid JSON" in remarks[0][1]["content"]
    assert (found["num_answers"], found["num_replies"]) == (2, 4)


def test_a_pair_fails_after_all_attempts_without_a_verdict(real_thinker, pairs, tmp_path):
    thinker = Scripted(real_thinker, lambda _: "no")
    scores, _, found = judge_with(thinker, pairs.select([0, 1]), tmp_path / "out", attempts=3)
    assert thinker.batches == [4, 4, 4]
    assert {score["margin"] for score in scores.values()} == {None}
    assert found["answers"]["unusable"] == 4
    assert found["groups"][0]["position_bias"]["bias"] is None
    assert found["groups"][0]["ties"]["share"] == 0.0


def test_an_answer_at_the_token_limit_is_incomplete(real_thinker, pairs, tmp_path):
    text = f"So: {json.dumps(verdict('A'))} and"
    _, _, found = judge_with(
        Scripted(real_thinker, lambda _: text), pairs.select([0]), tmp_path / "out", max_new_tokens=len(text)
    )
    assert found["answers"]["unusable"] == 2
    assert "cut off" in found["problems"][0]["problem"]


def test_an_unreadable_turn_skips_its_pair_only(real_thinker, pairs, tmp_path):
    def spoil(row):
        if row["pair_id"] == "pair-0":
            row["chosen"][0]["audio"] = {"bytes": b"no audio", "path": None}
        return row

    thinker = Scripted(real_thinker, lambda _: json.dumps(verdict("A")))
    scores, skipped, _ = judge_with(thinker, pairs.select([0, 1]).map(spoil), tmp_path / "out")
    assert list(scores) == ["pair-1"]
    assert skipped[0]["reason"].startswith("chosen, turn 0: cannot be decoded")


def test_a_real_thinker_answers_through_transformers(real_thinker, pairs, tmp_path):
    scores, _, found = judge_with(real_thinker, pairs.select([0]), tmp_path / "out", attempts=1, max_new_tokens=4)
    # Its weights are random, so there is no verdict in what it says; that it said it is on record.
    assert scores["pair-0"]["decided_by"] == "failed"
    lines = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["unusable", "unusable"]
    assert [line["completion_tokens"] for line in lines] == [4, 4]
    assert found["completion_tokens"] == 8


def options(tiny_judge, **more):
    return [f"path={tiny_judge}", "device=cpu", *(f"{name}={value}" for name, value in more.items())]


def test_wavreward_scores_each_side_by_itself(tiny_judge, pairs, tmp_path):
    choice = choose_judge("wavreward", None, options(tiny_judge, max_new_tokens=4, batch_size=2))
    labels = describe_pairs(pairs.select([0, 1]))
    scores, _ = score_pairs(lambda: choice.load(tmp_path), pairs.select([0, 1]), labels, tmp_path, {})
    judge = WavRewardJudge.from_pretrained(tiny_judge, device="cpu", batch_size=2)
    side = pairs[0]["chosen"]
    recording = join_turns([read(turn["audio"]["bytes"]) for turn in side])
    (alone,) = judge.judge([recording], expected=True, max_new_tokens=4)
    assert scores["pair-0"]["chosen"] == pytest.approx(alone.expected_score, abs=1e-4)
    assert 1 <= scores["pair-0"]["rejected"] <= 5
    found = choice.describe(labels, scores, tmp_path, **DRAWS)["judge"]
    assert (found["kind"], found["num_answers"]) == ("pointwise", 4)
    assert found["answers"] == {"follow_format": 0, "without_score": 4, "cut": 4}
    assert "no score in the answer" in found["problems"][0]["problem"]
    assert found["groups"][0]["decided_by"]["scores"] == 2
    assert json.loads((tmp_path / "sessions.jsonl").read_text())["audio_s"] == pytest.approx(4 * 1.2)


def read(data):
    from sdiareward.audio_sdiareward import read_audio

    return read_audio(data)


def judgement(score, expected_score=None):
    return Judgement(score, expected_score, (score,), (str(score),), True, 3, 0.0)


class Grades:
    """A judge of single answers that gives the grades of a test, one after the other."""

    def __init__(self, thinker, *grades):
        self.thinker, self.grades, self.recordings = thinker, list(grades), []

    def judge(self, recordings, **options):
        self.recordings += recordings
        return [self.grades.pop(0) for _ in recordings]


def test_scores_alone_tie_and_a_side_without_a_score_has_no_reward(real_thinker, pairs, tmp_path):
    grades = [judgement(5), judgement(3), judgement(3), judgement(3), judgement(None), judgement(5)]
    judge = PointwiseJudge(Grades(real_thinker, *grades), tmp_path, {})
    some = pairs.select([0, 1, 2])
    scores, _ = score_pairs(lambda: judge, some, describe_pairs(some), tmp_path, {})
    found = [(score["margin"], score["decided_by"]) for score in scores.values()]
    assert found == [(2, "scores"), (0, "tie"), (None, "failed")]


def test_the_beginning_of_a_dialogue_that_is_too_long_is_omitted(real_thinker, tmp_path):
    pairs = judge_world.make_pairs(num_turns=4).select([0])
    grades = Grades(real_thinker, judgement(5), judgement(3))
    limit = real_thinker.processor.max_turn_s
    try:
        # Two turns of a tenth of a second and a second between them fit, three do not.
        real_thinker.processor.max_turn_s = 2.0
        score_pairs(lambda: PointwiseJudge(grades, tmp_path, {}), pairs, describe_pairs(pairs), tmp_path, {})
    finally:
        real_thinker.processor.max_turn_s = limit
    assert [recording.size / 16_000 for recording in grades.recordings] == [1.2, 1.2]


def test_every_judge_of_the_file_can_be_chosen():
    import yaml

    entries = yaml.safe_load(JUDGES_FILE.read_text())
    backends = {choose_judge(name).settings.backend for name in entries}
    assert backends == {"endpoint", "thinker", "replay", "wavreward"}


def test_the_identity_of_a_local_judge_is_its_checkpoint_and_prompt(tiny_judge):
    choice = choose_judge("qwen2.5-omni-7b", None, options(tiny_judge, batch_size=3))
    identity = choice.identity()["judge_settings"]
    assert identity["model"].startswith(f"{tiny_judge} (")
    assert set(identity["prompt_versions"]) == {"modality", "colloquialness"}
    assert identity["orders"] == "both"
    assert not {"batch_size", "device"} & set(identity)


@pytest.mark.parametrize("name", ["qwen2.5-omni-7b", "qwen2.5-omni-7b-pointwise", "gemini-2.5-pro"])
def test_other_prompts_are_another_identity(name, tiny_judge, tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text("judge_modality: Listen well.\nwavreward_task: Louder?\n")
    own = [] if name == "gemini-2.5-pro" else options(tiny_judge)
    before = choose_judge(name, None, own).identity()
    after = choose_judge(name, None, [*own, f"prompt_file={path}"]).identity()
    key = "prompt_version" if name.endswith("pointwise") else "prompt_versions"
    changed = {key: after["judge_settings"][key]}
    assert before != after
    assert {**before["judge_settings"], **changed} == after["judge_settings"]
    if key == "prompt_versions":
        found = before["judge_settings"][key]
        assert changed[key]["modality"] != found["modality"]
        assert changed[key]["colloquialness"] == found["colloquialness"]


def test_a_judge_is_asked_with_its_own_prompts(tmp_path, pairs):
    from sdiareward.judges.zero_shot.answers import PROMPTS
    from sdiareward.judges.zero_shot.judging import Question
    from sdiareward.pairs.prompts import PromptSet

    names = PROMPTS["modality"]
    own = PromptSet({names[0]: "Listen well.", names[1]: "Now?"})
    question = Question("p", "chosen_first", "modality", lambda: pairs[0], prompts=own)
    (system, user), _ = question.build_messages()
    assert system["content"] == "Listen well." and user["content"][-1]["text"] == "Now?"
