"""Judges of pairs, and how they are asked.

A judge compares both sides of a pair, or scores each side by itself. Questions go to an endpoint, to a thinker in this
process, or to recorded answers. Every answer is a line of `answers.jsonl`.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pydantic

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, Clip
from sdiareward.chat_sdiareward import make_dialogue
from sdiareward.common.errors import Skipped
from sdiareward.common.files import JsonLines, parse_json, split_lines
from sdiareward.common.llm import ChatClient, ChatError, TokenUsage, ask_again
from sdiareward.common.settings import explain_error
from sdiareward.dataset_builder.pairing.filtering import make_spoken_turns
from sdiareward.pairs.messages import GAP_S, join_turns
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.outcomes import UNREADABLE, Outcome

from ..settings import MAX_TURN_S
from .answers import ORDERS, PROMPTS, VERSIONS, Answer, Status, decide, make_decision, make_failed_answer, read_text


if TYPE_CHECKING:
    import datasets
    import numpy as np

    from ..thinker import Thinker
    from ..wavreward.judge import Judgement, WavRewardJudge

ANSWERS_FILE = "answers.jsonl"
# Errors of `audio_sdiareward.read_audio` about a recording.
_AUDIO_ERRORS = (AudioError, FileNotFoundError, TypeError)
# WavReward was made for one question and its answer, so the last two turns always stay.
_MIN_TURNS = 2
_CONTROL_TOKEN = re.compile(r"<\|[^|<>]*\|>")
Orders = Literal["both", "one"]
Labels = Sequence[Mapping[str, Any]]
Messages = list[dict[str, Any]]
Scored = Iterator[tuple[int, Outcome]]


def find_criterion(label: Mapping[str, Any]) -> str:
    """Return the criterion to judge by; the paper has no judge's prompt for `joint`, so there the subset decides."""
    if label["criterion"] in PROMPTS:
        return str(label["criterion"])
    return "colloquialness" if label["subset"] == "colloquialness" else "modality"


def choose_orders(pair_id: str, orders: Orders) -> tuple[str, ...]:
    """Return the orders in which a pair is asked; a single one is drawn by the pair's id."""
    found = tuple(ORDERS)
    return found if orders == "both" else (found[zlib.crc32(pair_id.encode()) % len(found)],)


def read_turns(turns: Any, name: str, max_turn_s: float, *, with_words: bool = False) -> list[dict[str, Any]]:
    """Return `role`, `text` and `audio`, a mono array at 16 kHz, of each turn of a side; `name` names it in errors."""
    heard = []
    for number, turn in enumerate(make_dialogue(turns, name, is_whole=False).turns):
        clips = [part for part in turn.parts if isinstance(part, Clip)]
        where = f"{name}, turn {number}"
        if len(clips) != 1:
            raise AudioError(f"{where}: has {len(clips)} recordings; a judge hears exactly one of each turn.")
        if with_words and not turn.text.strip():
            raise AudioError(f"{where}: has no words; add its text, or omit transcripts.")
        audio = clips[0].read(max_duration_s=max_turn_s, name=where)
        heard.append({"role": turn.role, "text": turn.text.strip(), "audio": audio})
    if not heard:
        raise AudioError(f"{name}: has no turns; a judge needs at least one.")
    return heard


class Question(NamedTuple):
    """One pair in one order, which is hidden from the judge."""

    pair_id: str
    order: str
    criterion: str
    # Returns the messages to the judge, in the form of an endpoint, and the seconds of audio in them.
    build: Callable[[], tuple[Messages, float]]

    def hear(self) -> tuple[Messages, float] | Answer:
        """Return the messages, or the answer that the audio is unreadable."""
        try:
            return self.build()
        except _AUDIO_ERRORS as error:
            return Answer(None, status="unheard", problem=str(error))


# Answers questions in their order.
Backend = Callable[[Sequence[Question]], Iterator[Answer]]


@dataclass
class PairwiseJudge:
    """Compare both sides of a pair, in both orders or one; see `answers`."""

    answer: Backend
    folder: Path
    max_turn_s: float = MAX_TURN_S
    prompts: PromptSet = field(default_factory=PromptSet)
    orders: Orders = "both"
    transcripts: bool = False  # Give the judge the words of each turn, too.
    usage: Callable[[], dict[str, Any]] = dict
    audio_s: float = 0.0

    def score_rows(self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]) -> Scored:
        """Yield each decided row; a pair whose audio cannot be read is skipped."""
        record = JsonLines(self.folder / ANSWERS_FILE)
        asked = [(row, question) for row in rows for question in self._make_questions(pairs, labels[row], row)]
        answers = self.answer([question for _, question in asked])
        found: dict[int, dict[str, Answer]] = {}
        for (row, question), answer in zip(asked, answers, strict=True):
            of_pair = found.setdefault(row, {})
            of_pair[question.order] = answer
            if len(of_pair) < len(choose_orders(question.pair_id, self.orders)):
                continue
            record.append(_record_answer(question, order, each) for order, each in of_pair.items())
            if unheard := [each.problem for each in of_pair.values() if each.status == "unheard"]:
                yield row, Skipped(question.pair_id, UNREADABLE, str(unheard[0]))
                continue
            # Both questions hold the same audio, which counts once, as for a reward model.
            self.audio_s += max(each.audio_s for each in of_pair.values())
            yield row, decide(of_pair)

    def _make_questions(self, pairs: datasets.Dataset, label: Mapping[str, Any], row: int) -> Iterator[Question]:
        criterion = find_criterion(label)
        for order in choose_orders(label["pair_id"], self.orders):
            build = partial(self.build_messages, pairs, row, order, criterion)
            yield Question(label["pair_id"], order, criterion, build)

    def build_messages(self, pairs: datasets.Dataset, row: int, order: str, criterion: str) -> tuple[Messages, float]:
        pair = pairs[row]
        system, request = map(self.prompts.fill, PROMPTS[criterion])
        content: list[dict[str, Any]] = []
        num_samples = 0
        for version, side in zip(VERSIONS, ORDERS[order], strict=True):
            heard = read_turns(pair[side], side, self.max_turn_s, with_words=self.transcripts)
            num_samples += sum(turn["audio"].size for turn in heard)
            content.append({"type": "text", "text": f"Version {version}:"})
            content += make_spoken_turns(heard, side, with_words=self.transcripts)
        content.append({"type": "text", "text": request})
        messages: Messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        return messages, num_samples / SAMPLING_RATE


def _record_answer(question: Question, order: str, answer: Answer) -> dict[str, Any]:
    asked = {"pair_id": question.pair_id, "order": order, "criterion": question.criterion}
    repairs = [] if answer.verdict is None else list(answer.verdict.repairs)
    said = {"answer": answer.text, "status": answer.status, "problem": answer.problem, "repairs": repairs}
    return {**asked, **said, **asdict(answer.spent)}


def ask_endpoint(client: ChatClient, attempts: int, questions: Sequence[Question]) -> Iterator[Answer]:
    """Send the questions concurrently, each in at most `attempts` requests; valid answers are cached on disk."""

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

    answers: Iterator[Any] = client.map(ask, questions, failures=())
    return answers


def ask_thinker(
    thinker: Thinker, attempts: int, sampling: Mapping[str, Any], questions: Sequence[Question]
) -> Iterator[Answer]:
    """Ask a thinker in this process; it hears the same samples that an endpoint receives."""
    from tqdm import tqdm

    # Both orders of a pair in one batch: a killed run loses no half of a pair.
    size = max(2, thinker.batch_size // 2 * 2)
    with tqdm(total=len(questions), desc="questions") as progress:
        for start in range(0, len(questions), size):
            for answer in _ask_batch(thinker, attempts, sampling, questions[start : start + size]):
                progress.update()
                yield answer


def _ask_batch(
    thinker: Thinker, attempts: int, sampling: Mapping[str, Any], questions: Sequence[Question]
) -> list[Answer]:
    heard = [question.hear() for question in questions]
    answers = {index: each for index, each in enumerate(heard) if isinstance(each, Answer)}
    asked = {index: each for index, each in enumerate(heard) if not isinstance(each, Answer)}
    pending: dict[int, Any] = {index: [_convert(each) for each in messages] for index, (messages, _) in asked.items()}
    begun, spent = dict(pending), dict.fromkeys(asked, TokenUsage())
    for _ in range(attempts):
        conversations = list(pending.items())
        generations = thinker.generate([each for _, each in conversations], **sampling) if pending else []
        for (index, conversation), (generation,) in zip(conversations, generations, strict=True):
            text, audio_s = generation.text, asked[index][1]
            spent[index] += TokenUsage(1, thinker.processor.num_tokens(conversation), generation.num_tokens)
            try:
                verdict = read_text(text, questions[index].criterion, is_cut=generation.is_cut)
            except ValueError as error:
                # A control token within a text would be encoded as one.
                said, problem = (_CONTROL_TOKEN.sub("", words) for words in (text, str(error)))
                pending[index] = ask_again(begun[index], said, problem)
                answers[index] = make_failed_answer(str(error), text, spent[index], audio_s)
            else:
                del pending[index]
                answers[index] = Answer(verdict, text, spent=spent[index], audio_s=audio_s)
    return [answers[index] for index in range(len(questions))]


def _convert(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message from the form of an endpoint to that of the thinker's processor."""
    if isinstance(message["content"], str):
        return dict(message)
    parts = [
        {"type": "audio", "audio": base64.b64decode(part["input_audio"]["data"])} if "input_audio" in part else part
        for part in message["content"]
    ]
    return {**message, "content": parts}


class RecordedAnswer(pydantic.BaseModel):
    """A line of `answers.jsonl`; users may write such a file, too."""

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


def read_file(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of answers; give the answers.jsonl of a run as path.")
    return path.read_text(encoding="utf-8")


class Recorded:
    """Recorded answers: JSON lines with `pair_id`, `order` and `answer`; the last one of a question counts."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._answers: dict[tuple[str, str], RecordedAnswer] = {}
        for number, line in enumerate(split_lines(read_file(self.path)), start=1):
            try:
                found = RecordedAnswer.model_validate(parse_json(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {explain_error(error)}; correct or remove it.") from error
            self._answers[found.pair_id, found.order] = found

    def __call__(self, questions: Sequence[Question]) -> Iterator[Answer]:
        missing = [each for each in questions if (each.pair_id, each.order) not in self._answers]
        if missing:
            raise ValueError(
                f"{self.path}: lacks {len(missing)} of {len(questions)} answers, the first is of pair "
                f"{missing[0].pair_id!r}, {missing[0].order}; record them, or set orders=one or limit."
            )
        return (self._answers[each.pair_id, each.order].parse(each.criterion) for each in questions)


@dataclass
class PointwiseJudge:
    """Score each side by itself with WavReward, its turns joined with silence; the side with the higher score wins."""

    judge: WavRewardJudge
    folder: Path
    options: Mapping[str, Any]
    max_turn_s: float = MAX_TURN_S
    usage: Callable[[], dict[str, Any]] = dict  # The answers hold all usage.
    audio_s: float = 0.0

    def score_rows(self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]) -> Scored:
        record = JsonLines(self.folder / ANSWERS_FILE)
        size = max(1, self.judge.thinker.batch_size // len(SIDES))
        for start in range(0, len(rows), size):
            recordings: dict[int, list[np.ndarray]] = {}
            for row in rows[start : start + size]:
                pair = pairs[row]
                try:
                    recordings[row] = [self._join(pair[side], side) for side in SIDES]
                except _AUDIO_ERRORS as error:
                    yield row, Skipped(labels[row]["pair_id"], UNREADABLE, str(error))
            both = [recording for sides in recordings.values() for recording in sides]
            self.audio_s += sum(recording.size for recording in both) / SAMPLING_RATE
            judgements = iter(self.judge.judge(both, **self.options) if both else ())
            for row in recordings:
                found = {side: next(judgements) for side in SIDES}
                record.append(_record_judgement(labels[row], side, each) for side, each in found.items())
                rewards = [
                    each.score if each.expected_score is None else each.expected_score for each in found.values()
                ]
                chosen, rejected = [None, None] if None in rewards else rewards
                rule = "failed" if None in rewards else "tie" if chosen == rejected else "scores"
                yield row, make_decision(chosen, rejected, rule)

    def _join(self, turns: Any, name: str) -> np.ndarray:
        """Return one side as a recording; too long, it loses its first turns, because the last answer is scored."""
        limit = round(self.judge.thinker.processor.max_turn_s * SAMPLING_RATE)
        clips = [turn["audio"] for turn in read_turns(turns, name, self.max_turn_s)]
        gap = round(GAP_S * SAMPLING_RATE)
        while len(clips) > _MIN_TURNS and sum(clip.size + gap for clip in clips) - gap > limit:
            clips.pop(0)
        return join_turns(clips)[-limit:]


def _record_judgement(label: Mapping[str, Any], side: str, judgement: Judgement) -> dict[str, Any]:
    asked = {"pair_id": label["pair_id"], "side": side, "answer": "\n\n".join(judgement.texts)}
    columns = ("score", "expected_score", "scores", "follows_format", "num_cut", "problem")
    spent = asdict(TokenUsage(len(judgement.texts), 0, judgement.num_tokens))
    return {**asked, **{name: getattr(judgement, name) for name in columns}, **spent}
