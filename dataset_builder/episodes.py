"""The data types of the builder's sources and stages: parts, turns, episodes, recordings, scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from sdiareward.chat_sdiareward import MAX_TEXT_CHARACTERS
from sdiareward.pairs.schema import is_text, is_time, make_stable_id, validate_roles


# Share of the shorter of two turns of one recording; people interrupt each other, but rarely overlap for longer.
MAX_OVERLAP = 0.5
# Diarised turns are ordered by start; annotated turns may start slightly early.
_MAX_STEP_BACK_S = 0.5
_EPISODE_TEXTS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")
# Replaces the synthesizer's name if both sides of a pair are recordings.
RECORDING = "recording"
# Replaces the source's name for synthetic turns.
SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class Part:
    """A continuously recorded stretch of a turn: its words, and its recording if there is one."""

    text: str
    audio: str | None = None
    start_s: float = 0.0  # In `audio`.
    end_s: float | None = None  # None: end of the recording.
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
    """An even number of alternating turns from a source."""

    name: str  # Unique within its source, the same on every machine.
    source: str
    subset: str
    group: str  # The original recording or dialogue; never in two splits.
    turns: tuple[Turn, ...]
    primary: str
    secondary: str
    language: str
    license: str
    split_group: str | None = None  # A coarser unit that is held out as a whole, such as a domain.
    native_coding: tuple[str, ...] = ()  # `channel.CODINGS` for its synthetic speech.
    marks: tuple[tuple[int, str], ...] = ()  # Turn number and text of each removed mark.
    known_group_id: str | None = None  # For a released pair: its `group` is not published.

    @property
    def group_id(self) -> str:
        """The unit of splits and of the bootstrap."""
        return self.known_group_id or make_stable_id(self.source, self.group)


@dataclass(frozen=True)
class Recording:
    """A long recording that the pipeline (section B.1) cuts into episodes."""

    recording_id: str  # Unique within its source; used in file names of the stages.
    path: str
    ref: str
    source: str
    subset: str
    language: str
    license: str
    native_coding: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScriptPair:
    """One dialogue in written and in spoken style, as text: a colloquialness pair (section 3.1)."""

    written: Episode
    spoken: Episode


class SkipError(Exception):
    """Raised for an unusable item; the caller reports it as `Skipped`, with its name."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind = kind


class TurnTimesError(ValueError):
    """Raised for turns that are not in sequence in their recording."""


def is_recorded(criterion: str, side: str, synthesizer: str) -> bool:
    """Return whether a side of a pair is recorded, not synthetic."""
    return synthesizer == RECORDING or (criterion == "modality" and side == "chosen")


def make_reference(source: str, path: str | Path) -> str:
    """Return a machine-independent reference of a recording; `path` is relative to the corpus."""
    return f"{source}:{Path(path).as_posix()}"


def split_reference(reference: str) -> tuple[str, str]:
    source, _, path = reference.partition(":")
    if not (source and path):
        raise ValueError(f"reference {reference!r}: must have the form 'source:path'.")
    return source, path


def validate_episode(episode: Episode, *, is_broken: bool = False) -> None:
    """Raise `ValueError` for an invalid episode; in a broken dialogue, turns may repeat or come too early."""
    from sdiareward.perturbations.channel import CODINGS

    label = f"{episode.source} episode {episode.name!s:.80}"
    for name in _EPISODE_TEXTS:
        if not is_text(value := getattr(episode, name)):
            raise ValueError(f"{label}: {name} is {value!r:.80}; give text.")
    validate_roles([turn.role for turn in episode.turns], label)
    if unknown := [coding for coding in episode.native_coding if coding not in tuple(CODINGS)]:
        raise ValueError(f"{label}: unknown native_coding {unknown!r:.80}; choose from {sorted(CODINGS)}.")
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
            raise TurnTimesError(f"{label}: turns {other} and {position} overlap by {shared:.0%}; shorten one.")
        if step_s < -_MAX_STEP_BACK_S:
            raise TurnTimesError(f"{label}: turn {position} begins {-step_s:.2f} s before turn {other}; order them.")


def compare_spans(episode: Episode) -> Iterator[tuple[int, int, float, float]]:
    """Yield turn numbers, overlap and distance in seconds of each two parts of one recording."""
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
