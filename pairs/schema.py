"""The columns of a pair, which are the data contract of the package (one pair per row), and its validation.

`TAXONOMY` is the paper's Table 5.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET, SUBSETS


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

CRITERIA = ("modality", "colloquialness")
# Of pairs about the conversation, which are in no subset of the paper.
JOINT = "joint"
MAX_TURN_S = 60.0
UNKNOWN = "Unknown"

SIDES = ("chosen", "rejected")
# The first that a table has names its rows.
ID_COLUMNS = ("pair_id", "id")
# Eleven days: what is beyond is no time in a recording.
MAX_TIME_S = 1e6
_EMOTIONS = ("Anger", "Disgust", "Fear", "Sadness", "Surprise")
_SOUNDS = ("Cough", "Cry", "Filled Pauses", "Laughter", "Listener Feedback", "Sigh/Breath", "No Feature")
# Table 5: the primary and secondary dimension of each source that the paper stratifies.
TAXONOMY: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "youtube": (frozenset({*_EMOTIONS, "Happiness", "Neutral"}), frozenset(_SOUNDS)),
    "meld": (frozenset({"Negative", "Neutral", "Positive"}), frozenset({*_EMOTIONS, "Joy", "Neutral"})),
    "dailytalk": (
        frozenset({"Commissive", "Directive", "Inform", "Question", UNKNOWN}),
        frozenset({*_EMOTIONS, "Happiness", "No Emotion"}),
    ),
}
# Texts that may not be empty.
_NAMES = ("pair_id", "source", "synthesizer", "group_id", "language", "license")


def make_stable_id(*parts: Any) -> str:
    """Return 16 hexadecimal digits that depend only on `parts`: the same on any machine."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:16]


def make_stable_seed(*parts: Any) -> int:
    """Return `make_stable_id` as a number, for a random generator."""
    return int(make_stable_id(*parts), 16)


def features() -> datasets.Features:
    """Return the columns of a pair (audio mono, 16 kHz, encoded: a row can be read without torchcodec)."""
    from datasets import Audio, Features, List, Value

    text, time_s = Value("string"), Value("float64")
    turn = {
        "role": text,
        "text": text,
        "audio": Audio(sampling_rate=16_000, decode=False),
        "duration_s": Value("float32"),
        "audio_ref": List({"uri": text, "start_s": time_s, "end_s": time_s, "text": text}),
    }
    channel = dict.fromkeys(("trim_db", "bandwidth_hz", "level_dbfs", "snr_db"), Value("float32"))
    scores = dict.fromkeys(("content", "naturalness", "coherence"), Value("int32"))
    return Features(
        {
            **dict.fromkeys(("pair_id", "criterion", "subset", "source", "primary", "secondary"), text),
            **dict.fromkeys(SIDES, List(turn)),
            **dict.fromkeys(("synthesizer", "group_id"), text),
            "channel": {**channel, "coding": text},
            "native_coding": List(text),
            "quality": {**dict.fromkeys(SIDES, scores), "judge": text, "prompt_version": text},
            **dict.fromkeys(("language", "license"), text),
        }
    )


def make_arrow_schema(columns: datasets.Features) -> pa.Schema:
    """Return a Parquet schema that every `datasets` from 2 on can read.

    `datasets` 4 named the type of lists `List`, which older versions do not have; all read a list of one type.
    """
    schema = columns.arrow_schema
    described = json.loads(schema.metadata[b"huggingface"])
    described["info"]["features"] = _spell_lists(described["info"]["features"])
    return schema.with_metadata({"huggingface": json.dumps(described)})


def _spell_lists(described: Any) -> Any:
    """Describe each list as `[type]`."""
    if not isinstance(described, dict):
        return described
    if described.get("_type") == "List" and described.get("length", -1) == -1:
        return [_spell_lists(described["feature"])]
    return {name: _spell_lists(value) for name, value in described.items()}


def is_text(value: Any) -> bool:
    """Return whether a value is writable text: half a surrogate pair, which JSON allows, is not."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def is_time(value: Any) -> bool:
    """Return whether a value is a time in a recording, in seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_TIME_S


class TurnsError(ValueError):
    """Raised for turns that break a rule of the filter's first phase (B.1); `rule` names it in reports."""

    def __init__(self, message: str, rule: str = "invalid_row"):
        super().__init__(message)
        self.rule = rule


def validate_row(row: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a pair that breaks the contract; `UNKNOWN` stands for a missing annotation."""
    if not isinstance(row, Mapping):
        raise ValueError(f"the row is a {type(row).__name__}; a pair has columns by name.")
    label = f"pair {row.get('pair_id')!r:.80}"
    if missing := [
        name for name in (*_NAMES, "criterion", "subset", "primary", "secondary", *SIDES) if name not in row
    ]:
        raise ValueError(f"{label}: has no columns {missing}; every pair needs them.")
    for column in (*_NAMES, "primary", "secondary"):
        if not is_text(row[column]) or (column in _NAMES and not row[column]):
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; a text is needed, {UNKNOWN!r} if unknown.")
    allowed = {name: labels | {UNKNOWN} for name, labels in list_allowed_labels(row).items()}
    for column, values in {"criterion": (*CRITERIA, JOINT), "subset": (*SUBSETS, NO_SUBSET), **allowed}.items():
        if row[column] not in values:
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; it must be one of {sorted(values)}.")
    if {"colloquialness": "colloquialness", NO_SUBSET: JOINT}.get(row["subset"], "modality") != row["criterion"]:
        raise ValueError(f"{label}: criterion {row['criterion']!r} does not go with subset {row['subset']!r}.")
    for side in SIDES:
        turns = row[side]
        is_list = isinstance(turns, (list, tuple))
        if not is_list or not all(isinstance(turn, Mapping) and {"role", "duration_s"} <= set(turn) for turn in turns):
            raise ValueError(f"{label}, {side}: is {turns!r:.80}; a list of turns with role and duration_s is needed.")
        validate_roles([turn["role"] for turn in turns], f"{label}, {side}")
        for position, duration_s in enumerate(turn["duration_s"] for turn in turns):
            if not is_time(duration_s) or not 0 < duration_s <= MAX_TURN_S:
                wanted = f"it must last more than 0 and at most {MAX_TURN_S:.0f} s"
                rule = "turn_duration" if isinstance(duration_s, (int, float)) else "invalid_row"
                raise TurnsError(f"{label}, {side} turn {position}: lasts {duration_s!r:.40} s; {wanted}.", rule)


def list_allowed_labels(row: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return what Table 5 allows in `primary` and `secondary`; a column that may have any text is absent."""
    taxonomy = () if row["criterion"] == JOINT else TAXONOMY.get(row["source"], ())
    return dict(zip(("primary", "secondary"), taxonomy, strict=False))


def validate_roles(roles: Sequence[str], label: str) -> None:
    """Raise `ValueError` unless turns alternate from the user on, an even number of at most 16."""
    if not roles or len(roles) % 2 or len(roles) > MAX_TURNS:
        needed = f"it needs an even number from 2 to {MAX_TURNS}"
        raise TurnsError(f"{label}: has {len(roles)} turns; {needed}.", "turn_count")
    if list(roles) != list(ROLES) * (len(roles) // 2):
        needed = "they must alternate, beginning with 'user'"
        raise TurnsError(f"{label}: roles are {list(roles)}; {needed}.", "turn_order")
