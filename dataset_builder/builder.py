"""Build a data set of preference pairs: sources -> splits -> pairs -> Parquet with a card and a report.

Finished pairs stay in part files until the last shard is written: a killed build resumes, and a changed configuration
makes only the pairs that differ. The same configuration gives the same report, byte for byte, and with deterministic
synthesizers the same shards.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common import settings as yaml_settings
from sdiareward.common.errors import Skipped
from sdiareward.common.files import lock_folder
from sdiareward.dataset_builder.episodes import Episode, Recording, ScriptPair, SkipError, validate_episode
from sdiareward.dataset_builder.synthesis import SYNTHESIZERS, SynthesisError, is_available
from sdiareward.pairs.content import hash_audio
from sdiareward.pairs.schema import JOINT, SIDES, make_stable_id, validate_row
from sdiareward.perturbations.channel import ChannelSettings

from .chatreward.voices import WordErrors
from .marks import clean_episode, note_marks
from .pairing import pairing
from .pairing.pairing import FamilySpec, PairPlan, SynthesizerSpec, make_row, plan_family_pairs, validate_families
from .pairing.plausible_speech import ImplausibleSpeechError, note_languages
from .pairing.splits import assign_splits, join_groups, split_unit
from .pipeline.inspection import SilentAudioError, inspect_episode
from .pipeline.media import TruncatedAudioError
from .pipeline.settings import make_settings
from .pipeline.stages import enhance_episodes, run_pipeline
from .reports.data_card import count_groups, read_finished, summarise_skipped, write_report
from .shards import EngineName, count_pairs, make_parts, write_shards
from .sources import read_source


logger = logging.getLogger(__name__)
# Settings that do not change the data set.
_PLACES = ("output_dir", "work_dir", "num_workers", "engine")
_PARTS = ".parts"
# The first that applies.
_SKIP_KINDS: dict[type[Exception], str] = {
    pairing.NoReference: "no_reference_clip",
    SilentAudioError: "silent_audio",
    TruncatedAudioError: "truncated_audio",
    pairing.TurnDurationError: "turn_duration",
    AudioError: "unusable_audio",
    FileNotFoundError: "missing_audio",
    SynthesisError: "synthesis_failed",
    ValueError: "invalid_pair",
}
Item = Episode | ScriptPair


@dataclass(frozen=True)
class SourceConfig:
    name: str
    path: str | None = None
    limit: int | None = None  # Use only this many episodes, from the first.
    options: Mapping[str, Any] = field(default_factory=dict)
    # Enhance the clips with the pipeline's enhancement, as the paper does for MELD and DailyTalk.
    enhance: bool = False
    # Codings for synthetic speech; None: the source's codings, or none if `channel` is None.
    native_coding: Sequence[str] | None = None


@dataclass(frozen=True)
class BuildConfig:
    # Name the folder `sdiareward` for `load_dataset("sdiareward")`.
    output_dir: Annotated[str, Field(min_length=1)]
    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    # By criterion; the entry `joint` is for scripts of `families`.
    synthesizers: Annotated[dict[str, SynthesizerSpec], Field(min_length=1)]
    # Also `script_voices`, the pool of voices for scripts.
    synthesizer_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    families: dict[str, FamilySpec] = field(default_factory=dict)  # Pairs about the conversation; the paper has none.
    # None: as in the paper. On by default, because a model learns the channel before the speech.
    channel: ChannelSettings | None = field(default_factory=ChannelSettings)
    validation: float = 0.1  # Share of each source's episodes; likewise `test`.
    test: float = 0.2
    seed: int = 0
    pipeline: Mapping[str, Any] | None = None
    # Word error rate of synthetic turns, measured by the recogniser of `pipeline`; None: no check.
    max_wer: Annotated[float, Field(ge=0)] | None = None
    work_dir: str | None = None  # Work directory of the pipeline; `<output_dir>-work` by default.
    engine: EngineName = "datasets"
    num_workers: Annotated[int, Field(ge=1)] = 2  # At least one per synthesizer server; ignored on a Ray cluster.

    def __post_init__(self) -> None:
        validate_families(self.families)
        make_settings(self.pipeline or {})
        used = {name for spec in self.synthesizers.values() for name in (*spec.seen, *spec.left_out)}
        known = sorted({*used, *SYNTHESIZERS})
        yaml_settings.require_known(self.synthesizer_options, known, "synthesizer_options", is_listed=False)


def read_build_config(path: Path, overrides: Mapping[str, Any]) -> BuildConfig:
    """Read a build's YAML file; `pipeline` may name a file beside it; an override of None is ignored."""
    values = yaml_settings.read_mapping(path) | {key: value for key, value in overrides.items() if value is not None}
    if isinstance(families := values.get("families") or {}, Mapping):
        values["families"] = {name: entry or {} for name, entry in families.items()}
    if isinstance(values.get("pipeline"), str):
        values["pipeline"] = yaml_settings.read_mapping(path.parent / values["pipeline"])
    return yaml_settings.make_settings(BuildConfig, values, str(path))


def build(config: BuildConfig, *, dry_run: bool = False) -> dict[str, Any]:
    """Build the data set of `config`; return its report, which is also written to `report.json`."""
    if dry_run:
        plans, skipped, joined = _plan(config, dry_run)
        groups = count_groups((plan.split, plan.chosen.group_id) for plan in plans)
        pairs = count_pairs((plan.split, plan.label) for plan in plans)
        return {"pairs": pairs, "groups": groups, "joined": joined, **summarise_skipped(skipped)}
    with lock_folder(config.output_dir):
        return _build(config)


def _build(config: BuildConfig) -> dict[str, Any]:
    plans, skipped, joined = _plan(config, dry_run=False)
    output = Path(config.output_dir)
    settings = {key: value for key, value in asdict(config).items() if key not in _PLACES}
    settings["synthesizer_options"] = pairing.list_audible(config.synthesizer_options)
    by_id = {plan.pair_id: plan for plan in plans}
    contents = {pair_id: _hash_plan(plan, config.max_wer) for pair_id, plan in by_id.items()}
    plan_id = make_stable_id(json.dumps(settings, sort_keys=True), *sorted(contents.items()))
    finished = None if (output / _PARTS).exists() else read_finished(output, plan_id)
    if finished:
        logger.warning("%s is up to date; delete its report.json to build it again.", output)
        return finished
    options = {name: given for plan in plans for name, given in plan.engines.items()}
    if missing := sorted(name for name in options if not is_available(name, options[name])):
        raise ValueError(f"synthesizers {missing} need `pip install` or synthesizer_options; or remove them.")

    def has_changed(pair_id: str, note: Mapping[str, Any]) -> bool:
        # A skipped pair is made again; a pair whose recordings are now missing is kept.
        return "skipped" in note or contents[pair_id] not in (None, note["content"])

    # Whisper's prompt of fillers is for spontaneous speech.
    asr = replace(make_settings(config.pipeline or {}).asr, prompt="")
    make = partial(_make_pair, None if config.max_wer is None else WordErrors(asr), config.max_wer or 0.0)
    items = {pair_id: (plan, contents[pair_id]) for pair_id, plan in by_id.items()}
    workers: Any = {"num_workers": config.num_workers, "engine": config.engine}
    parts = make_parts(output / _PARTS, items, make, has_changed, **workers)
    counts, notes = write_shards(parts, {pair_id: by_id[pair_id].split for pair_id in sorted(by_id)}, output)
    skipped_pairs = [Skipped(**note["skipped"]) for note in notes if "skipped" in note]
    skipped += sorted(skipped_pairs, key=lambda skip: (skip.item, skip.kind, skip.reason))
    # Each recording once.
    noted = {(entry["item"], entry["kind"]): entry for note in notes for entry in note.get("noted", ())}
    more = {"plan_id": plan_id, "joined": joined, "noted": [noted[key] for key in sorted(noted)]}
    report = write_report(output, counts, skipped, settings, **more)
    if any(skip.kind == "missing_audio" for skip in skipped_pairs):
        # The file existed when the sources were read. A rerun makes only its pairs.
        logger.warning("%s: recordings were deleted during the build; restore them and run it again.", output)
    else:
        shutil.rmtree(output / _PARTS, ignore_errors=True)
    return report


def _plan(config: BuildConfig, dry_run: bool) -> tuple[list[PairPlan], list[Skipped], dict[str, int]]:
    skipped: list[Skipped] = []
    items = list(_read_items(config, skipped, dry_run))
    if not items and not dry_run:
        names, reasons = [source.name for source in config.sources], [skip.reason for skip in skipped[:3]]
        raise ValueError(f"the sources {names} have no usable episodes: {reasons}.")
    episodes = [item.spoken if isinstance(item, ScriptPair) else item for item in items]
    files: dict[tuple[str, str], list[str]] = {}
    for episode in episodes:
        files.setdefault(split_unit(episode), []).extend(_list_files(episode))
    # A recording may have been edited since another build.
    _hash_recording.cache_clear()
    joined, counts = join_groups(files, _hash_recording)
    for index, item in enumerate(items):
        # A dialogue gets the id of its joined group.
        if isinstance(item, Episode) and joined.get(unit := split_unit(item), unit) != unit:
            items[index] = replace(item, known_group_id=make_stable_id(*joined[unit]))
    shares = {"validation": config.validation, "test": config.test}
    assignment = assign_splits(episodes, joined, **shares, seed=config.seed)
    if empty := [split for split, share in shares.items() if share and split not in assignment.values()]:
        text = "%s have no pairs: the sources have %d groups without shared recordings; add data or raise the shares."
        logger.warning(text, empty, len({joined.get(unit, unit) for unit in assignment}))
    shared = (config.channel, config.seed, config.synthesizer_options)
    plans = list(pairing.plan_pairs(items, assignment, config.synthesizers, *shared))
    spoken = config.synthesizers.get(JOINT)
    return [*plans, *plan_family_pairs(items, assignment, config.families, spoken, *shared)], skipped, counts


def _read_items(config: BuildConfig, skipped: list[Skipped], dry_run: bool) -> Iterator[Item]:
    """Yield valid episodes and scripts; append invalid ones to `skipped`."""
    seen: set[tuple[str, str]] = set()
    for item in _read_sources(config, skipped, dry_run):
        sides = (item.written, item.spoken) if isinstance(item, ScriptPair) else (item,)
        key = (sides[-1].source, sides[-1].name)
        try:
            for side in sides:
                validate_episode(side)
            cleaned = [clean_episode(side) for side in sides]
            if key in seen:
                raise SkipError("duplicate_id", f"{' '.join(key)} is duplicated; the first is kept.")
        except (SkipError, ValueError) as error:
            skipped.append(Skipped(" ".join(map(str, key)), getattr(error, "kind", "invalid_episode"), str(error)))
            continue
        seen.add(key)
        yield ScriptPair(*cleaned) if isinstance(item, ScriptPair) else cleaned[0]


def _read_sources(config: BuildConfig, skipped: list[Skipped], dry_run: bool) -> Iterator[Item]:
    recordings: list[Recording] = []
    enhanced: list[Episode] = []
    for source in config.sources:
        count = 0
        for item in read_source(source.name, source.path, source.options):
            if isinstance(item, Skipped):
                skipped.append(item)
                continue
            if source.limit is not None and count >= source.limit:
                break
            count += 1
            if source.enhance and not isinstance(item, Episode):
                raise ValueError(f"sources: {source.name} has `enhance`, which needs dialogues of clips; remove it.")
            if not isinstance(item, ScriptPair):
                # The codings of its synthetic speech, as named in its row.
                coding = source.native_coding if config.channel or source.native_coding is not None else ()
                item = item if coding is None else replace(item, native_coding=tuple(coding))
            elif source.native_coding is not None:
                raise ValueError(f"sources: {source.name} has `native_coding`, but scripts have no recordings.")
            if isinstance(item, Recording):
                recordings.append(item)
            elif source.enhance and isinstance(item, Episode) and not dry_run:
                enhanced.append(item)
            else:
                yield item
    folder = Path(config.work_dir or f"{config.output_dir.rstrip('/')}-work").resolve()
    run: Any
    for run, given in ((enhance_episodes, enhanced), (run_pipeline, [] if dry_run else recordings)):
        if given:
            done, drops = run(given, make_settings(config.pipeline or {}), folder, config.engine, config.num_workers)
            skipped += drops
            yield from done


def _hash_plan(plan: PairPlan, max_wer: float | None) -> str | None:
    """Hash everything that the pair's id does not cover, such as its recordings; None if one is missing."""
    voices = pairing.draw_voices(plan.script_voices, plan.pair_id).values()
    files = [*_list_files(plan.chosen), *_list_files(plan.rejected), *(voice.audio for voice in voices)]
    hashes = [_hash_recording(file) for file in files]
    sides = []
    for side in (plan.chosen, plan.rejected):
        spans = [(part.start_s, part.end_s) for turn in side.turns for part in turn.parts]
        labels = (side.subset, side.primary, side.secondary, side.language, side.license)
        sides.append(json.dumps([spans, side.group_id, labels, side.native_coding, side.marks]))
    return None if None in hashes else make_stable_id(*hashes, max_wer, *sides)


def _list_files(episode: Episode) -> list[str]:
    return [part.audio for turn in episode.turns for part in turn.parts if part.audio is not None]


@cache
def _hash_recording(audio: str) -> str | None:
    try:
        return hash_audio(audio)
    except FileNotFoundError:
        return None


def _make_pair(
    words: WordErrors | None, max_wer: float, plan: PairPlan, content: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a pair with notes, or the reason it is skipped."""
    try:
        row = make_row(plan)
        for side in SIDES if words else ():
            for turn in () if plan.is_recorded(side) else row[side]:
                wer = words.rate(turn["text"], read_audio(turn["audio"]), plan.chosen.language) if words else None
                if wer is not None and wer > max_wer:
                    raise ImplausibleSpeechError(f"the word error rate of {turn['text']!r:.80} is {wer:.2f}.")
        validate_row(row)
    except tuple(_SKIP_KINDS) as error:
        kind = next(kind for type_, kind in _SKIP_KINDS.items() if isinstance(error, type_))
        name = plan.rejected.name if plan.family else plan.chosen.name
        skipped = Skipped(f"{plan.chosen.source} {name} {plan.synthesizer}", getattr(error, "kind", kind), str(error))
        return [], {"skipped": skipped.to_dict()}
    notes = [*map(note_marks, (plan.chosen, plan.rejected)), *starmap(note_languages, plan.engines.items())]
    notes += inspect_episode(plan.chosen) if plan.criterion == "modality" else ()
    return [row], {"content": content, "noted": [note.to_dict() for note in notes if note]}
