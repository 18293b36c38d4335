"""Back ends that answer a judge's questions: an endpoint, a thinker in this process, or recorded answers."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.files import parse_json, split_lines, unseal
from sdiareward.common.llm.client import ChatClient, ChatError, ask_again
from sdiareward.common.llm.settings import TokenUsage

from .answers import read_text, read_verdict
from .questions import ORDERS, Answer, Backend, Question, make_failed_answer


if TYPE_CHECKING:
    from ..thinker import Thinker

# Errors of `audio_sdiareward.read_audio` about a recording.
AUDIO_ERRORS = (AudioError, FileNotFoundError, TypeError)
_COUNTS = ("num_replies", "prompt_tokens", "completion_tokens")
_CONTROL_TOKEN = re.compile(r"<\|[^|<>]*\|>")


class EndpointBackend(Backend):
    """Ask an OpenAI-compatible endpoint whose model takes `input_audio`, in at most `attempts` requests a question."""

    def __init__(self, client: ChatClient, attempts: int):
        self.client = client
        self.attempts = attempts

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Yield the answers in order; questions are sent concurrently, and valid answers are cached on disk."""
        for answer in self.client.map(self._ask, questions, failures=(), description="questions"):
            # `failures` is empty: an exception would have been raised.
            assert isinstance(answer, Answer)
            yield answer

    def _ask(self, question: Question) -> Answer:
        try:
            messages, audio_s = question.build_messages()
        except AUDIO_ERRORS as error:
            return Answer(None, status="unheard", problem=str(error))
        try:
            read = partial(read_verdict, criterion=question.criterion)
            found = self.client.ask(messages, read, attempts=self.attempts)
        except ChatError as error:
            if error.is_refusal:
                return Answer(None, error.answer or "", "refused", str(error), error.spent, audio_s)
            return make_failed_answer(str(error), error.answer, error.spent, audio_s)
        # Parse the text again: the client returns the JSON alone, without the text around it.
        return Answer(read_text(found.text, question.criterion), found.text, spent=found.spent, audio_s=audio_s)

    def usage(self) -> dict[str, Any]:
        return self.client.usage


class ThinkerBackend(Backend):
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
        asked: dict[int, _Asked] = {}
        for index, question in enumerate(questions):
            try:
                asked[index] = _Asked.begin(question)
            except AUDIO_ERRORS as error:
                answers[index] = Answer(None, status="unheard", problem=str(error))
        pending = list(asked)
        for _ in range(self.attempts):
            if not pending:
                break
            conversations = [asked[index].conversation for index in pending]
            generations = self.thinker.generate(conversations, **self.sampling)
            for index, (generation,) in zip(pending, generations, strict=True):
                num_prompt_tokens = self.thinker.processor.num_tokens(asked[index].conversation)
                spent = TokenUsage(1, num_prompt_tokens, generation.num_tokens)
                answers[index] = asked[index].take(generation.text, generation.is_cut, spent)
            pending = [index for index in pending if answers[index].verdict is None]
        return [answers[index] for index in range(len(questions))]


@dataclass
class _Asked:
    """A question to a thinker, with its conversation and usage so far."""

    question: Question
    messages: list[Any]
    audio_s: float
    conversation: list[Any]
    spent: TokenUsage = field(default_factory=TokenUsage)

    @classmethod
    def begin(cls, question: Question) -> _Asked:
        messages, audio_s = question.build_messages()
        conversation = [_as_conversation(message) for message in messages]
        return cls(question, conversation, audio_s, conversation)

    def take(self, text: str, is_cut: bool, spent: TokenUsage) -> Answer:
        """Return the answer in the judge's text; without a verdict, name the problem in the next conversation."""
        self.spent = TokenUsage.total([self.spent, spent])
        try:
            verdict = read_text(text, self.question.criterion, is_cut=is_cut)
        except ValueError as error:
            # A control token within a text would be encoded as one.
            said, problem = (_CONTROL_TOKEN.sub("", words) for words in (text, str(error)))
            self.conversation = ask_again(self.messages, said, problem)
            return make_failed_answer(str(error), text, self.spent, self.audio_s)
        return Answer(verdict, text, spent=self.spent, audio_s=self.audio_s)


def _as_conversation(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message from the form of an endpoint to that of the thinker's processor."""
    content = message["content"]
    if not isinstance(content, str):
        content = [_as_item(part) for part in content]
    return {"role": message["role"], "content": content}


def _as_item(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "input_audio":
        return part
    return {"type": "audio", "audio": base64.b64decode(part["input_audio"]["data"])}


class ReplayBackend(Backend):
    """Replay recorded answers: JSON lines with `pair_id`, `order` and `answer`, the last one of a question counts."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path}: no such file of answers; give the answers.jsonl of a run as path.")
        lines = split_lines(self.path.read_text(encoding="utf-8"))
        records = [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
        self._records = {(record["pair_id"], record["order"]): record for record in records}

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        missing = [each for each in questions if (each.pair_id, each.order) not in self._records]
        if missing:
            raise ValueError(
                f"{self.path}: lacks {len(missing)} of {len(questions)} answers, the first is of pair "
                f"{missing[0].pair_id!r}, {missing[0].order}; record them, or set orders=one or limit."
            )
        for question in questions:
            yield _replay(self._records[question.pair_id, question.order], question.criterion)


def _read_line(line: str, where: str) -> dict[str, Any]:
    try:
        record = parse_json(unseal(line.encode()) or b"")
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error}); take the line out.") from error
    required = ("pair_id", "order", "answer")
    if not isinstance(record, dict) or not set(required) <= set(record):
        raise ValueError(f"{where}: must be an object with {list(required)}; add what is missing.")
    if record["order"] not in tuple(ORDERS):
        raise ValueError(f"{where}: order is {record['order']!r:.80}; it must be one of {list(ORDERS)}.")
    if not isinstance(record["pair_id"], str):
        raise ValueError(f"{where}: pair_id is {record['pair_id']!r:.80}; it must be a text.")
    if bad := [name for name in _COUNTS if not isinstance(record.get(name) or 0, int)]:
        raise ValueError(f"{where}: {bad} must be whole numbers; correct them or take them out.")
    return record


def _replay(record: Mapping[str, Any], criterion: str) -> Answer:
    """Return a recorded answer; a usable one is parsed again."""
    text = str(record["answer"])
    counts = [int(record.get(name) or 0) for name in _COUNTS]
    spent = TokenUsage(counts[0] or 1, *counts[1:])
    status = record.get("status", "usable")
    if status != "usable":
        return Answer(None, text, status, record.get("problem"), spent)
    try:
        return Answer(read_text(text, criterion), text, spent=spent)
    except ValueError as error:
        return make_failed_answer(str(error), text, spent)
