"""The data that sources and stages of the builder exchange: parts, turns, episodes, recordings, scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from sdiareward.chat_sdiareward import MAX_TEXT_CHARACTERS
from sdiareward.pairs.schema import is_text, is_time, make_stable_id, validate_roles


# Of the shorter of two turns of one recording; people interrupt each other, but rarely speak at the same time so long.
MAX_OVERLAP = 0.5
# Diarised turns are in the order of their starts, annotated ones up to a breath.
_MAX_STEP_BACK_S = 0.5
_EPISODE_TEXTS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")
# In the place of a synthesizer, where both sides of a pair are recordings.
RECORDING = "recording"
# In the place of a source, for turns that a synthesizer spoke.
SYNTHETIC = "synthetic"


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
    marks: tuple[tuple[int, str], ...] = ()  # Turn and mark of each that was taken out of its words.
    known_group_id: str | None = None  # Of a released pair; its `group` is not published.

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


@dataclass(frozen=True)
class ScriptPair:
    """The same dialogue written and spoken, as text: the two sides of a colloquialness pair (section 3.1)."""

    written: Episode
    spoken: Episode


class SkipError(Exception):
    """Raised for an item that cannot be used; the caller, which has its name, reports it as `Skipped`."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind = kind


class TurnTimesError(ValueError):
    """Raised for turns that are not one after the other in their recording."""


def is_recorded(criterion: str, side: str, synthesizer: str) -> bool:
    """Return whether a side of a pair is a recording, not synthetic."""
    return synthesizer == RECORDING or (criterion == "modality" and side == "chosen")


def make_reference(source: str, path: str | Path) -> str:
    """Return the reference of a recording, the same on every machine; path is relative to the corpus."""
    return f"{source}:{Path(path).as_posix()}"


def split_reference(reference: str) -> tuple[str, str]:
    source, _, path = reference.partition(":")
    if not (source and path):
        raise ValueError(f"reference {reference!r}: must read 'source:path'.")
    return source, path


def validate_episode(episode: Episode, *, is_broken: bool = False) -> None:
    """Raise `ValueError` for an episode that is none; in a broken dialogue a turn may return or come too early."""
    from sdiareward.perturbations.channel import CODINGS

    label = f"{episode.source} episode {episode.name!s:.80}"
    for name in _EPISODE_TEXTS:
        if not is_text(value := getattr(episode, name)):
            raise ValueError(f"{label}: {name} is {value!r:.80}; a text is needed.")
    validate_roles([turn.role for turn in episode.turns], label)
    if unknown := [coding for coding in episode.native_coding if coding not in tuple(CODINGS)]:
        raise ValueError(f"{label}: native_coding names {unknown!r:.80}; known are {sorted(CODINGS)}.")
    for position, turn in enumerate(episode.turns):
        place = f"{label}: turn {position}"
        if not all(is_text(part.text) for part in turn.parts) or not turn.text.strip():
            raise ValueError(f"{place} has no text; omit it.")
        if (length := len(turn.text)) > MAX_TEXT_CHARACTERS:
            raise ValueError(f"{place} has {length} characters; give at most {MAX_TEXT_CHARACTERS}.")
        for start_s, end_s in ((part.start_s, part.end_s) for part in turn.parts):
            if not is_time(start_s) or not (end_s is None or (is_time(end_s) and start_s < end_s)):
                raise TurnTimesError(f"{place} is from {start_s!r:.40} s to {end_s!r:.40} s; give 0 <= start < end.")
    for position, other, shared, step_s in () if is_broken else compare_spans(episode):
        if shared > MAX_OVERLAP:
            raise TurnTimesError(f"{label}: turns {other} and {position} have {shared:.0%} in common; cut one.")
        if step_s < -_MAX_STEP_BACK_S:
            raise TurnTimesError(f"{label}: turn {position} begins {-step_s:.2f} s before turn {other}; order them.")


def compare_spans(episode: Episode) -> Iterator[tuple[int, int, float, float]]:
    """Yield both turns, the share in common and the seconds between of each two parts of one recording."""
    earlier: dict[str, list[tuple[int, float, float]]] = {}
    for position, turn in enumerate(episode.turns):
        for part in (part for part in turn.parts if part.audio is not None):
            start_s, end_s = part.start_s, inf if part.end_s is None else part.end_s
            spans = earlier.setdefault(os.path.realpath(str(part.audio)), [])
            for other, other_start_s, other_end_s in spans:
                shared_s = min(end_s, other_end_s) - max(start_s, other_start_s)
                shorter_s = min(end_s - start_s, other_end_s - other_start_s)
                shared = 1.0 if shared_s == inf else max(shared_s / shorter_s, 0.0)
                yield position, other, shared, start_s - other_start_s
            spans.append((position, start_s, end_s))
