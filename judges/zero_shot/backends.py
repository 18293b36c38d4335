"""Whom a judge's questions go to: an endpoint, a thinker in this process, or the answers of an earlier run."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.files import split_lines
from sdiareward.llm.client import ChatClient, ChatError, ask_again
from sdiareward.llm.settings import TokenUsage

from .answers import read_text, read_verdict
from .questions import ORDERS, Answer, Question, failed_answer


if TYPE_CHECKING:
    from ..thinker import Thinker

# What is wrong with a recording, as `audio_sdiareward.read_audio` says it.
AUDIO_ERRORS = (AudioError, FileNotFoundError, TypeError)
_COUNTS = ("num_replies", "prompt_tokens", "completion_tokens")
_CONTROL_TOKEN = re.compile(r"<\|[^|<>]*\|>")


class EndpointBackend:
    """Ask an OpenAI-compatible endpoint whose model takes `input_audio`.

    Args:
        client (`ChatClient`): Endpoint, cache and counters.
        attempts (`int`, *optional*, defaults to 3): How often a question is asked until its answer is valid.
    """

    def __init__(self, client: ChatClient, attempts: int = 3):
        self.client = client
        self.attempts = attempts

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Yield the answers in order; several questions are under way at once, and valid answers are kept on disk."""
        for answer in self.client.map(self._ask, questions, failures=(), description="questions"):
            # `failures` is empty: an exception would have been raised.
            assert isinstance(answer, Answer)
            yield answer

    def _ask(self, question: Question) -> Answer:
        try:
            messages, audio_s = question.messages()
        except AUDIO_ERRORS as error:
            return Answer(None, status="unheard", problem=str(error))
        try:
            read = partial(read_verdict, criterion=question.criterion)
            found = self.client.ask(messages, read, attempts=self.attempts)
        except ChatError as error:
            if error.is_refusal:
                return Answer(None, error.answer or "", "refused", str(error), error.spent, audio_s)
            return failed_answer(str(error), error.answer, error.spent, audio_s)
        # Read once more from the text: the client has passed on the JSON alone, not what stands around it.
        return Answer(read_text(found.text, question.criterion), found.text, spent=found.spent, audio_s=audio_s)

    def usage(self) -> dict[str, Any]:
        """Return `ChatClient.usage`: calls, retries, answers from disk, tokens, dollars."""
        return self.client.usage


class ThinkerBackend:
    """Ask a thinker in this process; it hears the very samples that an endpoint is sent.

    Args:
        thinker (`Thinker`): The model.
        attempts (`int`, *optional*, defaults to 2): How often a question is asked until its answer is valid.
        max_new_tokens (`int`, *optional*, defaults to 512): Longest answer.
        temperature (`float`, *optional*, defaults to 0.0): 0 takes the likeliest token each time.
        seed (`int`, *optional*, defaults to 0): Of the sampling.
    """

    def __init__(
        self,
        thinker: Thinker,
        attempts: int = 2,
        *,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ):
        self.thinker = thinker
        self.attempts = attempts
        self.options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Yield the answers in order, batch by batch."""
        from tqdm import tqdm

        # Both orders of a pair belong in one batch, so that a run that is killed loses no half.
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
            generations = self.thinker.generate(conversations, **self.options)
            for index, (generation,) in zip(pending, generations, strict=True):
                num_prompt_tokens = self.thinker.processor.num_tokens(asked[index].conversation)
                is_cut = generation.num_tokens >= self.options["max_new_tokens"]
                spent = TokenUsage(1, num_prompt_tokens, generation.num_tokens)
                answers[index] = asked[index].take(generation.text, is_cut, spent)
            pending = [index for index in pending if answers[index].verdict is None]
        return [answers[index] for index in range(len(questions))]

    def usage(self) -> dict[str, Any]:
        """Return nothing: the answers tell all that was spent."""
        return {}


@dataclass
class _Asked:
    """A question on its way to a thinker, with what was spent on it so far."""

    question: Question
    messages: list[Any]
    audio_s: float
    conversation: list[Any]
    spent: TokenUsage = field(default_factory=TokenUsage)

    @classmethod
    def begin(cls, question: Question) -> _Asked:
        messages, audio_s = question.messages()
        conversation = [_as_conversation(message) for message in messages]
        return cls(question, conversation, audio_s, conversation)

    def take(self, text: str, is_cut: bool, spent: TokenUsage) -> Answer:
        """Return what the judge's text comes to; make the next question say what is wrong with it."""
        self.spent = TokenUsage.total([self.spent, spent])
        try:
            verdict = read_text(text, self.question.criterion, is_cut=is_cut)
        except ValueError as error:
            # A control token in a text would be taken for one.
            said, problem = (_CONTROL_TOKEN.sub("", words) for words in (text, str(error)))
            self.conversation = ask_again(self.messages, said, problem)
            return failed_answer(str(error), text, self.spent, self.audio_s)
        return Answer(verdict, text, spent=self.spent, audio_s=self.audio_s)


def _as_conversation(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message for an endpoint as the thinker's processor takes it."""
    content = message["content"]
    if not isinstance(content, str):
        content = [_as_item(part) for part in content]
    return {"role": message["role"], "content": content}


def _as_item(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "input_audio":
        return part
    return {"type": "audio", "audio": base64.b64decode(part["input_audio"]["data"])}


class ReplayBackend:
    """Read the answers of an earlier run, or of a judge that nothing here can ask.

    Args:
        path (`str` or `Path`): JSON lines with `pair_id`, `order` (`chosen_first` or `rejected_first`) and `answer`,
            the text of the judge; `answers.jsonl` of any judge that compares is such a file. Of two lines about the
            same the later one counts.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not JSON, lacks a key, or names another order.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path}: no such file of answers; give the answers.jsonl of a run as path.")
        lines = split_lines(self.path.read_text(encoding="utf-8"))
        records = [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
        self._records = {(record["pair_id"], record["order"]): record for record in records}

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Yield the recorded answers in order; those that were of use are checked as if they had come just now.

        Raises:
            ValueError: The file has no answer to one of the questions.
        """
        missing = [q for q in questions if (q.pair_id, q.order) not in self._records]
        if missing:
            raise ValueError(
                f"{self.path}: lacks {len(missing)} of {len(questions)} answers, the first is of pair "
                f"{missing[0].pair_id!r}, {missing[0].order}; record them, or evaluate fewer pairs with limit."
            )
        for question in questions:
            yield _replay(self._records[question.pair_id, question.order], question.criterion)

    def usage(self) -> dict[str, Any]:
        """Return nothing: a replay spends nothing."""
        return {}


def _read_line(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
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
    """Return a recorded answer; one that was of use then has to be so still."""
    text = str(record["answer"])
    counts = [int(record.get(name) or 0) for name in _COUNTS]
    spent = TokenUsage(counts[0] or 1, *counts[1:])
    status = record.get("status", "usable")
    if status != "usable":
        return Answer(None, text, status, record.get("problem"), spent)
    try:
        return Answer(read_text(text, criterion), text, spent=spent)
    except ValueError as error:
        return failed_answer(str(error), text, spent)
