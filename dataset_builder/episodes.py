"""The data that sources and stages of the builder exchange: parts, turns, episodes, recordings, scripts."""

from __future__ import annotations

from dataclasses import dataclass

from sdiareward.chat_sdiareward import MAX_TEXT_CHARACTERS
from sdiareward.pairs.schema import is_text, is_time, make_stable_id, validate_roles


_EPISODE_TEXTS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")


@dataclass(frozen=True)
class Part:
    """A stretch of a turn that was recorded in one go: its words, and its recording if there is one."""

    text: str
    audio: str | None = None
    start_s: float = 0.0  # In `audio`.
    end_s: float | None = None  # None for the end of the recording.
    ref: str | None = None  # `source:path`, relative to the corpus; needed for a release.


@dataclass(frozen=True)
class Turn:
    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.parts if part.text)


@dataclass(frozen=True)
class Episode:
    """An even number of alternating turns, as a source gives it."""

    name: str  # Unique within its source and the same on every machine.
    source: str
    subset: str
    group: str  # The recording or dialogue that it is cut from; never in two splits.
    turns: tuple[Turn, ...]
    primary: str
    secondary: str
    language: str
    license: str
    split_group: str | None = None  # A coarser unit that is held out whole, such as a domain.
    native_coding: tuple[str, ...] = ()  # The `channel.CODINGS` that its synthetic speech gets.
    known_group_id: str | None = None  # Of a released pair, whose `group` is not published.

    @property
    def group_id(self) -> str:
        """The unit of splits and of the bootstrap."""
        return self.known_group_id or make_stable_id(self.source, self.group)


@dataclass(frozen=True)
class Recording:
    """A long recording that the pipeline (section B.1) cuts into episodes."""

    recording_id: str  # Unique within its source; names the files of the stages.
    path: str
    ref: str
    source: str
    subset: str
    language: str
    license: str
    native_coding: tuple[str, ...] = ()


class SkipError(Exception):
    """Raised for an item that cannot be used; the caller, which has its name, reports it as `Skipped`."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind = kind


# In the place of a synthesizer, where both sides of a pair are recordings.
RECORDING = "recording"


@dataclass(frozen=True)
class ScriptPair:
    """The same dialogue written and spoken, as text: the two sides of a colloquialness pair (section 3.1)."""

    written: Episode
    spoken: Episode


def is_recorded(criterion: str, side: str, synthesizer: str) -> bool:
    """Return whether a side of a pair is a recording, not synthetic."""
    return synthesizer == RECORDING or (criterion == "modality" and side == "chosen")


def validate_episode(episode: Episode) -> None:
    from sdiareward.perturbations.channel import CODINGS

    label = f"{episode.source} episode {episode.name!s:.80}"
    for name in _EPISODE_TEXTS:
        if not is_text(value := getattr(episode, name)):
            raise ValueError(f"{label}: {name} is {value!r:.80}; a text is needed.")
    validate_roles([turn.role for turn in episode.turns], label)
    if unknown := [coding for coding in episode.native_coding if coding not in tuple(CODINGS)]:
        raise ValueError(f"{label}: native_coding names {unknown!r:.80}; known are {sorted(CODINGS)}.")
    for position, turn in enumerate(episode.turns):
        if not all(is_text(part.text) for part in turn.parts) or not turn.text.strip():
            raise ValueError(f"{label}: turn {position} has no text; omit it.")
        if (length := len(turn.text)) > MAX_TEXT_CHARACTERS:
            raise ValueError(f"{label}: turn {position} has {length} characters; give at most {MAX_TEXT_CHARACTERS}.")
        for part in turn.parts:
            if not is_time(part.start_s) or not (part.end_s is None or is_time(part.end_s)):
                raise ValueError(f"{label}: turn {position} is from {part.start_s!r:.40} s to {part.end_s!r:.40} s.")
            if part.end_s is not None and part.start_s >= part.end_s:
                raise ValueError(f"{label}: turn {position} ends at {part.end_s} s, before it begins.")
