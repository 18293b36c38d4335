"""Targets that parse answers of language models and judges: anything in place of the requested JSON or score."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

from fuzz.running import Target, World
from fuzz.values import changed, damaged_texts, json_texts, texts
from hypothesis import strategies as st

from sdiareward.dataset_builder.pairing import annotation, filtering
from sdiareward.dataset_builder.recipes.chatreward import scenarios, scenarios_by_llm
from sdiareward.dataset_builder.sources import scripts_by_llm
from sdiareward.judges.wavreward import reasoning_quality
from sdiareward.judges.wavreward.answers import SCORES, follows_format, parse_score, parse_thoughts
from sdiareward.judges.zero_shot.answers import VERSIONS, is_refusal, read_text, read_verdict
from sdiareward.judges.zero_shot.backends import ReplayBackend
from sdiareward.judges.zero_shot.prompts import DIMENSIONS
from sdiareward.common.llm.client import ChatClient, ChatSettings
from sdiareward.common.llm.json_parsing import parse_json


_CRITERIA = ("modality", "colloquialness")
_VERDICTS = [
    {
        "scores": {name: {"A": 4, "B": 2} for name in DIMENSIONS[criterion]},
        "overall_preference": "A",
        "reason": "A is livelier.",
    }
    for criterion in _CRITERIA
]
_SCORE_ANSWERS = (
    "<think>It fits.</think><score>5</score>",
    "<think>\nThe voice is sad.\n</think>\n<score> 3 </score>",
    "Score: 4/5",
    '{"score": "2"}',
    "I'd give a rating of **3**.",
    "<think><score>5</score>",
    "3.5/5 4 / 5",
)
# Pieces of answers that may be slow to parse.
_PIECES = (
    *("score", "rating", " ", "\n", "*", '"', "1", "55", "/", "/5", ".", "is", "="),
    *("<score>", "</score>", "<think>", "</think>"),
)
_BRACKETS = (
    "{",
    "}",
    "[",
    "]",
    '"',
    ":",
    ",",
    " ",
    "1",
    "-",
    "e",
    "null",
    "NaN",
    "```json\n",
    "```",
    "\\",
    '{"a": 1}',
)


@st.composite
def pieced(draw: Any, pieces: tuple[str, ...]) -> str:
    """Return concatenated pieces, some repeated many times."""
    chosen = draw(st.lists(st.tuples(st.sampled_from(pieces), st.sampled_from((1, 1, 2, 50, 3000))), max_size=8))
    return "".join(piece * count for piece, count in chosen)[:100_000]


def _as_answer(text: str) -> Any:
    return st.sampled_from(("{}", "Sure:\n```json\n{}\n```", "{} and {{", "I think {}.")).map(
        lambda form: form.replace("{}", text)
    )


def _json_answers(_: World) -> st.SearchStrategy[str]:
    good = st.sampled_from(_VERDICTS).flatmap(json_texts).flatmap(_as_answer)
    return good | pieced(_BRACKETS) | texts()


def _parse_json(world: World, text: str) -> None:
    value = parse_json(text, is_cut=len(text) % 5 == 0)
    assert isinstance(value, (dict, list))


def _read_verdict(world: World, text: str) -> None:
    is_refusal(text)
    for criterion in _CRITERIA:
        try:
            verdict = read_text(text, criterion)
        except ValueError:
            continue
        assert verdict.preference in VERSIONS
        assert all(1 <= score <= 5 for both in verdict.scores.values() for score in both)
        assert set(verdict.scores) == set(DIMENSIONS[criterion])
        verdict.is_contradictory  # noqa: B018 (computed)


def _read_value(world: World, case: tuple[int, Any]) -> None:
    number, answer = case
    verdict = read_verdict(answer, _CRITERIA[number])
    assert all(type(score) is int and 1 <= score <= 5 for both in verdict.scores.values() for score in both)


def _verdict_values(_: World) -> st.SearchStrategy[tuple[int, Any]]:
    return st.integers(0, 1).flatmap(lambda number: st.tuples(st.just(number), changed(_VERDICTS[number])))


def _parse_score(world: World, text: str) -> None:
    assert parse_score(text) in (None, *SCORES)
    parse_thoughts(text)
    for reasoning in (True, False):
        if follows_format(text, reasoning):
            assert parse_score(text) in SCORES


_SLOT = scenarios_by_llm.Slot(1, "understanding", "emotion", "sad", "shopping")
_SCRIPT = [{"role": role, "content": text} for role, text in (("user", "Where is it?"), ("assistant", "Over there."))]
_GIVEN = {"scenario_id": "s1", "dialogue": _SCRIPT}
_SETTINGS: Any = SimpleNamespace(min_rounds=1, max_rounds=4, max_words=40)
# Checks of answers, each with an answer that passes or nearly passes.
_CHECKS: tuple[tuple[Any, Any], ...] = (
    (partial(filtering._read_quality, judge="j"), _VERDICTS[0]),
    (partial(annotation._read_labels, source="meld"), {"primary": "Neutral", "secondary": "Joy"}),
    (partial(scripts_by_llm._read_written, settings=_SETTINGS), _SCRIPT * 2),
    (
        partial(scripts_by_llm._read_spoken, given=_GIVEN, settings=_SETTINGS),
        {"scenario_id": "s1", "style": "spoken", "dialogue": [{**turn, "content": "uh, there"} for turn in _SCRIPT]},
    ),
    (
        partial(scenarios_by_llm._read_answer, slot=_SLOT, license="CC0-1.0"),
        {
            **{"question": "Why is the shop closed?", "good_answer": "I am sorry, it opens tomorrow."},
            **{"off_topic_answer": "Cats sleep a lot.", "appropriate_label": "sad", "incorrect_label": "happy"},
        },
    ),
    (reasoning_quality._read_verdict, {**dict.fromkeys(reasoning_quality.QUESTIONS, True), "reason": "good"}),
)


def _checked(_: World) -> st.SearchStrategy[tuple[int, Any]]:
    return st.integers(0, len(_CHECKS) - 1).flatmap(lambda n: st.tuples(st.just(n), changed(_CHECKS[n][1])))


def _check_answer(world: World, case: tuple[int, Any]) -> None:
    number, answer = case
    _CHECKS[number][0](answer)


_SCENARIO = json.loads(scenarios.DEFAULT_SCENARIOS.read_text(encoding="utf-8").split("\n")[0])
_TOPIC = {"scenario_id": "s1", "domain": "travel", "topic": "a lost bag"}


def _read_scenarios(world: World, case: tuple[int, str]) -> None:
    number, text = case
    path = world.write("scenarios.jsonl", text)
    (scenarios.read_scenarios, scripts_by_llm.read_scenarios)[number](path)


def _scenario_files(_: World) -> st.SearchStrategy[tuple[int, str]]:
    return st.integers(0, 1).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(json_texts((_SCENARIO, _TOPIC)[n]), max_size=2).map("\n".join))
    )


_RECORD = {
    **{"pair_id": "p1", "order": "chosen_first", "answer": json.dumps(_VERDICTS[0]), "status": "usable"},
    **{"num_replies": 1, "prompt_tokens": 10, "completion_tokens": 5},
}


def _replay(world: World, text: str) -> None:
    backend = ReplayBackend(world.write("answers.jsonl", text))
    known = list(backend._records)
    questions: Any = [SimpleNamespace(pair_id=pair_id, order=order, criterion="modality") for pair_id, order in known]
    for answer in backend.answer(questions):
        assert answer.verdict is None or answer.verdict.preference in VERSIONS


def _read_cache(world: World, text: str) -> None:
    client = ChatClient(ChatSettings(model="m", api_key_env=None), world.folder)
    found = client._read_answer(world.write("answer.json", text), lambda answer: read_verdict(answer, "modality"))
    assert found is None or found.spent.num_replies == 1


_CACHED = {"model": "m", "answer": _VERDICTS[0], "prompt_tokens": 10, "completion_tokens": 5}

TARGETS = (
    Target("parse_json", "answers", _json_answers, _parse_json),
    Target("zero-shot verdict, text", "answers", _json_answers, _read_verdict),
    Target("zero-shot verdict, values", "answers", _verdict_values, _read_value),
    Target(
        "wavreward score",
        "answers",
        lambda _: damaged_texts(*_SCORE_ANSWERS) | pieced(_PIECES) | texts(),
        _parse_score,
    ),
    # The client catches these three and asks again.
    Target("checks of answers", "answers", _checked, _check_answer, (ValueError, TypeError, KeyError)),
    Target("scenarios", "answers", _scenario_files, _read_scenarios),
    Target("recorded answers", "answers", lambda _: st.lists(json_texts(_RECORD), max_size=3).map("\n".join), _replay),
    Target("kept answers", "answers", lambda _: json_texts(_CACHED), _read_cache),
)
