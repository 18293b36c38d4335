"""The data that sources and stages of the builder exchange: parts, turns, episodes, recordings, scripts."""

from __future__ import annotations

from dataclasses import dataclass

from sdiareward.pairs.schema import is_text, is_time, make_stable_id, validate_roles


_EPISODE_TEXTS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")


@dataclass(frozen=True)
class Part:
    """A stretch of a turn that was recorded in one go: its words, and its recording if there is one.

    Args:
        text (`str`): The words.
        audio (`bytes` or `str`, *optional*): An encoded recording or its path; None for a script.
        start_s (`float`, *optional*, defaults to 0.0): Where the part begins in `audio`, in seconds.
        end_s (`float`, *optional*): Where it ends; None for the end of the recording.
        ref (`str`, *optional*): Reference to the recording, the same on every machine: `source:path` with the path
            relative to the corpus' root. A part without one can be built, but not released.
    """

    text: str
    audio: bytes | str | None = None
    start_s: float = 0.0
    end_s: float | None = None
    ref: str | None = None


@dataclass(frozen=True)
class Turn:
    """One speaker's contribution to a dialogue."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The words of all parts."""
        return " ".join(part.text for part in self.parts if part.text)


@dataclass(frozen=True)
class Episode:
    """An even number of alternating turns, as a source gives it.

    Args:
        name (`str`): Name of the episode, unique within its source and the same on every machine.
        group (`str`): Name of the recording or dialogue that the episode is cut from; a group is never in two splits.
        split_group (`str`, *optional*): A coarser unit that is held out whole, such as a domain; defaults to `group`.
        native_coding (`tuple[str, ...]`): Codings (`channel.CODINGS`) of the recordings; channel matching
            applies them to synthetic speech.
        known_group_id (`str`, *optional*): The `group_id` of a released pair; its `group` is not published.
    """

    name: str
    source: str
    subset: str
    group: str
    turns: tuple[Turn, ...]
    primary: str
    secondary: str
    language: str
    license: str
    split_group: str | None = None
    native_coding: tuple[str, ...] = ()
    known_group_id: str | None = None

    @property
    def group_id(self) -> str:
        """Hash of the recording or dialogue, the unit of splits and of the bootstrap."""
        return self.known_group_id or make_stable_id(self.source, self.group)


@dataclass(frozen=True)
class Recording:
    """A long recording that the pipeline (section B.1) cuts into episodes.

    Args:
        recording_id (`str`): Unique within its source, the same on every machine; names the files of its stages.
        path (`str`): The file, in any format that `media` decodes.
        ref (`str`): Its reference; see `Part.ref`.
        source, subset, language, license (`str`): As in `Episode`.
        native_coding (`tuple[str, ...]`): That of its episodes.
    """

    recording_id: str
    path: str
    ref: str
    source: str
    subset: str
    language: str
    license: str
    native_coding: tuple[str, ...] = ()


class SkipError(Exception):
    """Raised for an item that cannot be used; the caller, who knows its name, reports it as `Skipped`.

    Args:
        kind (`str`): The `kind` of `Skipped`.
        reason (`str`): Its `reason`, and the message of the error.
    """

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
    """Tell whether a side of a pair is a recording; the others are synthetic."""
    return synthesizer == RECORDING or (criterion == "modality" and side == "chosen")


def validate_episode(episode: Episode) -> None:
    """Check an episode that was read from a foreign file.

    Raises:
        ValueError: The turns do not alternate, their number is odd or above 16, a turn has no words, a label is not a
            text, a coding is unknown, or a time is invalid.
    """
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
        for part in turn.parts:
            if not is_time(part.start_s) or not (part.end_s is None or is_time(part.end_s)):
                raise ValueError(f"{label}: turn {position} is from {part.start_s!r:.40} s to {part.end_s!r:.40} s.")
            if part.end_s is not None and part.start_s >= part.end_s:
                raise ValueError(f"{label}: turn {position} ends at {part.end_s} s, before it begins.")
