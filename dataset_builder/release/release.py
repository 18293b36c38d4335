"""Write a metadata release of a data set, without audio, and rebuild its pairs from the user's own audio.

In a release, each turn keeps its scrubbed words (`scrubbing.py`), its duration and `audio_ref`, and gets
`fingerprints` (`recording_check.py`): one per recorded part, before channel matching, and one per synthetic turn. The
release has no speaker identifiers, uploaders' names or local paths (appendix B.5).

To rebuild a pair, its recordings are found by their references, cut and resampled as in the build, and compared with
the released fingerprints. Pairs that cannot be rebuilt are reported by kind:

- recordings: `missing_audio`, `wrong_audio`, `truncated_audio`, `reencoded_audio` (accepted with `allow_reencoded`),
  `undecodable_audio`, `outside_root` (a path that leaves the folder), `missing_enhancement`;
- pairs: `synthesis_failed`, `implausible_speech`, `language`, `no_reference_clip`, `unusable_audio`;
- releases: `no_reference`, `invalid_row`, `invalid_shard`.

Samples are read as in the build: clips and spans of files directly; enhanced clips and spans of long recordings
(`youtube`, `folder`) from the pipeline's 16-bit copy. Spans of short files of `folder` are also read from a 16-bit
copy, which changes a sample by at most half a step of 16 bits. Synthetic audio may differ: some engines are not
deterministic, and scrubbed text is synthesized as it is.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.common.errors import Skipped
from sdiareward.common.files import require_other_folder, write_file
from sdiareward.common.package import CARDS
from sdiareward.common.tables import escape_code
from sdiareward.dataset_builder.episodes import (
    Episode,
    Part,
    SkipError,
    Turn,
    is_recorded,
    split_reference,
    validate_episode,
)
from sdiareward.dataset_builder.synthesis import SynthesisError
from sdiareward.pairs.schema import JOINT, SIDES, features, make_stable_id, validate_row
from sdiareward.perturbations.channel import ChannelSettings

from ..pairing import pairing
from ..pipeline.inspection import SilentAudioError, require_sound
from ..pipeline.media import TruncatedAudioError, decode_channel, decode_recording
from ..pipeline.settings import AudioSeparatorSettings, ComponentError
from ..recording_check import compare, describe
from ..reports import data_card
from ..shards import count_pairs, list_paths, make_parts, read_rows, read_shard, write_rows, write_shards
from ..sources import DEFAULT_PATHS, SOURCES, locate
from .scrubbing import DEFAULT_REGIONS, contains_name, is_scrubbed, scrub


if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)
_LONG_SOURCES = ("folder", "youtube")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class AudioRoots:
    base: Path | None = None  # Has a folder per source.
    by_source: Mapping[str, Path] = field(default_factory=dict)  # Overrides `base`.

    @classmethod
    def parse(cls, values: Sequence[str]) -> AudioRoots:
        """Read the values of `--audio-root`: `DIR`, at most once, and `SOURCE=DIR`, any number of times."""
        named = dict(value.split("=", 1) for value in values if value.partition("=")[0] in SOURCES)
        bases = [value for value in values if value.partition("=")[0] not in SOURCES]
        if len(bases) > 1:
            raise ValueError(f"audio roots {bases} have no source; give one folder for all, others as SOURCE=DIR.")
        if bases and not Path(bases[0]).is_dir():
            raise ValueError(f"audio root {bases[0]!r} is not a folder; give DIR or SOURCE=DIR of {list(SOURCES)}.")
        return cls(Path(bases[0]) if bases else None, {source: Path(path) for source, path in named.items()})

    def find_root(self, source: str) -> Path:
        if source not in SOURCES:
            raise ValueError(f"unknown source {source!r}; choose one of {list(SOURCES)}.")
        if source in self.by_source:
            return self.by_source[source]
        for root in (self.base and self.base / source, DEFAULT_PATHS.get(source)):
            if root and root.exists():
                return root
        raise SkipError("missing_audio", f"no audio folder for {source}; give --audio-root {source}=DIR.")


@dataclass(frozen=True)
class Rebuilder:
    roots: AudioRoots
    cache_dir: Path  # Decoded long recordings.
    allow_reencoded: bool = False  # Accept another codec or level.
    synthesizer_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def rebuild(self, split: str, row: Row) -> tuple[dict[str, Any], Counter[str]] | Skipped:
        """Rebuild a released pair, or return why it is skipped.

        Synthetic turns are counted as same, different or scrubbed, recorded parts as reencoded.
        """
        counts: Counter[str] = Counter()
        try:
            rebuilt = pairing.make_row(self._plan(split, row, counts)) | {"quality": row["quality"]}
            validate_row(rebuilt)
        except (SkipError, pairing.NoReference, AudioError, SynthesisError, ValueError) as error:
            known = {pairing.NoReference: "no_reference_clip", AudioError: "unusable_audio", ValueError: "invalid_row"}
            kinds = (kind for type_, kind in known.items() if isinstance(error, type_))
            return Skipped(f"pair {row['pair_id']}", getattr(error, "kind", None) or next(kinds), str(error))
        for side in SIDES:
            if is_recorded(row["criterion"], side, row["synthesizer"]):
                continue
            # Scrubbed text cannot sound the same.
            for released, turn in zip(row[side], rebuilt[side], strict=True):
                is_same = compare(released["fingerprints"][0], describe(read_audio(turn["audio"]))) == "same"
                counts["same" if is_same else "different"] += 1
                counts["scrubbed"] += is_scrubbed(turn["text"])
        return rebuilt, counts

    def _plan(self, split: str, row: Row, counts: Counter[str]) -> pairing.PairPlan:
        chosen = self._make_episode(row, "chosen", counts)
        # A modality pair has the same words on both sides.
        rejected = chosen if row["criterion"] == "modality" else self._make_episode(row, "rejected", counts)
        name, options = row["synthesizer"], self.synthesizer_options
        # The columns are float32; six digits recover the setting.
        values = (row["channel"] or {}).items()
        channel: Any = {k: float(f"{value:.6g}") if isinstance(value, float) else value for k, value in values}
        matched = ChannelSettings(**channel) if channel else None
        voices = pairing.read_pool(options, name, row["criterion"])
        names = (row["criterion"], chosen, rejected, name, split)
        return pairing.PairPlan(*names, matched, options, voices, row["pair_id"])

    def _make_episode(self, row: Row, side: str, counts: Counter[str]) -> Episode:
        turns = []
        for turn in row[side]:
            parts = [Part(reference["text"]) for reference in turn["audio_ref"]]
            if is_recorded(row["criterion"], side, row["synthesizer"]):
                checked = zip(turn["audio_ref"], turn["fingerprints"], strict=True)
                parts = [self._find_checked_part(reference, expected, counts) for reference, expected in checked]
            turns.append(Turn(turn["role"], tuple(parts)))
        same = {name: row[name] for name in ("source", "subset", "primary", "secondary", "language", "license")}
        group, coding = row["group_id"], tuple(row["native_coding"] or ())
        known: Any = {"name": row["pair_id"], "group": group, "known_group_id": group, "native_coding": coding}
        episode = Episode(turns=tuple(turns), **known, **same)
        validate_episode(episode, is_broken=side == "rejected")
        return episode

    def _find_checked_part(self, reference: Row, expected: Row, counts: Counter[str]) -> Part:
        part = find_part(reference, self.roots, self.cache_dir)
        found = describe(read_recording(part))
        kind = compare(expected, found)
        if kind == "reencoded" and self.allow_reencoded:
            counts["reencoded"] += 1
        elif kind != "same":
            was, now = (f"{each['duration_s']:.2f} s at {each['level_dbfs']:.1f} dBFS" for each in (expected, found))
            raise SkipError(f"{kind}_audio", f"{part.ref}, from {part.start_s:.2f} s: {kind}; it is {now}, not {was}.")
        return part


def reconstruct(
    release_folder: Path,
    audio_roots: AudioRoots,
    output: Path,
    *,
    allow_reencoded: bool = False,
    synthesizer_options: Mapping[str, Mapping[str, Any]] | None = None,
    num_workers: int = 2,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Rebuild a metadata release as a data set folder; return its report.

    `<output>-work` keeps finished pairs: a rerun, for instance with more audio, makes only the others.
    """
    require_other_folder(release_folder, output)
    work, options = Path(f"{output}-work"), dict(synthesizer_options or {})
    rebuilder = Rebuilder(audio_roots, work / "recordings", allow_reencoded, options)
    skipped: list[Skipped] = []
    tasks = _read_tasks(release_folder, [allow_reencoded, pairing.list_audible(options)], skipped)
    if dry_run:
        return {"pairs": count_pairs(tasks.values()), **data_card.summarise_skipped(skipped)}
    plan_id = make_stable_id(*sorted(tasks))
    finished = data_card.read_finished(output, plan_id)
    if finished and not finished["skipped"]:
        logger.warning("%s is complete; delete its report.json to rebuild it.", output)
        return finished
    # Retry pairs that could not be rebuilt.
    parts = make_parts(
        work, tasks, partial(_rebuild, rebuilder), lambda key, note: "skip" in note, num_workers=num_workers
    )
    counts, notes = write_shards(parts, {key: split for key, (split, _) in tasks.items()}, output)
    turns: Counter[str] = Counter()
    for note in notes:
        turns.update(note.get("turns", {}))
        skipped += [Skipped(**note["skip"])] if "skip" in note else []
    config = {**data_card.read_public_settings(release_folder), "allow_reencoded": allow_reencoded}
    more = {"plan_id": plan_id, "released": len(tasks), "turns": dict(turns)}
    return data_card.write_report(output, counts, skipped, config, **more)


def _read_tasks(folder: Path, settings: Any, damaged: list[Skipped]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return split and row of each released pair, ordered by id; append unreadable shards to `damaged`.

    The key is a hash of the pair and of everything that its rebuilding depends on.
    """
    import pyarrow as pa

    tasks = []
    for path in list_paths(folder):
        try:
            for split, row in read_shard(path):
                key = make_stable_id(split, json.dumps([row, settings], sort_keys=True, default=repr))
                tasks.append((key, split, row))
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = f"cannot be read completely ({error}); download the release again."
            damaged.append(Skipped(f"{path.parent.name}/{path.name}", "invalid_shard", reason))
    return {key: (split, row) for key, split, row in sorted(tasks, key=lambda task: task[2]["pair_id"])}


def _rebuild(rebuilder: Rebuilder, split: str, row: Row) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    found = rebuilder.rebuild(split, row)
    return ([], {"skip": found.to_dict()}) if isinstance(found, Skipped) else ([found[0]], {"turns": found[1]})


def find_part(reference: Row, roots: AudioRoots, cache_dir: Path) -> Part:
    """Find the recording of an `audio_ref` entry in the user's copies of the corpora."""
    uri, start_s, end_s = reference["uri"], reference["start_s"], reference["end_s"]
    if not uri:
        raise SkipError("no_reference", "a part has no reference to its recording; its source has none.")
    source, path = split_reference(uri)
    path, _, channel = path.partition("?channel=")
    path, _, enhancement = path.partition("?enhancement=")
    root = roots.find_root(source)
    try:
        found = locate(source, root, path)
    except ValueError as error:
        raise SkipError("outside_root", f"{uri}: outside the audio root; not read.") from error
    except FileNotFoundError as error:
        raise SkipError("missing_audio", f"{uri}: not found; the card of {source} says how to get it.") from error
    if channel:
        found = _decode_channel(uri, found, cache_dir, channel)
    elif enhancement or (source in _LONG_SOURCES and end_s is not None):
        found = _decode(uri, found, cache_dir, enhancement)
    return Part(reference["text"], str(found), start_s, end_s, uri)


def read_recording(part: Part) -> np.ndarray:
    """Read a part from `find_part` as 16 kHz mono, before channel matching."""
    label, path = str(part.ref), str(part.audio)
    try:
        if path.endswith(".wav") and part.end_s is not None:
            return pairing.read_part(part, label)
        whole = require_sound(pairing.read_whole(path), path)
    except (FileNotFoundError, AudioError) as error:
        raise _make_skip(label, error, path) from error
    end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
    array = whole[round(part.start_s * SAMPLING_RATE) : end]
    if not array.size:
        lasts_s = whole.size / SAMPLING_RATE
        raise SkipError("truncated_audio", f"{label}: lasts {lasts_s:.1f} s, but the part begins at {part.start_s} s.")
    return array


def _decode_channel(uri: str, path: Path, cache_dir: Path, channel: str) -> Path:
    """Return one channel of a call as a 16 kHz recording, as in the pipeline."""
    wav = cache_dir / f"{make_stable_id(*pairing.read_file_version(str(path.resolve())))}-{channel}.wav"
    cache_dir.mkdir(parents=True, exist_ok=True)
    try:
        if not wav.is_file():
            decode_channel(path, wav, int(channel))
    except (ValueError, IndexError) as error:
        raise SkipError("unusable_audio", f"{uri}: channel {channel} cannot be read ({error}).") from error
    return wav


def _decode(uri: str, path: Path, cache_dir: Path, enhancement: str) -> Path:
    """Return the 16 kHz copy of a recording, enhanced as in the pipeline."""
    import soundfile
    from filelock import FileLock

    name = make_stable_id(*pairing.read_file_version(str(path.resolve())))
    wav, failure = cache_dir / f"{name}.wav", cache_dir / f"{name}.json"
    cache_dir.mkdir(parents=True, exist_ok=True)
    # Several processes may need a recording; it is decoded and enhanced once.
    with FileLock(wav.with_suffix(".lock")):
        # Do not decode a damaged recording again for each pair.
        if failure.is_file():
            raise SkipError(*json.loads(failure.read_text(encoding="utf-8")))
        try:
            if not wav.is_file():
                decode_recording(path, wav)
        except AudioError as error:
            problem = _make_skip(uri, error, str(path))
            write_file(failure, json.dumps([problem.kind, str(problem)]))
            raise problem from error
        if not enhancement:
            return wav
        identity = json.dumps(AudioSeparatorSettings().identity(), sort_keys=True)
        enhanced = cache_dir / f"{name}-{make_stable_id(enhancement, identity)}.wav"
        if not enhanced.is_file():
            _load_enhancer(enhancement).enhance(path, enhanced, soundfile.info(wav).frames)
        return enhanced


@cache
def _load_enhancer(name: str) -> Any:
    from ..pipeline.components import AudioSeparatorEnhancer

    try:
        if name != AudioSeparatorSettings.name:
            raise ComponentError("it is unknown in this version")
        return AudioSeparatorEnhancer(AudioSeparatorSettings())
    except (ImportError, ComponentError) as error:
        reason = f"the recordings were enhanced by {name!r}, which cannot run here: {error}; install it."
        raise SkipError("missing_enhancement", reason) from error


def _make_skip(uri: str, error: Exception, path: str) -> SkipError:
    """Convert an error to a `SkipError` without local paths."""
    kinds = {FileNotFoundError: "missing", TruncatedAudioError: "truncated", SilentAudioError: "wrong"}
    kind = next((kind for type_, kind in kinds.items() if isinstance(error, type_)), "undecodable")
    return SkipError(f"{kind}_audio", str(error).replace(path, uri))


def release_features() -> datasets.Features:
    """Return the columns of a pair, each turn with `fingerprints` in place of `audio`."""
    import datasets

    columns, real = features(), datasets.Value("float32")
    fingerprint = {"duration_s": real, "level_dbfs": real, "digest": datasets.Value("string")}
    fingerprint["energies"] = datasets.List(datasets.Value("uint8"))
    for side in SIDES:
        turn = {name: kind for name, kind in columns[side].feature.items() if name != "audio"}
        columns[side] = datasets.List({**turn, "fingerprints": datasets.List(fingerprint)})
    return columns


def release(
    folder: Path,
    output: Path,
    *,
    audio_roots: AudioRoots | None = None,
    names: Sequence[str] = (),
    regions: Sequence[str] = DEFAULT_REGIONS,
) -> dict[str, Any]:
    """Write a metadata release of a data set; return its report. `names` are removed and never written."""
    require_other_folder(folder, output)
    from tqdm import tqdm

    total = sum(1 for _ in read_rows(folder, ["pair_id"]))
    given = [name for name in names if name.strip()]
    releaser = _Releaser(audio_roots or AudioRoots(), Path(f"{output}-work", "recordings"), given, regions)
    skipped: list[Skipped] = []

    def make_rows() -> Iterator[tuple[str, dict[str, Any]]]:
        for split, row in tqdm(read_rows(folder), total=total, desc="release", unit="pair"):
            try:
                yield split, releaser.make_row(row)
            except (SkipError, AudioError) as error:
                kind = getattr(error, "kind", "undecodable_audio")
                skipped.append(Skipped(f"pair {row['pair_id']}", kind, str(error)))

    counts = write_rows(output, make_rows(), release_features())
    before = data_card.read_report(folder).get("build_id")
    settings = {**data_card.read_public_settings(folder), "released_from": before}
    settings |= {"phone_regions": list(regions), "num_names": len(given)}
    scrubbed = dict(sorted(releaser.counts.items()))
    report = data_card.make_report(output, counts, skipped, settings, scrubbed=scrubbed)
    sources: Counter[str] = Counter()
    for row in report["pairs"]:
        sources[row["source"]] += row["pairs"]
    body = Template((CARDS / "release_card.md").read_text(encoding="utf-8")).substitute(
        total=sources.total(),
        skipped=len(skipped),
        scrubbed=", ".join(f"{count} {kind}" for kind, count in scrubbed.items()) or "none",
        sources="\n".join(f"- {escape_code(source)}: {pairs} pairs" for source, pairs in sorted(sources.items())),
    )
    header = data_card.render_header(report, data_card.list_configs(report["pairs"]))
    return data_card.save_report(output, report, f"---\n{header}\n---\n{body}")


@dataclass(frozen=True)
class _Releaser:
    """Makes released rows; caches scrubbed texts and fingerprints, because dialogues are in several pairs."""

    roots: AudioRoots
    cache_dir: Path
    names: Sequence[str]
    regions: Sequence[str]
    counts: Counter[str] = field(default_factory=Counter)
    _texts: dict[str, str] = field(default_factory=dict)
    _fingerprints: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def make_row(self, row: Row) -> dict[str, Any]:
        if row["criterion"] == JOINT:
            raise SkipError("family", "family pairs are not released; rebuild them from the recipe.")
        sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for side in SIDES:
            for turn in row[side]:
                if not turn["audio_ref"]:
                    raise SkipError("no_reference", f"a {side} turn has no reference to its source; build it again.")
                parts = [{**part, "text": self._scrub(part)} for part in turn["audio_ref"]]
                if is_recorded(row["criterion"], side, row["synthesizer"]):
                    fingerprints = [self._find_fingerprint(part) for part in turn["audio_ref"]]
                else:
                    fingerprints = [describe(read_audio(turn["audio"], name=f"pair {row['pair_id']}, {side}"))]
                text = " ".join(filter(None, (part["text"] for part in parts)))
                # An identifier may span two parts.
                if len(parts) > 1 and (found := scrub(text, self.names, self.regions)[1]):
                    raise SkipError("identifier_across_parts", f"a turn has {sorted(found)} across parts; edit it.")
                kept = {"role": turn["role"], "duration_s": turn["duration_s"]}
                sides[side].append({**kept, "text": text, "audio_ref": parts, "fingerprints": fingerprints})
        return {**row, **sides}

    def _scrub(self, part: Row) -> str:
        if contains_name(re.sub(r"[\W_]+", " ", part["uri"] or ""), self.names):
            raise SkipError("name_in_reference", "a reference contains a name to remove; rename the file.")
        if (text := part["text"]) not in self._texts:
            self._texts[text], counts = scrub(text, self.names, self.regions)
            self.counts.update(counts)
        return self._texts[text]

    def _find_fingerprint(self, reference: Row) -> dict[str, Any]:
        part = find_part(reference, self.roots, self.cache_dir)
        key = (part.audio, part.start_s, part.end_s)
        if key not in self._fingerprints:
            self._fingerprints[key] = describe(read_recording(part))
        return self._fingerprints[key]
