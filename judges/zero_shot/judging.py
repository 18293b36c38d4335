"""Judges of pairs, and their questions.

A judge compares both sides of a pair, or scores each side separately. An endpoint, a local thinker, recorded answers
or WavReward answer the questions. Every answer is a line of `answers.jsonl`; a run reports position bias, order
agreement, ties, unusable answers and tokens.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pydantic

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, Clip
from sdiareward.chat_sdiareward import make_dialogue
from sdiareward.checkpoint_io.models import describe_model
from sdiareward.common.errors import Skipped, UserError
from sdiareward.common.files import JsonLines, parse_json, split_lines, write_file
from sdiareward.common.llm import ChatClient, ChatError, TokenUsage, ask_again
from sdiareward.common.settings import explain_error
from sdiareward.dataset_builder.pairing.filtering import make_spoken_turns
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET
from sdiareward.evaluation.statistics import describe_share
from sdiareward.evaluation.summary import list_groups, list_reasons, render_reasons
from sdiareward.pairs.messages import GAP_S, join_turns
from sdiareward.pairs.prompts import PromptSet, read_prompt_file
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.outcomes import UNREADABLE, Labels, Outcome

from ..settings import JudgeSettings, Orders, PairwiseSettings, read_judge
from ..wavreward.judge import Judgement, WavRewardJudge, choose_prompt
from .answers import (
    ORDERS,
    PROMPTS,
    RULES,
    VERSIONS,
    Answer,
    Status,
    decide,
    make_decision,
    make_failed_answer,
    read_text,
)


if TYPE_CHECKING:
    import datasets
    import numpy as np

    from ..thinker import Thinker

ANSWERS_FILE = "answers.jsonl"
Scores = Mapping[str, Mapping[str, Any]]
# The last line of `answers.jsonl` for each question: a pair, and an order or a side.
Lines = Mapping[tuple[str, str], Mapping[str, Any]]
_MAX_PROBLEMS = 20
_SESSION_COUNTS = ("calls", "cached", "retries", "reasks", "calls_without_usage")
# WavReward expects a question and its answer, so the last two turns are always kept.
_MIN_TURNS = 2
_CONTROL_TOKEN = re.compile(r"<\|[^|<>]*\|>")
# Settings that do not change scores, or whose content `JudgeSpec.identity` includes instead.
_NO_IDENTITY = {"base_url", "api_key_env", "max_retries", "timeout_s", "concurrency", "cache_dir", "device"}
_NO_IDENTITY |= {"usd_per_million_input_tokens", "usd_per_million_output_tokens", "batch_size"}
_NO_IDENTITY |= {"path", "revision", "prompt_file"}


class Question(NamedTuple):
    """A request to compare both sides of a pair in one order (hidden from the judge), or to score one side."""

    pair_id: str
    order: str  # Or the side.
    criterion: str
    # Returns the messages in the form of an endpoint, or the recording of a side, and the seconds of audio to count.
    build: Callable[[], tuple[Any, float]]

    def hear(self) -> tuple[Any, float] | Answer:
        """Return the input of the judge, or an answer that the audio is unreadable."""
        try:
            return self.build()
        except (AudioError, FileNotFoundError, TypeError) as error:
            return Answer(None, status="unheard", problem=str(error))


# From questions to answers, in order.
Ask = Callable[[Sequence[Question]], Iterator[Answer]]


@dataclass(frozen=True)
class JudgeSpec:
    """The name and the settings of a judge in a file of judges."""

    name: str
    settings: JudgeSettings

    def identity(self) -> dict[str, Any]:
        """Return everything the scores depend on; this excludes an endpoint's address and speed."""
        settings: Any = self.settings
        found = {name: value for name, value in asdict(settings).items() if name not in _NO_IDENTITY}
        if settings.backend in ("thinker", "wavreward"):
            found["model"] = describe_model(settings.checkpoint)
        if settings.backend == "wavreward":
            found["prompt_version"] = choose_prompt(settings.checkpoint, settings.prompt_file).version
        elif settings.backend == "replay":
            found["answers"] = hashlib.sha256(Path(settings.path).read_bytes()).hexdigest()
        else:
            prompts = read_prompt_file(settings.prompt_file)
            found["prompt_versions"] = {key: prompts.compute_version(*names) for key, names in PROMPTS.items()}
        return {"judge": self.name, "backend": settings.backend, "judge_settings": found}

    def load(self, folder: Path) -> Judge:
        settings: Any = self.settings
        if settings.backend == "replay":
            return Judge(partial(replay, settings.path, read_recorded(settings.path)), folder, None, settings.orders)
        if settings.backend == "wavreward":
            judge = WavRewardJudge.from_pretrained(
                settings.checkpoint,
                reasoning=settings.reasoning,
                prompt_file=settings.prompt_file,
                **settings.placement,
            )
            options = {**settings.sampling, "expected": settings.expected, "num_samples": settings.num_samples}
            build = partial(join_side, settings.max_turn_s, judge.thinker.processor.max_turn_s)
            return Judge(partial(ask_wavreward, judge, options), folder, build, None)
        compare = partial(make_comparison, settings, read_prompt_file(settings.prompt_file))
        if settings.backend == "thinker":
            from ..thinker import Thinker

            thinker = Thinker.from_pretrained(settings.checkpoint, **settings.placement)
            ask = partial(ask_thinker, thinker, settings.attempts, settings.sampling)
            return Judge(ask, folder, compare, settings.orders)
        client = ChatClient(settings, settings.cache_dir or folder / "cache")
        return Judge(
            partial(ask_endpoint, client, settings.attempts), folder, compare, settings.orders, lambda: client.usage
        )

    def describe(
        self, labels: Labels, scores: Mapping[str, Mapping[str, Any]], folder: Path, **options: Any
    ) -> dict[str, Any]:
        """Return `judge`: how the decisions were made, and their cost."""
        settings: Any = self.settings
        is_pairwise = settings.backend != "wavreward"
        found = summarise_judge(self.name, labels, scores, folder, options, is_pairwise=is_pairwise)
        tokens = (found["prompt_tokens"], found["completion_tokens"])
        usd = settings.compute_price_usd(*tokens) if settings.backend == "endpoint" else None
        return {"judge": {"name": self.name, "backend": settings.backend, **found, "usd": usd}}


def choose_judge(name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()) -> JudgeSpec:
    return JudgeSpec(name, read_judge(name, judges_file, overrides))


@dataclass
class Judge:
    """Decide pairs by the answers to the questions about them; see `answers`."""

    ask: Ask
    folder: Path
    build: Any  # See `Question.build`: a function of a pair, order or side, and criterion; None for a replay.
    orders: Orders | None = "both"  # None: the judge scores each side separately.
    usage: Callable[[], dict[str, Any]] = dict
    audio_s: float = 0.0

    def score_rows(
        self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each decided row; a pair whose audio cannot be read is skipped."""
        asked: dict[int, list[Question]] = {}
        for row in rows:
            pair_id, criterion = labels[row]["pair_id"], find_criterion(labels[row])
            # The pair's id decides a single order.
            drawn = tuple(ORDERS)[zlib.crc32(pair_id.encode()) % len(ORDERS)]
            orders = {None: SIDES, "both": tuple(ORDERS), "one": (drawn,)}[self.orders]
            # Pairs are read on demand, because the recordings of a part may not fit into memory.
            asked[row] = [
                Question(pair_id, order, criterion, partial(self._build, pairs, row, order, criterion))
                for order in orders
            ]
        answers = self.ask([question for questions in asked.values() for question in questions])
        record = JsonLines(self.folder / ANSWERS_FILE)
        for row, questions in asked.items():
            found = {question.order: next(answers) for question in questions}
            record.append(self._record(question, found[question.order]) for question in questions)
            self.audio_s += sum(answer.audio_s for answer in found.values())
            if unheard := [answer.problem for answer in found.values() if answer.status == "unheard"]:
                yield row, Skipped(questions[0].pair_id, UNREADABLE, str(unheard[0]))
            else:
                yield row, decide_by_scores(found) if self.orders is None else decide(found)

    def _build(self, pairs: datasets.Dataset, row: int, order: str, criterion: str) -> tuple[Any, float]:
        built: tuple[Any, float] = self.build(pairs[row], order, criterion)
        return built

    def _record(self, question: Question, answer: Answer) -> dict[str, Any]:
        """Return the line of an answer."""
        asked = {"pair_id": question.pair_id, "order" if self.orders else "side": question.order}
        said = {"answer": answer.text, "status": answer.status, "problem": answer.problem}
        more = answer.describe_verdict(question.order) if self.orders else answer.columns
        return {**asked, "criterion": question.criterion, **said, **more, **asdict(answer.spent)}


def decide_by_scores(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Decide a pair by its answers by side: the higher score wins."""
    columns = [answers[side].columns for side in SIDES]
    chosen, rejected = (x["score"] if x["expected_score"] is None else x["expected_score"] for x in columns)
    if chosen is None or rejected is None:
        return make_decision(None, None, "failed")
    return make_decision(chosen, rejected, "tie" if chosen == rejected else "scores")


def make_comparison(
    settings: PairwiseSettings, prompts: PromptSet, pair: Mapping[str, Any], order: str, criterion: str
) -> tuple[list[dict[str, Any]], float]:
    """Return the messages that ask a judge to compare both sides, and the seconds of audio of a pair per question."""
    system, request = map(prompts.fill, PROMPTS[criterion])
    content: list[dict[str, Any]] = []
    num_samples = 0
    for version, side in zip(VERSIONS, ORDERS[order], strict=True):
        heard = read_turns(pair[side], side, settings.max_turn_s, with_words=settings.transcripts)
        num_samples += sum(turn["audio"].size for turn in heard)
        content.append({"type": "text", "text": f"Version {version}:"})
        content += make_spoken_turns(heard, side, with_words=settings.transcripts)
    content.append({"type": "text", "text": request})
    # Both questions have the same audio, which counts once, as for a reward model.
    audio_s = num_samples / SAMPLING_RATE / (len(ORDERS) if settings.orders == "both" else 1)
    return [{"role": "system", "content": system}, {"role": "user", "content": content}], audio_s


def join_side(
    max_turn_s: float, max_recording_s: float, pair: Mapping[str, Any], side: str, _: str
) -> tuple[np.ndarray, float]:
    """Return one side as a recording; if too long, drop the first turns, because the last answer is scored."""
    limit, gap = (round(seconds * SAMPLING_RATE) for seconds in (max_recording_s, GAP_S))
    clips = [turn["audio"] for turn in read_turns(pair[side], side, max_turn_s)]
    while len(clips) > _MIN_TURNS and sum(clip.size + gap for clip in clips) - gap > limit:
        clips.pop(0)
    recording = join_turns(clips)[-limit:]
    return recording, recording.size / SAMPLING_RATE


def read_turns(turns: Any, name: str, max_turn_s: float, *, with_words: bool = False) -> list[dict[str, Any]]:
    """Return `role`, `text` and `audio` (mono, 16 kHz) of each turn of a side; errors use `name`."""
    heard = []
    for number, turn in enumerate(make_dialogue(turns, name, is_whole=False).turns):
        clips = [part for part in turn.parts if isinstance(part, Clip)]
        where, text = f"{name}, turn {number}", turn.text.strip()
        if len(clips) != 1:
            raise AudioError(f"{where}: has {len(clips)} recordings; give exactly one per turn.")
        if with_words and not text:
            raise AudioError(f"{where}: has no words; add its text, or omit transcripts.")
        heard.append({"role": turn.role, "text": text, "audio": clips[0].read(max_duration_s=max_turn_s, name=where)})
    if not heard:
        raise AudioError(f"{name}: has no turns; a judge needs at least one.")
    return heard


def ask_endpoint(client: ChatClient, attempts: int, questions: Sequence[Question]) -> Iterator[Answer]:
    """Send the questions concurrently, with at most `attempts` requests each; valid answers are cached on disk."""

    def ask(question: Question) -> Answer:
        heard = question.hear()
        if isinstance(heard, Answer):
            return heard
        messages, audio_s = heard
        try:
            found = client.ask(messages, partial(read_text, criterion=question.criterion), attempts=attempts)
        except ChatError as error:
            if error.is_refusal:
                return Answer(None, error.answer or "", "refused", str(error), error.spent, audio_s)
            return make_failed_answer(str(error), error.answer, error.spent, audio_s)
        return Answer(found.value, found.text, spent=found.spent, audio_s=audio_s)

    return client.map(ask, questions)


def ask_thinker(
    thinker: Thinker, attempts: int, sampling: Mapping[str, Any], questions: Sequence[Question]
) -> Iterator[Answer]:
    """Ask a local thinker; it hears the same samples as an endpoint."""
    for chunk in _split(questions, thinker.batch_size):
        heard = dict(enumerate(question.hear() for question in chunk))
        answers = {index: each for index, each in heard.items() if isinstance(each, Answer)}
        asked = {index: each for index, each in heard.items() if not isinstance(each, Answer)}
        begun = {index: [_convert(each) for each in messages] for index, (messages, _) in asked.items()}
        pending: dict[int, Any] = dict(begun)
        spent = dict.fromkeys(asked, TokenUsage())
        for _ in range(attempts):
            generations = thinker.generate(list(pending.values()), **sampling) if pending else []
            for (index, conversation), (generation,) in zip(list(pending.items()), generations, strict=True):
                text, audio_s = generation.text, asked[index][1]
                spent[index] += TokenUsage(1, thinker.processor.num_tokens(conversation), generation.num_tokens)
                try:
                    verdict = read_text(text, chunk[index].criterion, is_cut=generation.is_cut)
                except ValueError as error:
                    # A control token in text would be encoded as one.
                    said, problem = (_CONTROL_TOKEN.sub("", words) for words in (text, str(error)))
                    pending[index] = ask_again(begun[index], said, problem)
                    answers[index] = make_failed_answer(str(error), text, spent[index], audio_s)
                else:
                    del pending[index]
                    answers[index] = Answer(verdict, text, spent=spent[index], audio_s=audio_s)
        yield from (answers[index] for index in range(len(chunk)))


def _split(questions: Sequence[Question], batch_size: int) -> Iterator[Sequence[Question]]:
    """Yield batches that keep both questions about a pair together, so that a killed run splits no pair."""
    from tqdm import tqdm

    size = max(2, batch_size // 2 * 2)
    with tqdm(total=len(questions), desc="questions") as progress:
        for start in range(0, len(questions), size):
            yield questions[start : start + size]
            progress.update(len(questions[start : start + size]))


def _convert(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message from an endpoint's format to the processor's."""
    if isinstance(message["content"], str):
        return dict(message)
    parts = [
        {"type": "audio", "audio": base64.b64decode(part["input_audio"]["data"])} if "input_audio" in part else part
        for part in message["content"]
    ]
    return {**message, "content": parts}


def ask_wavreward(
    judge: WavRewardJudge, options: Mapping[str, Any], questions: Sequence[Question]
) -> Iterator[Answer]:
    """Score each side separately with WavReward."""
    for chunk in _split(questions, judge.thinker.batch_size):
        heard = [question.hear() for question in chunk]
        recordings = [each[0] for each in heard if not isinstance(each, Answer)]
        judgements = iter(judge.judge(recordings, **options) if recordings else ())
        for each in heard:
            yield each if isinstance(each, Answer) else _make_answer(next(judgements), each[1])


def _make_answer(judgement: Judgement, audio_s: float) -> Answer:
    names = ("score", "expected_score", "scores", "follows_format", "num_cut")
    columns = {name: getattr(judgement, name) for name in names}
    spent = TokenUsage(len(judgement.texts), 0, judgement.num_tokens)
    status: Status = "unusable" if judgement.score is None else "usable"
    return Answer(None, "\n\n".join(judgement.texts), status, judgement.problem, spent, audio_s, columns)


class RecordedAnswer(pydantic.BaseModel):
    """A line of `answers.jsonl`, which users may also write themselves."""

    pair_id: pydantic.StrictStr
    order: Literal["chosen_first", "rejected_first"]
    answer: Any
    status: Status = "usable"
    problem: str | None = None
    num_replies: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def parse(self, criterion: str) -> Answer:
        text, spent = str(self.answer), TokenUsage(self.num_replies or 1, self.prompt_tokens, self.completion_tokens)
        if self.status != "usable":
            return Answer(None, text, self.status, self.problem, spent)
        try:
            return Answer(read_text(text, criterion), text, spent=spent)
        except ValueError as error:
            return make_failed_answer(str(error), text, spent)


Recorded = dict[tuple[str, str], RecordedAnswer]


def read_recorded(path: str | Path) -> Recorded:
    """Read JSON lines with `pair_id`, `order` and `answer`; the last line of a question counts."""
    answers: Recorded = {}
    for number, line in enumerate(split_lines(Path(path).read_text(encoding="utf-8")), start=1):
        try:
            found = RecordedAnswer.model_validate(parse_json(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {explain_error(error)}; correct or remove it.") from error
        answers[found.pair_id, found.order] = found
    return answers


def replay(path: str, recorded: Recorded, questions: Sequence[Question]) -> Iterator[Answer]:
    """Answer from a file of recorded answers."""
    if missing := [each for each in questions if (each.pair_id, each.order) not in recorded]:
        lacking = f"lacks {len(missing)} of {len(questions)} answers, first: pair {missing[0].pair_id!r}"
        raise ValueError(f"{path}: {lacking}, {missing[0].order}; record them, or set orders=one or limit.")
    return (recorded[each.pair_id, each.order].parse(each.criterion) for each in questions)


def find_criterion(label: Mapping[str, Any]) -> str:
    """Return the criterion to judge by; the paper has no judge prompt for `joint`, so the subset decides."""
    if label["criterion"] in PROMPTS:
        return str(label["criterion"])
    return "colloquialness" if label["subset"] == "colloquialness" else "modality"


def summarise_judge(
    name: str, labels: Labels, scores: Scores, folder: Path, options: Mapping[str, Any], *, is_pairwise: bool
) -> dict[str, Any]:
    """Summarise a run of a judge of pairs or of single sides; raise `UserError` if no pair was decided."""
    wanted = {label["pair_id"] for label in labels}
    lines = [line for line in JsonLines(folder / ANSWERS_FILE).read() if line["pair_id"] in wanted]
    last = {(line["pair_id"], line["order" if is_pairwise else "side"]): line for line in lines}
    problems = [
        {"pair_id": pair_id, "order": order, "status": line["status"], "problem": line["problem"]}
        for (pair_id, order), line in last.items()
        if line["status"] != "usable"
    ]
    if all(scores[label["pair_id"]]["margin"] is None for label in labels):
        what = f"judge {name}: none of {len(labels)} pairs got a usable answer"
        write_file(folder / "results.md", f"# No accuracy\n\n{what}.\n\n{render_reasons(problems)}\n")
        found = f"{what}; the first reasons: {' '.join(list_reasons(problems))} {folder / ANSWERS_FILE} has all"
        raise UserError(f"{found}; fix the judge and set the key retry_failed, or choose another folder.")
    groups = []
    for title, rows in _group_by_column(labels).items():
        rules = [scores[label["pair_id"]]["decided_by"] for label in rows]
        decided = {rule: rules.count(rule) for rule in RULES}
        ties = _share([(label, rule == "tie") for label, rule in zip(rows, rules, strict=True)], options)
        orders = _summarise_orders(rows, last, options) if is_pairwise else {}
        groups.append({"criterion": title, "num_pairs": len(rows), "decided_by": decided, "ties": ties, **orders})
    return {
        "kind": "pairwise" if is_pairwise else "pointwise",
        "num_answers": len(last),
        "answers": _count_answers(list(last.values()), is_pairwise),
        **_sum_usage(lines, folder),
        "problems": problems[:_MAX_PROBLEMS],
        "groups": groups,
    }


def _count_answers(lines: Sequence[Mapping[str, Any]], is_pairwise: bool) -> dict[str, int]:
    if is_pairwise:
        counts = Counter(line["status"] for line in lines)
        counted = {status: counts[status] for status in ("usable", "refused", "unusable", "unanswered")}
        sums = {name: sum(bool(line[name]) for line in lines) for name in ("repairs", "contradictory")}
        return {**counted, "repaired": sums["repairs"], "contradictory": sums["contradictory"]}
    return {
        "follow_format": sum(line["follows_format"] for line in lines),
        "without_score": sum(line["score"] is None for line in lines),
        "cut": sum(line["num_cut"] > 0 for line in lines),
    }


def _sum_usage(lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Return the tokens of all answers, including failed attempts, and the counters of all sessions of a run."""
    spent: dict[Any, TokenUsage] = {}
    for number, line in enumerate(lines):
        # A reused answer counts once; only usable answers are cached.
        is_usable = line["status"] == "usable"
        key = (line["pair_id"], line.get("order", line.get("side")), line["answer"]) if is_usable else number
        spent[key] = TokenUsage(line["num_replies"] or 1, line["prompt_tokens"], line["completion_tokens"])
    sessions = JsonLines(folder / "sessions.jsonl").read()
    counted = {name: sum(session[name] for session in sessions if name in session) for name in _SESSION_COUNTS}
    return {
        **asdict(sum(spent.values(), TokenUsage())),
        "sessions": counted if any("calls" in session for session in sessions) else {},
        "changed_parameters": {k: v for each in sessions for k, v in each.get("changed_parameters", {}).items()},
    }


def _group_by_column(labels: Labels) -> dict[str, Labels]:
    """Group pairs: all, and by criterion and subset (Table 2) if there are several."""
    groups: dict[str, Labels] = {"all pairs": labels}
    for find in (find_criterion, lambda label: label["subset"] or NO_SUBSET):
        names = dict.fromkeys(map(find, labels))
        found = {name: [label for label in labels if find(label) == name] for name in names}
        groups |= found if len(found) > 1 else {}
    return groups


def _summarise_orders(labels: Labels, lines: Lines, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the influence of the order of the sides."""
    # The preferred side of each label in both orders; None without a verdict.
    found = []
    for label in labels:
        keys = {order: (label["pair_id"], order) for order in ORDERS}
        found.append((label, {order: lines[key]["preferred"] for order, key in keys.items() if key in lines}))
    preferred = {order: [(label, sides[order]) for label, sides in found if order in sides] for order in ORDERS}
    whole = [(label, set(sides.values())) for label, sides in found if len(sides) == len(ORDERS)]
    both = [(label, len(sides) == 1) for label, sides in whole if None not in sides]
    first = [(label, side == ORDERS[order][0]) for order, each in preferred.items() for label, side in each if side]
    bias = _share(first, options)
    # Share of answers that prefer the first version, minus one half.
    bias["bias"] = None if bias["share"] is None else bias["share"] - 0.5
    bias["interval"] = bias["interval"] and [bound - 0.5 for bound in bias["interval"]]
    return {
        "position_bias": bias,
        "order_agreement": _share(both, options),
        "one_order": {
            order: _share([(label, side == "chosen") for label, side in each], options)
            for order, each in preferred.items()
        },
    }


def _share(values: Sequence[tuple[Mapping[str, Any], bool]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of labels whose value is true, with its interval over recordings."""
    labels = [label for label, _ in values]
    return describe_share(
        [value for _, value in values], list_groups(labels), [label["subset"] for label in labels], **options
    )
