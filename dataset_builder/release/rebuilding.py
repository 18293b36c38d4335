"""Rebuild one pair of a metadata release: find its recordings, check their fingerprints, make the row again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, SkipError, Turn, is_recorded, validate_episode
from sdiareward.dataset_builder.synthesis import SynthesisError
from sdiareward.pairs.schema import SIDES, validate_row
from sdiareward.perturbations.channel import ChannelSettings

from ..pairing.pairing import PairPlan, make_row
from ..pairing.reference_clips import NoReference, split_options
from ..recording_check import compare, describe
from .recorded_parts import AudioRoots, find_part, read_recording
from .scrubbing import is_scrubbed


@dataclass(frozen=True)
class RebuildSettings:
    roots: AudioRoots
    cache_dir: Path  # Decoded long recordings.
    allow_reencoded: bool = False  # Accept another codec or level.
    synthesizer_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rebuilt:
    row: dict[str, Any]
    turns: Counter[str]  # Synthetic turns: same, different, scrubbed; recorded parts: reencoded.


def rebuild_row(split: str, row: Mapping[str, Any], settings: RebuildSettings) -> Rebuilt | Skipped:
    """Rebuild a released pair, or return why it is skipped (`reconstruct.py` lists the kinds)."""
    counts: Counter[str] = Counter()
    try:
        plan = _plan(split, row, settings, counts)
        rebuilt = make_row(plan) | {"quality": row["quality"]}
        validate_row(rebuilt)
        _compare_synthetic(row, rebuilt, counts)
    except (SkipError, NoReference, AudioError, SynthesisError, ValueError) as error:
        known = {NoReference: "no_reference_clip", AudioError: "unusable_audio", ValueError: "invalid_row"}
        kinds = (kind for type_, kind in known.items() if isinstance(error, type_))
        return Skipped(f"pair {row['pair_id']}", getattr(error, "kind", None) or next(kinds), str(error))
    return Rebuilt(rebuilt, counts)


def _plan(split: str, row: Mapping[str, Any], settings: RebuildSettings, counts: Counter[str]) -> PairPlan:
    chosen = _make_episode(row, "chosen", settings, counts)
    # A modality pair has the same words on both sides.
    rejected = chosen if row["criterion"] == "modality" else _make_episode(row, "rejected", settings, counts)
    name, _, other = row["synthesizer"].partition("+")
    (options, script_voices), (other_options, _) = (
        split_options(settings.synthesizer_options.get(each, {}), row["criterion"]) for each in (name, other)
    )
    # The columns are float32; six digits are what was set.
    channel: dict[str, Any] = {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in (row["channel"] or {}).items()
    }
    return PairPlan(
        row["criterion"],
        chosen,
        rejected,
        name,
        split,
        ChannelSettings(**channel) if channel else None,
        options,
        known_pair_id=row["pair_id"],
        script_voices=script_voices,
        rejected_synthesizer=other,
        rejected_options=other_options if other else None,
    )


def _make_episode(row: Mapping[str, Any], side: str, settings: RebuildSettings, counts: Counter[str]) -> Episode:
    turns = []
    for turn in row[side]:
        if is_recorded(row["criterion"], side, row["synthesizer"]):
            checked = zip(turn["audio_ref"], turn["fingerprints"], strict=True)
            parts = [_find_checked_part(reference, expected, settings, counts) for reference, expected in checked]
        else:
            parts = [Part(reference["text"]) for reference in turn["audio_ref"]]
        turns.append(Turn(turn["role"], tuple(parts)))
    same = ("source", "subset", "primary", "secondary", "language", "license")
    episode = Episode(
        name=row["pair_id"],
        group=row["group_id"],
        known_group_id=row["group_id"],
        turns=tuple(turns),
        native_coding=tuple(row["native_coding"] or ()),
        **{name: row[name] for name in same},
    )
    validate_episode(episode, is_broken=side == "rejected")
    return episode


def _find_checked_part(
    reference: Mapping[str, Any], expected: Mapping[str, Any], settings: RebuildSettings, counts: Counter[str]
) -> Part:
    part = find_part(reference, settings.roots, settings.cache_dir)
    found = describe(read_recording(part))
    kind = compare(expected, found)
    if kind == "reencoded" and settings.allow_reencoded:
        counts["reencoded"] += 1
    elif kind != "same":
        was, now = (f"{each['duration_s']:.2f} s at {each['level_dbfs']:.1f} dBFS" for each in (expected, found))
        raise SkipError(f"{kind}_audio", f"{part.ref}, from {part.start_s:.2f} s: {kind}; it is {now}, not {was}.")
    return part


def _compare_synthetic(row: Mapping[str, Any], rebuilt: Mapping[str, Any], counts: Counter[str]) -> None:
    """Compare the synthetic turns with the released ones; a scrubbed text cannot sound the same."""
    for side in SIDES:
        if is_recorded(row["criterion"], side, row["synthesizer"]):
            continue
        for released, turn in zip(row[side], rebuilt[side], strict=True):
            is_same = compare(released["fingerprints"][0], describe(read_audio(turn["audio"]))) == "same"
            counts["same" if is_same else "different"] += 1
            counts["scrubbed"] += is_scrubbed(turn["text"])
