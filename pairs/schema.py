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

SIDES = ("chosen", "rejected")
# The first that a table has names its rows.
ID_COLUMNS = ("pair_id", "id")

# Eleven days: what is beyond is no time in a recording.
MAX_TIME_S = 1e6


def make_stable_id(*parts: Any) -> str:
    """Return 16 hexadecimal digits that depend only on `parts`: the same on any machine."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:16]


def make_stable_seed(*parts: Any) -> int:
    """Return `make_stable_id` as a number, for a random generator."""
    return int(make_stable_id(*parts), 16)


def features() -> datasets.Features:
    """Return the columns of a pair (audio mono, 16 kHz, encoded: a row can be read without torchcodec)."""
    import datasets

    text = datasets.Value("string")
    turn = {
        "role": text,
        "text": text,
        "audio": datasets.Audio(sampling_rate=16_000, decode=False),
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
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def validate_row(row: Mapping[str, Any]) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"the row is a {type(row).__name__}; a pair has columns by name.")
    label = f"pair {row.get('pair_id')!r:.80}"
    if missing := [column for column in _CHECKED_COLUMNS if column not in row]:
        raise ValueError(f"{label}: has no columns {missing}; every pair needs them.")
    for column, allowed in (("criterion", (*CRITERIA, JOINT)), ("subset", (*SUBSETS, NO_SUBSET))):
        if row[column] not in allowed:
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; it must be one of {list(allowed)}.")
    if _find_criterion(row["subset"]) != row["criterion"]:
        raise ValueError(f"{label}: criterion {row['criterion']!r} does not go with subset {row['subset']!r}.")
    for column in ("pair_id", "source", "synthesizer", "group_id", "language", "license"):
        if not row[column]:
            raise ValueError(f"{label}: {column} is empty; every pair needs one.")
        if not is_text(row[column]):
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; a text is needed.")
    _validate_taxonomy(row, label)
    for side in ("chosen", "rejected"):
        _validate_side(row[side], f"{label}, {side}")


def _find_criterion(subset: str) -> str:
    return {"colloquialness": "colloquialness", NO_SUBSET: JOINT}.get(subset, "modality")


def _validate_side(turns: Any, label: str) -> None:
    is_list = isinstance(turns, Sequence) and not isinstance(turns, (str, bytes))
    if not is_list or not all(isinstance(turn, Mapping) and {"role", "duration_s"} <= set(turn) for turn in turns):
        raise ValueError(f"{label}: is {turns!r:.80}; a list of turns with role and duration_s is needed.")
    validate_roles([turn["role"] for turn in turns], label)
    for position, turn in enumerate(turns):
        duration_s = turn["duration_s"]
        if not is_time(duration_s) or not 0 < duration_s <= MAX_TURN_S:
            raise ValueError(
                f"{label} turn {position}: lasts {duration_s!r:.40} s; "
                f"it must last more than 0 and at most {MAX_TURN_S:.0f} s."
            )


def _validate_taxonomy(row: Mapping[str, Any], label: str) -> None:
    """Check the labels of a stratified source; `UNKNOWN` stands for a missing annotation."""
    for column in ("primary", "secondary"):
        if not is_text(row[column]):
            raise ValueError(
                f"{label}: {column} is {row[column]!r:.80}; a text is needed, {UNKNOWN!r} if none is known."
            )
    for column, allowed in list_allowed_labels(row).items():
        if row[column] not in allowed | {UNKNOWN}:
            raise ValueError(f"{label}: {column} is {row[column]!r:.80}; Table 5 allows {sorted(allowed)}.")


def list_allowed_labels(row: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return what Table 5 allows in `primary` and `secondary`; a column that may have any text is absent."""
    taxonomy = () if row["criterion"] == JOINT else TAXONOMY.get(row["source"], ())
    return dict(zip(("primary", "secondary"), taxonomy, strict=False))


def validate_roles(roles: Sequence[str], label: str) -> None:
    """Raise `ValueError` unless turns alternate from the user on, an even number of at most 16."""
    if not roles or len(roles) % 2 or len(roles) > MAX_TURNS:
        raise ValueError(f"{label}: has {len(roles)} turns; it needs an even number from 2 to {MAX_TURNS}.")
    expected = [ROLES[position % 2] for position in range(len(roles))]
    if list(roles) != expected:
        raise ValueError(f"{label}: roles are {list(roles)}; they must alternate, beginning with 'user'.")


def is_time(value: Any) -> bool:
    """Return whether a value is a time in a recording, in seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_TIME_S
