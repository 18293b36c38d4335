"""Ask about a pair: who is heard first, what the judge hears and is told, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.dataset_builder.pairing.filtering import spoken_turns
from sdiareward.llm.settings import TokenUsage
from sdiareward.pairs.loading import turns_to_messages
from sdiareward.pairs.schema import SIDES

from .answers import VERSIONS, Verdict, is_refusal
from .prompts import PROMPTS


# Which side is version A.
ORDERS = {"chosen_first": SIDES, "rejected_first": SIDES[::-1]}
# As much of each turn as the reward model hears.
MAX_TURN_S = 30.0
Status = Literal["usable", "refused", "unusable", "unanswered", "unheard"]


def criterion_of(label: Mapping[str, Any]) -> str:
    """Return the criterion whose prompt a pair is judged by.

    A pair of the released form has the criterion `joint`, for which the paper has no judge's prompt; its subset says
    which of the two is meant.

    Args:
        label (`Mapping`): What `labels.describe_pairs` says of the pair.
    """
    if label["criterion"] in PROMPTS:
        return str(label["criterion"])
    return "colloquialness" if label["subset"] == "colloquialness" else "modality"


def heard_turns(turns: Sequence[Mapping[str, Any]], name: str, max_turn_s: float = MAX_TURN_S) -> list[dict[str, Any]]:
    """Return who speaks in each turn and what is heard of it.

    Args:
        turns (`Sequence[Mapping]`): One side of a pair: turns of our schema, or messages.
        name (`str`): What to call the side in an error.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds heard of each turn.

    Returns:
        `list[dict]`: `role` and `audio`, a mono array of shape `(num_samples,)` at 16 kHz.

    Raises:
        AudioError: A recording cannot be used, or a turn has none or several.
        FileNotFoundError: A path does not exist.
    """
    heard = []
    for position, message in enumerate(turns_to_messages(turns)):
        if message["role"] == "system":
            continue
        items = [] if isinstance(message["content"], str) else message["content"]
        sounds = [item["audio"] for item in items if item["type"] == "audio"]
        where = f"{name}, turn {position}"
        if len(sounds) != 1:
            raise AudioError(f"{where}: has {len(sounds)} recordings; a judge hears exactly one of each turn.")
        audio = read_audio(sounds[0], max_duration_s=max_turn_s, name=where)
        heard.append({"role": message["role"], "audio": audio})
    if not heard:
        raise AudioError(f"{name}: has no turns; a judge needs at least one.")
    return heard


@dataclass(frozen=True)
class Question:
    """One pair in one order.

    Args:
        pair_id (`str`): The pair.
        order (`str`): `"chosen_first"` or `"rejected_first"`; the judge is not told.
        criterion (`str`): `"modality"` or `"colloquialness"`.
        read_pair (`Callable`): Returns the pair's row; called when the question is asked, not before.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds heard of each turn.
    """

    pair_id: str
    order: str
    criterion: str
    read_pair: Callable[[], Mapping[str, Any]]
    max_turn_s: float = MAX_TURN_S

    def messages(self) -> tuple[list[dict[str, Any]], float]:
        """Return what the judge is told and hears, in the form of an endpoint, and how many seconds that is.

        Raises:
            AudioError, FileNotFoundError: As `heard_turns`.
        """
        row = self.read_pair()
        system, request = PROMPTS[self.criterion]
        content: list[dict[str, Any]] = []
        num_samples = 0
        for version, side in zip(VERSIONS, ORDERS[self.order], strict=True):
            heard = heard_turns(row[side], side, self.max_turn_s)
            num_samples += sum(turn["audio"].size for turn in heard)
            content.append({"type": "text", "text": f"Version {version}:"})
            content += spoken_turns(heard, side)
        content.append({"type": "text", "text": request})
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": content},
        ]
        return messages, num_samples / SAMPLING_RATE


@dataclass(frozen=True)
class Answer:
    """What came back to a question.

    Args:
        verdict (`Verdict`, *optional*): What the judge says; None if there is nothing to be used.
        text (`str`): What the judge said.
        status (`str`): `"usable"`; `"refused"`: it declined; `"unusable"`: no valid verdict, however often it was
            asked; `"unanswered"`: nothing came; `"unheard"`: the pair's audio cannot be read, so nobody was asked.
        problem (`str`, *optional*): Why it is not usable.
        spent (`Spent`): Replies and tokens.
        audio_s (`float`): Seconds of audio that were read for the question.
    """

    verdict: Verdict | None
    text: str = ""
    status: Status = "usable"
    problem: str | None = None
    spent: TokenUsage = field(default_factory=TokenUsage)
    audio_s: float = 0.0

    def preferred_side(self, order: str) -> str | None:
        """Return `"chosen"` or `"rejected"`, whichever the judge prefers; None if it does not say."""
        return None if self.verdict is None else ORDERS[order][VERSIONS.index(self.verdict.preference)]

    def total(self, order: str, side: str) -> int:
        """Return the sum of a side's scores; the answer must be usable."""
        assert self.verdict is not None
        return self.verdict.total(VERSIONS[ORDERS[order].index(side)])

    def as_record(self, question: Question) -> dict[str, Any]:
        """Return the answer as a line of `answers.jsonl`, from which it can be replayed."""
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
    """Whom a judge's questions go to."""

    def answer(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Yield the answer to each question, in order, as it comes; whatever is wrong with one costs that one alone.

        Raises:
            EndpointError: Nobody can be asked at all.
        """
        ...

    def usage(self) -> dict[str, Any]:
        """Return what was spent in this session, as far as this back end knows more than the answers tell."""
        ...


def failed_answer(problem: str, text: str | None, spent: TokenUsage, audio_s: float = 0.0) -> Answer:
    """Return the answer of a judge that gave no verdict.

    Args:
        problem (`str`): Why not.
        text (`str`, *optional*): What it said instead; None if nothing came.
        spent (`Spent`): Replies and tokens.
        audio_s (`float`, *optional*, defaults to 0.0): Seconds of audio that were read.
    """
    status: Status = "unanswered" if text is None else "refused" if is_refusal(text) else "unusable"
    return Answer(None, text or "", status, problem, spent, audio_s)
