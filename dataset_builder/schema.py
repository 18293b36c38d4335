"""What the builder's stages hand each other, the columns of a pair, and the validation of both.

The columns are the data contract of the package (one row = one preference pair); `TAXONOMY` is the paper's Table 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import datasets

CRITERIA = ("modality", "colloquialness")
MODALITY_SUBSETS = ("wild", "semi_wild", "scripted")
SUBSETS = (*MODALITY_SUBSETS, "colloquialness")
ROLES = ("user", "assistant")
MAX_TURNS = 16
MAX_TURN_S = 60.0
# Eleven days: what is beyond is no time in a recording.
MAX_TIME_S = 1e6
UNKNOWN = "Unknown"
_EPISODE_TEXTS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")

_CHECKED_COLUMNS = (
    *("pair_id", "criterion", "subset", "source", "primary", "secondary", "chosen", "rejected"),
    *("synthesizer", "group_id", "language", "license"),
)
_EMOTIONS = ("Anger", "Disgust", "Fear", "Sadness", "Surprise")
# Table 5: the primary and secondary dimension of each source that the paper stratifies.
TAXONOMY: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "youtube": (
        frozenset({*_EMOTIONS, "Happiness", "Neutral"}),
        frozenset(
            {"Cough", "Cry", "Filled Pauses", "Laughter", "Listener Feedback", "Sigh/Breath", "No Feature"},
        ),
    ),
    "meld": (frozenset({"Negative", "Neutral", "Positive"}), frozenset({*_EMOTIONS, "Joy", "Neutral"})),
    "dailytalk": (
        frozenset({"Commissive", "Directive", "Inform", "Question", UNKNOWN}),
        frozenset({*_EMOTIONS, "Happiness", "No Emotion"}),
    ),
}


@dataclass(frozen=True)
class Part:
    """A stretch of a turn that was recorded in one go: its words, and the recording where there is one.

    Args:
        text (`str`): What is said.
        audio (`bytes` or `str`, *optional*): An encoded recording or its path; None for a script that nobody spoke.
        start_s (`float`, *optional*, defaults to 0.0): Where the part begins in `audio`, in seconds.
        end_s (`float`, *optional*): Where it ends; None for the end of the recording.
        ref (`str`, *optional*): Where anyone finds the recording, the same on every machine: `source:path` with the
            path relative to the corpus' root, `#member` appended for an entry of an archive. A part without one can be
            built, but not be part of a metadata release.
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
        return " ".join(part.text for part in self.parts)


@dataclass(frozen=True)
class Episode:
    """An even number of alternating turns, as a source gives it.

    Args:
        name (`str`): Name of the episode, unique within its source and the same on every machine.
        group (`str`): Name of the recording or dialogue that the episode is cut from; a group never meets two splits.
        split_group (`str`, *optional*): A coarser unit that is held out whole, such as a domain; defaults to `group`.
        native_coding (`tuple[str, ...]`): Codings (`channel.CODINGS`) that the recordings went through before we got
            them; channel matching puts synthetic speech through the same.
        known_group_id (`str`, *optional*): The `group_id` of a released pair, whose `group` is not published.
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
        return self.known_group_id or stable_id(self.source, self.group)


@dataclass(frozen=True)
class Recording:
    """A long recording that the pipeline (section B.1) cuts into episodes.

    Args:
        recording_id (`str`): Unique within its source, the same on every machine; names the files of its stages.
        path (`str`): The file, in any format that `media` decodes.
        ref (`str`): Where anyone finds it; see `Part.ref`.
        source, subset, language, license (`str`): As in `Episode`.
    """

    recording_id: str
    path: str
    ref: str
    source: str
    subset: str
    language: str
    license: str


@dataclass(frozen=True)
class Drop:
    """Something that was left out, for the report. Sources and stages yield it in place of what they cannot use.

    Args:
        item (`str`): What: source and name, a file, a segment with its times.
        kind (`str`): Why, as a short `snake_case` word that the summary counts by, such as `"missing_audio"`.
        reason (`str`): Why, for a reader: what was found and what is needed.
    """

    item: str
    kind: str
    reason: str


@dataclass(frozen=True)
class ScriptPair:
    """The same dialogue written and spoken, as text: the two sides of a colloquialness pair (section 3.1)."""

    written: Episode
    spoken: Episode


def stable_id(*parts: Any) -> str:
    """Return 16 hexadecimal digits that depend on `parts` alone: the same on any machine."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:16]


def features() -> datasets.Features:
    """Return the columns of a pair as `datasets.Features` (audio mono, 16 kHz)."""
    import datasets

    text = datasets.Value("string")
    turn = {
        "role": text,
        "text": text,
        "audio": datasets.Audio(sampling_rate=16_000),
        "duration_s": datasets.Value("float32"),
        "audio_ref": datasets.List(
            {"uri": text, "start_s": datasets.Value("float64"), "end_s": datasets.Value("float64"), "text": text}
        ),
    }
    strings = ("pair_id", "criterion", "subset", "source", "primary", "secondary")
    channel = {name: datasets.Value("float32") for name in ("trim_db", "bandwidth_hz", "level_dbfs", "snr_db")}
    scores = {name: datasets.Value("int32") for name in ("content", "naturalness", "coherence")}
    return datasets.Features(
        {
            **dict.fromkeys(strings, text),
            "chosen": datasets.List(turn),
            "rejected": datasets.List(turn),
            "synthesizer": text,
            "group_id": text,
            "channel": {**channel, "coding": text},
            "native_coding": datasets.List(text),
            "quality": {"chosen": scores, "rejected": scores, "judge": text, "prompt_version": text},
            "language": text,
            "license": text,
        }
    )


def validate_episode(episode: Episode) -> None:
    """Check an episode that was made of what somebody else wrote.

    Raises:
        ValueError: It has no even number, at most 16, of alternating turns, a turn without words, a label that is no
            text, a coding that is not known, or times that are none.
    """
    from sdiareward.dataset_builder.channel import CODINGS

    label = f"{episode.source} episode {episode.name!s:.80}"
    for name in _EPISODE_TEXTS:
        if not is_text(value := getattr(episode, name)):
            raise ValueError(f"{label}: {name} is {value!r:.80}; a text is needed.")
    _validate_roles([turn.role for turn in episode.turns], label)
    if unknown := [coding for coding in episode.native_coding if coding not in tuple(CODINGS)]:
        raise ValueError(f"{label}: native_coding names {unknown!r:.80}; known are {sorted(CODINGS)}.")
    for position, turn in enumerate(episode.turns):
        if not all(is_text(part.text) for part in turn.parts) or not turn.text.strip():
            raise ValueError(f"{label}: turn {position} has no text; leave it out.")
        for part in turn.parts:
            if not is_time(part.start_s) or not (part.end_s is None or is_time(part.end_s)):
                raise ValueError(f"{label}: turn {position} is from {part.start_s!r:.40} s to {part.end_s!r:.40} s.")
            if part.end_s is not None and part.start_s >= part.end_s:
                raise ValueError(f"{label}: turn {position} ends at {part.end_s} s, before it begins.")


def is_text(value: Any) -> bool:
    """Tell whether a value is a text that can be written; one with half a character, as JSON allows it, cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_time(value: Any) -> bool:
    """Tell whether a value is a time in a recording, in seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_TIME_S


def validate_row(row: Mapping[str, Any]) -> None:
    """Check one pair against the data contract.

    Raises:
        ValueError: A column is missing or has a value outside its vocabulary, a side breaks the rules of an episode,
            or a turn lasts no time or more than 60 s. The message names the pair.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"the row is a {type(row).__name__}; a pair has columns by name.")
    label = f"pair {row.get('pair_id')!r:.80}"
    if missing := [column for column in _CHECKED_COLUMNS if column not in row]:
        raise ValueError(f"{label}: has no columns {missing}; every pair needs them.")
    for column, allowed in (("criterion", CRITERIA), ("subset", SUBSETS)):
        if row[column] not in allowed:
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; it must be one of {list(allowed)}.")
    if (row["criterion"] == "colloquialness") != (row["subset"] == "colloquialness"):
        raise ValueError(f"{label}: criterion {row['criterion']!r} does not go with subset {row['subset']!r}.")
    for column in ("pair_id", "source", "synthesizer", "group_id", "language", "license"):
        if not row[column]:
            raise ValueError(f"{label}: {column} is empty; every pair needs one.")
        if not is_text(row[column]):
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; a text is needed.")
    _validate_taxonomy(row, label)
    for side in ("chosen", "rejected"):
        _validate_side(row[side], f"{label}, {side}")


def _validate_side(turns: Any, label: str) -> None:
    is_list = isinstance(turns, Sequence) and not isinstance(turns, (str, bytes))
    if not is_list or not all(isinstance(turn, Mapping) and {"role", "duration_s"} <= set(turn) for turn in turns):
        raise ValueError(f"{label}: is {turns!r:.80}; a list of turns with role and duration_s is needed.")
    _validate_roles([turn["role"] for turn in turns], label)
    for position, turn in enumerate(turns):
        duration_s = turn["duration_s"]
        if not is_time(duration_s) or not 0 < duration_s <= MAX_TURN_S:
            raise ValueError(
                f"{label} turn {position}: lasts {duration_s!r:.40} s; "
                f"it must last more than 0 and at most {MAX_TURN_S:.0f} s."
            )


def _validate_taxonomy(row: Mapping[str, Any], label: str) -> None:
    """Check the labels of a stratified source; `UNKNOWN` stands for one that nobody has annotated yet."""
    for column in ("primary", "secondary"):
        if not is_text(row[column]):
            raise ValueError(
                f"{label}: {column} is {row[column]!r:.80}; a text is needed, {UNKNOWN!r} if none is known."
            )
    for column, allowed in zip(("primary", "secondary"), TAXONOMY.get(row["source"], ()), strict=False):
        if row[column] not in allowed | {UNKNOWN}:
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; Table 5 allows {sorted(allowed)}.")


def _validate_roles(roles: Sequence[str], label: str) -> None:
    if not roles or len(roles) % 2 or len(roles) > MAX_TURNS:
        raise ValueError(f"{label}: has {len(roles)} turns; it needs an even number from 2 to {MAX_TURNS}.")
    expected = [ROLES[position % 2] for position in range(len(roles))]
    if list(roles) != expected:
        raise ValueError(f"{label}: roles are {list(roles)}; they must alternate, beginning with 'user'.")
