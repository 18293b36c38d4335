"""Questions about a pair: which side is heard first, the messages to the judge, and its answer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.common.llm.settings import TokenUsage
from sdiareward.dataset_builder.pairing.filtering import make_spoken_turns
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import SIDES

from ..settings import MAX_TURN_S
from .answers import VERSIONS, Verdict, is_refusal
from .prompts import PROMPTS


# Which side is version A.
ORDERS = {"chosen_first": SIDES, "rejected_first": SIDES[::-1]}
Orders = Literal["both", "one"]
# Unusable: no valid verdict after all attempts; unanswered: no reply; unheard: unreadable audio, not sent.
Status = Literal["usable", "refused", "unusable", "unanswered", "unheard"]


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
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": content},
        ]
        return messages, num_samples / SAMPLING_RATE


@dataclass(frozen=True)
class Answer:
    """The answer to a question."""

    verdict: Verdict | None
    text: str = ""
    status: Status = "usable"
    problem: str | None = None
    spent: TokenUsage = field(default_factory=TokenUsage)
    audio_s: float = 0.0

    def find_preferred_side(self, order: str) -> str | None:
        """Return the side that the judge prefers, `"chosen"` or `"rejected"`; None without a verdict."""
        return None if self.verdict is None else ORDERS[order][VERSIONS.index(self.verdict.preference)]

    def sum_scores(self, order: str, side: str) -> int:
        assert self.verdict is not None
        return self.verdict.sum_scores(VERSIONS[ORDERS[order].index(side)])

    def as_record(self, question: Question) -> dict[str, Any]:
        """Return the answer as a line of `answers.jsonl`, for [`ReplayBackend`]."""
        return {
            "pair_id": question.pair_id,
            "order": question.order,
            "criterion": question.criterion,
            "answer": self.text,
            "status": self.status,
            "problem": self.problem,
            "repairs": [] if self.verdict is None else list(self.verdict.repairs),
            "num_replies": self.spent.num_replies,
            "prompt_tokens": self.spent.prompt_tokens,
            "completion_tokens": self.spent.completion_tokens,
        }


class Backend(Protocol):
    """Answers a judge's questions."""

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Yield the answer to each question, in order; an error in one question affects no other."""
        ...

    def usage(self) -> dict[str, Any]:
        """Return further usage of this session, beyond that of the answers."""
        return {}


def make_failed_answer(problem: str, text: str | None, spent: TokenUsage, audio_s: float = 0.0) -> Answer:
    """Make an answer without a verdict; `text` is None if there was no reply."""
    status: Status = "unanswered" if text is None else "refused" if is_refusal(text) else "unusable"
    return Answer(None, text or "", status, problem, spent, audio_s)
