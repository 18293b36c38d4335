"""Build a data set of preference pairs: sources -> splits -> pairs -> Parquet with a card and a report.

Finished pairs stay in part files until the last shard is written: a killed build resumes, and another configuration
makes only the pairs that differ. The same configuration gives the same report, byte for byte, and the same shards if
the synthesizers are deterministic.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import starmap
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common.locks import lock_folder
from sdiareward.common.settings import require_known
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Recording, ScriptPair, SkipError, validate_episode
from sdiareward.dataset_builder.synthesis import SYNTHESIZERS, SynthesisError, is_available
from sdiareward.pairs.content import hash_audio
from sdiareward.pairs.schema import JOINT, SIDES, make_stable_id, validate_row
from sdiareward.perturbations.channel import CODINGS, ChannelSettings

from .chatreward.filters import WordErrors
from .formats.shards import count_pairs
from .marks import clean_item, note_marks
from .pairing.families import FamilySpec, plan_family_pairs, validate_families
from .pairing.pairing import (
    NoReference,
    PairPlan,
    SynthesizerSpec,
    TurnDurationError,
    draw_voices,
    list_audible,
    make_row,
    plan_pairs,
)
from .pairing.plausible_speech import ImplausibleSpeechError, note_languages
from .pairing.splits import assign_splits, join_groups, split_unit
from .parts import PartFolder, run_jobs, run_jobs_on_ray
from .pipeline import enhance_episodes, make_settings, run_pipeline
from .pipeline.engines import Engine, require_engine
from .pipeline.inspection import SilentAudioError, inspect_episode
from .pipeline.media import TruncatedAudioError
from .reports.data_card import count_groups, read_finished, summarise_skipped, write_report
from .sources import read_source


logger = logging.getLogger(__name__)
# Settings that may differ between two builds of the same data set.
_PLACES = ("output_dir", "work_dir", "num_workers", "engine")
# The source whose labels and spans the user writes.
_OF_MANIFEST = "folder"
SKIP_KIND_BY_ERROR: tuple[tuple[type[Exception], str], ...] = (
    (NoReference, "no_reference_clip"),
    (SilentAudioError, "silent_audio"),
    (TruncatedAudioError, "truncated_audio"),
    (TurnDurationError, "turn_duration"),
    (AudioError, "unusable_audio"),
    (FileNotFoundError, "missing_audio"),
    (SynthesisError, "synthesis_failed"),
    (ValueError, "invalid_pair"),
)


@dataclass(frozen=True)
class SourceConfig:
    name: str
    path: str | None = None
    limit: int | None = None  # Number of its first episodes.
    options: Mapping[str, Any] = field(default_factory=dict)
    # Enhance its clips with the pipeline's enhancement, as the paper does for MELD and DailyTalk.
    enhance: bool = False
    # What synthetic speech goes through first; None: the source's codings, and nothing where `channel` is None.
    native_coding: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if unknown := [coding for coding in self.native_coding or () if coding not in CODINGS]:
            raise ValueError(f"native_coding of {self.name} names {unknown}; give a list of {sorted(CODINGS)}.")


@dataclass(frozen=True)
class BuildConfig:
    output_dir: str  # Name the folder `sdiareward` for `load_dataset("sdiareward")`.
    sources: tuple[SourceConfig, ...]
    synthesizers: dict[str, SynthesizerSpec]  # By criterion; the entry `joint` speaks scripts of `families`.
    # Also `script_voices`, a pool of voices for scripts.
    synthesizer_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    families: dict[str, FamilySpec] = field(default_factory=dict)  # Pairs about the conversation; the paper has none.
    # None as in the paper; on by default, because a model learns a recording's channel before its speech.
    channel: ChannelSettings | None = field(default_factory=ChannelSettings)
    validation: float = 0.1  # Share of each source's episodes, as `test`.
    test: float = 0.2
    seed: int = 0
    pipeline: Mapping[str, Any] | None = None
    # Of synthetic turns, by the recogniser of `pipeline`; None: not recognised.
    max_wer: float | None = field(default=None, metadata={"minimum": 0.0})
    work_dir: str | None = None  # Of the pipeline; `<output_dir>-work` by default.
    engine: Engine = "datasets"
    num_workers: int = 2  # At least one per server of a synthesizer; ignored on a Ray cluster.

    def __post_init__(self) -> None:
        require_engine(self.engine, self.num_workers)
        if Path(self.output_dir) == Path():
            raise ValueError("output_dir is empty; name a folder to write.")
        validate_families(self.families)
        used = {name for spec in self.synthesizers.values() for name in (*spec.seen, *spec.left_out)}
        require_known(self.synthesizer_options, sorted({*used, *SYNTHESIZERS}), "synthesizer_options", is_listed=False)


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
    settings["synthesizer_options"] = list_audible(config.synthesizer_options)
    # A build without enhancement, codings, families or voices across is the same as before there were these keys.
    settings = {
        key: value for key, value in settings.items() if key not in ("families", "max_wer") or value not in (None, {})
    }
    settings["synthesizers"] = {
        name: {key: value for key, value in spec.items() if key != "across" or value}
        for name, spec in settings["synthesizers"].items()
    }
    later = ("enhance", "native_coding")
    settings["sources"] = [
        {k: v for k, v in source.items() if k not in later or v not in (None, False)} for source in settings["sources"]
    ]
    contents = _hash_recordings(plans, config.max_wer)
    plan_id = make_stable_id(json.dumps(settings, sort_keys=True), *sorted(contents.items()))
    finished = None if (output / ".parts").exists() else read_finished(output, plan_id)
    if finished:
        logger.warning("%s is up to date; delete its report.json to build it again.", output)
        return finished
    _require_synthesizers(plans)
    parts = PartFolder(output / ".parts")
    parts.drop_changed(contents)
    skipped_pairs = _make_pairs(plans, parts, config)
    skipped += skipped_pairs
    counts = parts.write_shards(output, {plan.pair_id: plan.split for plan in sorted(plans, key=lambda p: p.pair_id)})
    more = {"plan_id": plan_id, "joined": joined, "noted": _read_notes(plans, parts)}
    report = write_report(output, counts, skipped, settings, **more)
    if any(skip.kind == "missing_audio" for skip in skipped_pairs):
        # The file was there when the sources were read. Once it is back, only its pairs are made.
        logger.warning("%s: recordings have vanished; when they are back, run the same command again.", output)
    else:
        shutil.rmtree(parts.folder, ignore_errors=True)
    return report


def _plan(config: BuildConfig, dry_run: bool) -> tuple[list[PairPlan], list[Skipped], dict[str, int]]:
    skipped: list[Skipped] = []
    items = list(_read_items(config, skipped, dry_run))
    if not items and not dry_run:
        raise ValueError(
            f"the sources {[s.name for s in config.sources]} hold no usable episode: "
            f"{[skip.reason for skip in skipped[:3]]}."
        )
    episodes = [item.spoken if isinstance(item, ScriptPair) else item for item in items]
    files: dict[tuple[str, str], list[str]] = {}
    for episode in episodes:
        files.setdefault(split_unit(episode), []).extend(_list_files(episode))
    # A recording may have been edited since another build.
    _hash_recording.cache_clear()
    joined, counts = join_groups(files, _hash_recording)
    items = [_join(item, joined) for item in items]
    shares = {"validation": config.validation, "test": config.test}
    assignment = assign_splits(episodes, joined, **shares, seed=config.seed)
    if empty := [split for split, share in shares.items() if share and split not in assignment.values()]:
        text = "%s get no pairs: the sources have %d groups that share no recording; give more, or larger shares."
        logger.warning(text, empty, len({joined.get(unit, unit) for unit in assignment}))
    shared = (config.channel, config.seed, config.synthesizer_options)
    plans = list(plan_pairs(items, assignment, config.synthesizers, *shared))
    spoken = config.synthesizers.get(JOINT)
    return [*plans, *plan_family_pairs(items, assignment, config.families, spoken, *shared)], skipped, counts


def _join(item: Episode | ScriptPair, joined: Mapping[Any, Any]) -> Episode | ScriptPair:
    """Return a dialogue with the id of the group that its group is joined to."""
    if isinstance(item, ScriptPair) or (unit := split_unit(item)) == joined.get(unit, unit):
        return item
    return replace(item, known_group_id=make_stable_id(*joined[unit]))


def _read_items(config: BuildConfig, skipped: list[Skipped], dry_run: bool) -> Iterator[Episode | ScriptPair]:
    """Yield the valid episodes and scripts; append the others to `skipped`."""
    seen: set[tuple[str, str]] = set()
    for item in _read_sources(config, skipped, dry_run):
        sides = (item.written, item.spoken) if isinstance(item, ScriptPair) else (item,)
        name = f"{sides[-1].source} {sides[-1].name}"
        try:
            for side in sides:
                validate_episode(side)
            item = clean_item(item)
        except (SkipError, ValueError) as error:
            skipped.append(Skipped(name, getattr(error, "kind", "invalid_episode"), str(error)))
            continue
        if (sides[-1].source, sides[-1].name) in seen:
            skipped.append(Skipped(name, "duplicate_id", f"{name} is duplicated; the first is kept."))
            continue
        seen.add((sides[-1].source, sides[-1].name))
        yield item


def _read_sources(config: BuildConfig, skipped: list[Skipped], dry_run: bool) -> Iterator[Episode | ScriptPair]:
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
                raise ValueError(
                    f"sources: {source.name} has `enhance`, which is for dialogues of recorded clips; remove it. The "
                    "key `enhancement` of `pipeline` decides for long recordings."
                )
            item = _set_coding(item, source, config.channel)
            if isinstance(item, Recording):
                recordings.append(item)
            elif source.enhance and isinstance(item, Episode) and not dry_run:
                enhanced.append(item)
            else:
                yield item
    yield from _enhance(enhanced, config, skipped)
    if recordings and not dry_run:
        yield from _run_pipeline(recordings, config, skipped)


def _set_coding(
    item: Episode | ScriptPair | Recording, source: SourceConfig, channel: ChannelSettings | None
) -> Episode | ScriptPair | Recording:
    """Return an item with the codings that its synthetic speech gets, as its row will name them."""
    if isinstance(item, ScriptPair):
        if source.native_coding is not None:
            raise ValueError(f"sources: {source.name} has `native_coding`, but scripts have no recordings; remove it.")
        return item
    if source.native_coding is None:
        return item if channel else replace(item, native_coding=())
    return replace(item, native_coding=tuple(source.native_coding))


def _enhance(episodes: Sequence[Episode], config: BuildConfig, skipped: list[Skipped]) -> Iterator[Episode]:
    if episodes:
        settings = make_settings(config.pipeline or {})
        done, drops = enhance_episodes(episodes, settings, _choose_work_dir(config), config.engine, config.num_workers)
        skipped += drops
        yield from done


def _run_pipeline(recordings: Sequence[Recording], config: BuildConfig, skipped: list[Skipped]) -> Iterator[Episode]:
    settings = make_settings(config.pipeline or {})
    work = _choose_work_dir(config)
    result = run_pipeline(recordings, settings, work, engine=config.engine, num_workers=config.num_workers)
    skipped += result.skipped
    yield from result.episodes


def _choose_work_dir(config: BuildConfig) -> Path:
    return Path(config.work_dir or f"{config.output_dir.rstrip('/')}-work")


def _hash_recordings(plans: Sequence[PairPlan], max_wer: float | None) -> dict[str, str | None]:
    """Return a hash of the recordings of each pair, which keep their names when edited; None if one is missing."""
    hashes = {
        plan.pair_id: [
            *map(_hash_recording, _list_audio(plan)),
            *(str(value) for value in (plan.chosen.known_group_id, max_wer) if value is not None),
            # The id of a pair depends neither on these codings nor on the times and labels of a manifest.
            *plan.chosen.native_coding,
            *(_describe(side) for side in (plan.chosen, plan.rejected) if side.source == _OF_MANIFEST),
        ]
        for plan in plans
    }
    return {pair_id: None if None in found else make_stable_id(*found) for pair_id, found in hashes.items()}


def _describe(episode: Episode) -> str:
    spans = [(part.start_s, part.end_s) for turn in episode.turns for part in turn.parts]
    labels = (episode.subset, episode.primary, episode.secondary, episode.language, episode.license)
    return json.dumps([spans, episode.group, labels, episode.native_coding])


def _list_audio(plan: PairPlan) -> list[str]:
    recorded = [*_list_files(plan.chosen), *_list_files(plan.rejected)]
    return recorded + [voice.audio for voice in draw_voices(plan.script_voices, plan.pair_id).values()]


def _list_files(episode: Episode) -> list[str]:
    return [part.audio for turn in episode.turns for part in turn.parts if part.audio is not None]


@cache
def _hash_recording(audio: str) -> str | None:
    try:
        return hash_audio(audio)
    except FileNotFoundError:
        return None


def _require_synthesizers(plans: Iterable[PairPlan]) -> None:
    options = {name: given for plan in plans for name, given in plan.engines.items()}
    if missing := sorted(name for name in options if not is_available(name, options[name])):
        raise ValueError(
            f"synthesizers {missing} cannot be used: they are not installed, or need synthesizer_options; install "
            "them or remove them from the config."
        )


def _make_pairs(plans: Sequence[PairPlan], parts: PartFolder, config: BuildConfig) -> list[Skipped]:
    todo = [plan for plan in plans if not parts.has(plan.pair_id)]
    run = run_jobs_on_ray if config.engine == "ray" else run_jobs
    # Whisper's prompt of fillers is for spontaneous speech.
    asr = replace(make_settings(config.pipeline or {}).asr, prompt="")
    words = None if config.max_wer is None else WordErrors(asr)
    make = partial(make_pair, parts=parts, words=words, max_wer=config.max_wer or 0.0)
    results = run(make, todo, config.num_workers, "pairs")
    return sorted(filter(None, results), key=lambda skip: (skip.item, skip.kind, skip.reason))


def make_pair(
    plan: PairPlan, parts: PartFolder, words: WordErrors | None = None, max_wer: float = 0.0
) -> Skipped | None:
    """Write one pair to `parts`; return the reason if it is skipped."""
    try:
        row = make_row(plan)
        for side in SIDES if words else ():
            for turn in () if plan.is_recorded(side) else row[side]:
                wer = words.rate(turn["text"], read_audio(turn["audio"]), plan.chosen.language) if words else None
                if wer is not None and wer > max_wer:
                    raise ImplausibleSpeechError(f"the word error rate of {turn['text']!r:.80} is {wer:.2f}.")
        validate_row(row)
    except tuple(error for error, _ in SKIP_KIND_BY_ERROR) as error:
        kind = next(kind for type_, kind in SKIP_KIND_BY_ERROR if isinstance(error, type_))
        kind = error.kind if isinstance(error, SynthesisError) else kind
        name = plan.rejected.name if plan.family else plan.chosen.name
        return Skipped(f"{plan.chosen.source} {name} {plan.voices}", kind, str(error))
    notes = [*map(note_marks, (plan.chosen, plan.rejected)), *starmap(note_languages, plan.engines.items())]
    notes += inspect_episode(plan.chosen) if plan.criterion == "modality" else ()
    parts.write(plan.pair_id, [row], [asdict(note) for note in notes if note])
    return None


def _read_notes(plans: Iterable[PairPlan], parts: PartFolder) -> list[dict[str, str]]:
    """Return the notes on the recordings of the finished pairs, each recording once."""
    found = [note for plan in plans for note in parts.read_notes(plan.pair_id) or ()]
    notes = {(note["item"], note["kind"]): note for note in found}
    return [notes[key] for key in sorted(notes)]
