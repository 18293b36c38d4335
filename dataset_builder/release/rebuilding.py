"""Rebuild one pair of a metadata release: find its recordings, check their fingerprints, make the row again.

The row is not trusted: every value is checked before it is used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, SkipError, Turn, is_recorded, validate_episode
from sdiareward.pairs.schema import CRITERIA, validate_row
from sdiareward.perturbations.channel import CODINGS, ChannelSettings
from sdiareward.dataset_builder.synthesis import SynthesisError

from ..formats.shards import SPLITS
from ..pairing.pairing import PairPlan, make_row
from ..pairing.reference_clips import NoReference
from ..pairing.script_voices import split_options
from .fingerprints import compare
from .recorded_parts import AudioRoots, find_part, read_recording
from .scrubbing import is_scrubbed


_HASH = re.compile(r"[0-9a-f]{16}")
_SIDES = ("chosen", "rejected")
_TEXTS = ("subset", "source", "primary", "secondary", "synthesizer", "group_id", "language", "license")
_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (NoReference, "no_reference_clip"),
    (AudioError, "unusable_audio"),
    (SynthesisError, "synthesis_failed"),
    (ValueError, "invalid_row"),
    (LookupError, "invalid_row"),
    (TypeError, "invalid_row"),
    (AttributeError, "invalid_row"),
    (OverflowError, "invalid_row"),
)


@dataclass(frozen=True)
class RebuildSettings:
    """How pairs are rebuilt.

    Args:
        roots (`AudioRoots`): The user's copies of the corpora.
        cache_dir (`Path`): Folder of decoded long recordings.
        allow_reencoded (`bool`): Take recordings that went through another codec or have another level.
        synthesizer_options (`Mapping[str, Mapping]`): Options of the synthesizers that take some, by name.
    """

    roots: AudioRoots
    cache_dir: Path
    allow_reencoded: bool = False
    synthesizer_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rebuilt:
    """A pair that was rebuilt.

    Args:
        row (`dict`): As `build` makes it.
        turns (`Counter[str]`): How many synthetic turns are the `"same"` as the released ones or `"different"`, how
            many were `"scrubbed"`, and how many recorded parts were `"reencoded"`.
    """

    row: dict[str, Any]
    turns: Counter[str]


def rebuild_row(split: str, row: Mapping[str, Any], settings: RebuildSettings) -> Rebuilt | Skipped:
    """Rebuild a released pair; return it, or why it is skipped (`reconstruct` lists the kinds)."""
    counts: Counter[str] = Counter()
    try:
        plan = _plan(split, row, settings, counts)
        rebuilt = make_row(plan) | {"quality": row["quality"]}
        validate_row(rebuilt)
        _compare_synthetic(row, rebuilt, counts)
    except SkipError as error:
        return Skipped(_label(row), error.kind, str(error))
    except tuple(kind for kind, _ in _KINDS) as error:
        kind = next(name for type_, name in _KINDS if isinstance(error, type_))
        reason = f"a field is missing or of another kind: {error!r}; is this a metadata release?"
        is_ours = kind != "invalid_row" or type(error) is ValueError
        return Skipped(_label(row), kind, str(error) if is_ours else reason)
    return Rebuilt(rebuilt, counts)


def _label(row: Mapping[str, Any]) -> str:
    return f"pair {str(row.get('pair_id'))[:40]}"


def _plan(split: str, row: Mapping[str, Any], settings: RebuildSettings, counts: Counter[str]) -> PairPlan:
    if not (isinstance(row["pair_id"], str) and _HASH.fullmatch(row["pair_id"])):
        raise ValueError(f"pair_id is {row['pair_id']!r}; 16 hexadecimal digits are needed.")
    if row["criterion"] not in CRITERIA or split not in SPLITS:
        raise ValueError(f"criterion {row['criterion']!r} and split {split!r}: {CRITERIA} and {SPLITS} are needed.")
    if bad := [column for column in _TEXTS if not (isinstance(row[column], str) and row[column])]:
        raise ValueError(f"{bad} are empty; every pair needs them.")
    chosen = _make_episode(row, "chosen", settings, counts)
    # A modality pair has the same words on both sides.
    rejected = chosen if row["criterion"] == "modality" else _make_episode(row, "rejected", settings, counts)
    name, _, other = row["synthesizer"].partition("+")
    (options, script_voices), (other_options, _) = (
        split_options(settings.synthesizer_options.get(each, {}), row["criterion"]) for each in (name, other)
    )
    return PairPlan(
        row["criterion"],
        chosen,
        rejected,
        name,
        split,
        _read_channel(row["channel"]),
        options,
        known_pair_id=row["pair_id"],
        script_voices=script_voices,
        rejected_synthesizer=other,
        rejected_options=other_options if other else None,
    )


def _read_channel(values: Mapping[str, Any] | None) -> ChannelSettings | None:
    if values is None:
        return None
    # The columns are float32; six digits are what was set.
    settings: dict[str, Any] = {name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in values.items()}
    return ChannelSettings(**settings)


def _make_episode(row: Mapping[str, Any], side: str, settings: RebuildSettings, counts: Counter[str]) -> Episode:
    codings = tuple(row["native_coding"] or ())
    if unknown := sorted(set(codings) - set(CODINGS)):
        raise ValueError(f"native_coding names {unknown}; known are {sorted(CODINGS)}.")
    turns = []
    for turn in row[side]:
        if is_recorded(row["criterion"], side, row["synthesizer"]):
            checked = zip(turn["audio_ref"], turn["fingerprints"], strict=True)
            parts = [_find_checked_part(reference, expected, settings, counts) for reference, expected in checked]
        else:
            parts = [Part(reference["text"]) for reference in turn["audio_ref"]]
        if not all(isinstance(part.text, str) for part in parts):
            raise ValueError(f"a {side} turn has a part without words; each needs its text.")
        turns.append(Turn(turn["role"], tuple(parts)))
    episode = Episode(
        name=row["pair_id"],
        source=row["source"],
        subset=row["subset"],
        group=row["group_id"],
        turns=tuple(turns),
        primary=row["primary"],
        secondary=row["secondary"],
        language=row["language"],
        license=row["license"],
        native_coding=codings,
        known_group_id=row["group_id"],
    )
    validate_episode(episode)
    return episode


def _find_checked_part(
    reference: Mapping[str, Any], expected: str, settings: RebuildSettings, counts: Counter[str]
) -> Part:
    """Find a recorded part and require that it is the released one."""
    part = find_part(reference, settings.roots, settings.cache_dir)
    verdict = compare(expected, read_recording(part))
    if verdict.kind == "reencoded" and settings.allow_reencoded:
        counts["reencoded"] += 1
    elif verdict.kind != "same":
        raise SkipError(f"{verdict.kind}_audio", f"{part.ref}, from {part.start_s:.2f} s: {verdict}.")
    return part


def _compare_synthetic(row: Mapping[str, Any], rebuilt: Mapping[str, Any], counts: Counter[str]) -> None:
    """Count how the synthetic turns compare with the released ones; a scrubbed text cannot sound the same."""
    for side in _SIDES:
        if is_recorded(row["criterion"], side, row["synthesizer"]):
            continue
        for released, turn in zip(row[side], rebuilt[side], strict=True):
            verdict = compare(released["fingerprints"][0], read_audio(turn["audio"]))
            counts["same" if verdict.kind == "same" else "different"] += 1
            counts["scrubbed"] += is_scrubbed(turn["text"])
