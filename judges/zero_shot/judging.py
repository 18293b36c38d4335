"""Score pairs with a judge that compares both sides, or with one that scores each side by itself.

Questions go to an endpoint, to a thinker in this process, or to recorded answers. Both judges append two lines per
pair to `answers.jsonl` before the pair's line is written to `scores.jsonl`.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.common.files import JsonLines, parse_json, split_lines, unseal
from sdiareward.common.llm import ChatClient, ChatError, TokenUsage, ask_again
from sdiareward.common.settings import explain_error
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.pairing.filtering import make_spoken_turns
from sdiareward.pairs.messages import GAP_S, join_turns, turns_to_messages
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.outcomes import UNREADABLE, Outcome

from ..settings import MAX_TURN_S
from .answers import (
    FAILED,
    ORDERS,
    PROMPTS,
    VERSIONS,
    Answer,
    Decision,
    Orders,
    Status,
    decide,
    make_failed_answer,
    read_text,
)


if TYPE_CHECKING:
    import datasets
    import numpy as np

    from ..thinker import Thinker
    from ..wavreward.judge import Judgement, WavRewardJudge

ANSWERS_FILE = "answers.jsonl"
# Errors of `audio_sdiareward.read_audio` about a recording.
AUDIO_ERRORS = (AudioError, FileNotFoundError, TypeError)
# WavReward was made for one question and its answer, so the last two turns always stay.
_MIN_TURNS = 2
_CONTROL_TOKEN = re.compile(r"<\|[^|<>]*\|>")
Labels = Sequence[Mapping[str, Any]]
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


def read_turns(
    turns: Sequence[Mapping[str, Any]], name: str, max_turn_s: float = MAX_TURN_S, *, with_words: bool = False
) -> list[dict[str, Any]]:
    """Return `role`, `text` and `audio`, a mono array at 16 kHz, of each turn of a side; `name` names it in errors."""
    heard = []
    for position, message in enumerate(turns_to_messages(turns)):
        if message["role"] == "system":
            continue
        items = [] if isinstance(message["content"], str) else message["content"]
        sounds = [item["audio"] for item in items if item["type"] == "audio"]
        where = f"{name}, turn {position}"
        if len(sounds) != 1:
            raise AudioError(f"{where}: has {len(sounds)} recordings; a judge hears exactly one of each turn.")
        text = " ".join(item["text"] for item in items if item["type"] == "text").strip()
        if with_words and not text:
            raise AudioError(f"{where}: has no words; add its text, or omit transcripts.")
        audio = read_audio(sounds[0], max_duration_s=max_turn_s, name=where)
        heard.append({"role": message["role"], "text": text, "audio": audio})
    if not heard:
        raise AudioError(f"{name}: has no turns; a judge needs at least one.")
    return heard


@dataclass(frozen=True)
class Question:
    """One pair in one order, which is hidden from the judge."""

    pair_id: str
    order: str
    criterion: str
    read_pair: Callable[[], Mapping[str, Any]]
    max_turn_s: float = MAX_TURN_S
    prompts: PromptSet = field(default_factory=PromptSet)
    transcripts: bool = False

    def build_messages(self) -> tuple[list[dict[str, Any]], float]:
        """Return the messages to the judge, in the form of an endpoint, and the seconds of audio in them."""
        row = self.read_pair()
        system, request = map(self.prompts.fill, PROMPTS[self.criterion])
        content: list[dict[str, Any]] = []
        num_samples = 0
        for version, side in zip(VERSIONS, ORDERS[self.order], strict=True):
            heard = read_turns(row[side], side, self.max_turn_s, with_words=self.transcripts)
            num_samples += sum(turn["audio"].size for turn in heard)
            content.append({"type": "text", "text": f"Version {version}:"})
            content += make_spoken_turns(heard, side, with_words=self.transcripts)
        content.append({"type": "text", "text": request})
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        return messages, num_samples / SAMPLING_RATE


class EndpointBackend:
    """Ask an OpenAI-compatible endpoint whose model takes `input_audio`, in at most `attempts` requests a question."""

    def __init__(self, client: ChatClient, attempts: int):
        self.client = client
        self.attempts = attempts

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Yield the answers in order; questions are sent concurrently, and valid answers are cached on disk."""
        for answer in self.client.map(self._ask, questions, failures=()):
            # `failures` is empty: an exception would have been raised.
            assert isinstance(answer, Answer)
            yield answer

    def _ask(self, question: Question) -> Answer:
        try:
            messages, audio_s = question.build_messages()
        except AUDIO_ERRORS as error:
            return Answer(None, status="unheard", problem=str(error))
        read = partial(read_text, criterion=question.criterion)
        try:
            found = self.client.ask(messages, read, attempts=self.attempts)
        except ChatError as error:
            if error.is_refusal:
                return Answer(None, error.answer or "", "refused", str(error), error.spent, audio_s)
            return make_failed_answer(str(error), error.answer, error.spent, audio_s)
        return Answer(found.value, found.text, spent=found.spent, audio_s=audio_s)

    def usage(self) -> dict[str, Any]:
        return self.client.usage


class ThinkerBackend:
    """Ask a thinker in this process; it hears the same samples that an endpoint receives."""

    def __init__(self, thinker: Thinker, attempts: int, sampling: Mapping[str, Any]):
        self.thinker = thinker
        self.attempts = attempts
        self.sampling = sampling

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        from tqdm import tqdm

        # Both orders of a pair in one batch: a killed run loses no half of a pair.
        size = max(2, self.thinker.batch_size // 2 * 2)
        with tqdm(total=len(questions), desc="questions") as progress:
            for start in range(0, len(questions), size):
                for answer in self._answer_batch(questions[start : start + size]):
                    progress.update()
                    yield answer

    def _answer_batch(self, questions: Sequence[Question]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        asked: dict[int, tuple[list[Any], float]] = {}
        for index, question in enumerate(questions):
            try:
                messages, audio_s = question.build_messages()
                asked[index] = [_as_conversation(message) for message in messages], audio_s
            except AUDIO_ERRORS as error:
                answers[index] = Answer(None, status="unheard", problem=str(error))
        pending: dict[int, list[Any]] = {index: messages for index, (messages, _) in asked.items()}
        spent = dict.fromkeys(asked, TokenUsage())
        for _ in range(self.attempts if pending else 0):
            conversations = list(pending.items())
            generations = self.thinker.generate([each for _, each in conversations], **self.sampling)
            for (index, conversation), (generation,) in zip(conversations, generations, strict=True):
                num_prompt_tokens = self.thinker.processor.num_tokens(conversation)
                spent[index] += TokenUsage(1, num_prompt_tokens, generation.num_tokens)
                (messages, audio_s), text = asked[index], generation.text
                try:
                    verdict = read_text(text, questions[index].criterion, is_cut=generation.is_cut)
                except ValueError as error:
                    # A control token within a text would be encoded as one.
                    said, problem = (_CONTROL_TOKEN.sub("", words) for words in (text, str(error)))
                    pending[index] = ask_again(messages, said, problem)
                    answers[index] = make_failed_answer(str(error), text, spent[index], audio_s)
                else:
                    del pending[index]
                    answers[index] = Answer(verdict, text, spent=spent[index], audio_s=audio_s)
            if not pending:
                break
        return [answers[index] for index in range(len(questions))]

    def usage(self) -> dict[str, Any]:
        return {}


def _as_conversation(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message from the form of an endpoint to that of the thinker's processor."""
    content = message["content"]
    if not isinstance(content, str):
        content = [
            {"type": "audio", "audio": base64.b64decode(part["input_audio"]["data"])}
            if part["type"] == "input_audio"
            else part
            for part in content
        ]
    return {"role": message["role"], "content": content}


class RecordedAnswer(pydantic.BaseModel):
    """A line of `answers.jsonl`; users may write such a file, too."""

    pair_id: pydantic.StrictStr
    order: Literal["chosen_first", "rejected_first"]
    answer: Any
    status: Status = "usable"
    problem: str | None = None
    num_replies: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def spent(self) -> TokenUsage:
        return TokenUsage(self.num_replies or 1, self.prompt_tokens or 0, self.completion_tokens or 0)


class ReplayBackend:
    """Replay recorded answers: JSON lines with `pair_id`, `order` and `answer`, the last one of a question counts."""

    def __init__(self, path: str | Path):
        self.path = require_answers(path)
        self._records: dict[tuple[str, str], RecordedAnswer] = {}
        for number, line in enumerate(split_lines(self.path.read_text(encoding="utf-8")), start=1):
            try:
                record = RecordedAnswer.model_validate(parse_json(unseal(line.encode()) or b""))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {explain_error(error)}; correct or remove it.") from error
            self._records[record.pair_id, record.order] = record

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        missing = [each for each in questions if (each.pair_id, each.order) not in self._records]
        if missing:
            raise ValueError(
                f"{self.path}: lacks {len(missing)} of {len(questions)} answers, the first is of pair "
                f"{missing[0].pair_id!r}, {missing[0].order}; record them, or set orders=one or limit."
            )
        for question in questions:
            record = self._records[question.pair_id, question.order]
            text = str(record.answer)
            if record.status != "usable":
                yield Answer(None, text, record.status, record.problem, record.spent)
                continue
            try:
                yield Answer(read_text(text, question.criterion), text, spent=record.spent)
            except ValueError as error:
                yield make_failed_answer(str(error), text, record.spent)

    def usage(self) -> dict[str, Any]:
        return {}


def require_answers(path: str | Path) -> Path:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file of answers; give the answers.jsonl of a run as path.")
    return Path(path)


class PairwiseJudge:
    """Compare both sides of a pair, in both orders or one; see `answers`. The run's folder records the answers."""

    def __init__(
        self,
        backend: EndpointBackend | ThinkerBackend | ReplayBackend,
        folder: Path,
        max_turn_s: float = MAX_TURN_S,
        prompts: PromptSet | None = None,
        *,
        orders: Orders = "both",
        transcripts: bool = False,
    ):
        self.backend = backend
        self.usage = backend.usage
        self.record = JsonLines(folder / ANSWERS_FILE)
        self.orders = orders
        self._how = (max_turn_s, prompts or PromptSet(), transcripts)
        self.audio_s = 0.0

    def score_rows(self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]) -> Scored:
        """Yield each decided row; a pair whose audio cannot be read is skipped."""
        by_row = {row: self._make_questions(pairs, labels[row], row) for row in rows}
        # Removes an incomplete last line of a killed run.
        self.record.read()
        answers = self.backend.answer([question for asked in by_row.values() for question in asked])
        for row, asked in by_row.items():
            found = {question.order: next(answers) for question in asked}
            self.record.append([_record_answer(question, found[question.order]) for question in asked])
            if unheard := [answer.problem for answer in found.values() if answer.status == "unheard"]:
                yield row, Skipped(labels[row]["pair_id"], UNREADABLE, str(unheard[0]))
                continue
            # Both questions hold the same audio, which counts once, as for a reward model.
            self.audio_s += max(answer.audio_s for answer in found.values())
            yield row, decide(found).as_record()

    def _make_questions(self, pairs: datasets.Dataset, label: Mapping[str, Any], row: int) -> list[Question]:
        how = (find_criterion(label), lambda: pairs[row], *self._how)
        return [Question(label["pair_id"], order, *how) for order in choose_orders(label["pair_id"], self.orders)]


def _record_answer(question: Question, answer: Answer) -> dict[str, Any]:
    return {
        "pair_id": question.pair_id,
        "order": question.order,
        "criterion": question.criterion,
        "answer": answer.text,
        "status": answer.status,
        "problem": answer.problem,
        "repairs": [] if answer.verdict is None else list(answer.verdict.repairs),
        "num_replies": answer.spent.num_replies,
        "prompt_tokens": answer.spent.prompt_tokens,
        "completion_tokens": answer.spent.completion_tokens,
    }


class PointwiseJudge:
    """Score each side by itself with WavReward, its turns joined with silence; the side with the higher score wins."""

    def __init__(
        self, judge: WavRewardJudge, folder: Path, options: Mapping[str, Any], max_turn_s: float = MAX_TURN_S
    ):
        self.judge = judge
        self.record = JsonLines(folder / ANSWERS_FILE)
        self.options = dict(options)
        self.max_turn_s = max_turn_s
        self.audio_s = 0.0

    def score_rows(self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]) -> Scored:
        self.record.read()
        size = max(1, self.judge.thinker.batch_size // len(SIDES))
        for start in range(0, len(rows), size):
            recordings: dict[int, list[np.ndarray]] = {}
            skipped: list[tuple[int, Skipped]] = []
            for row in rows[start : start + size]:
                pair = pairs[row]
                try:
                    recordings[row] = [self._join(pair[side], side) for side in SIDES]
                except AUDIO_ERRORS as error:
                    skipped.append((row, Skipped(labels[row]["pair_id"], UNREADABLE, str(error))))
            both = [recording for sides in recordings.values() for recording in sides]
            self.audio_s += sum(recording.size for recording in both) / SAMPLING_RATE
            judgements = iter(self.judge.judge(both, **self.options) if both else ())
            for row in recordings:
                found = {side: next(judgements) for side in SIDES}
                self.record.append([_record_judgement(labels[row], side, found[side]) for side in SIDES])
                yield row, _compare(*found.values()).as_record()
            yield from skipped

    def _join(self, turns: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
        """Return one side as a recording; too long, it loses its first turns, because the last answer is scored."""
        limit = round(self.judge.thinker.processor.max_turn_s * SAMPLING_RATE)
        clips = [turn["audio"] for turn in read_turns(turns, name, self.max_turn_s)]
        gap = round(GAP_S * SAMPLING_RATE)
        while len(clips) > _MIN_TURNS and sum(clip.size + gap for clip in clips) - gap > limit:
            clips.pop(0)
        return join_turns(clips)[-limit:]

    def usage(self) -> dict[str, Any]:
        """Return nothing: the answers hold all usage."""
        return {}


def _compare(*found: Judgement) -> Decision:
    chosen, rejected = (each.score if each.expected_score is None else each.expected_score for each in found)
    if chosen is None or rejected is None:
        return FAILED
    return Decision(chosen, rejected, "tie" if chosen == rejected else "scores")


def _record_judgement(label: Mapping[str, Any], side: str, judgement: Judgement) -> dict[str, Any]:
    return {
        "pair_id": label["pair_id"],
        "side": side,
        "answer": "\n\n".join(judgement.texts),
        "score": judgement.score,
        "expected_score": judgement.expected_score,
        "scores": list(judgement.scores),
        "follows_format": judgement.follows_format,
        "num_replies": len(judgement.texts),
        "prompt_tokens": 0,
        "completion_tokens": judgement.num_tokens,
        "num_cut": judgement.num_cut,
        "problem": judgement.problem,
    }
