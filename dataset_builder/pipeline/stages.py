"""The stages of the pipeline: each processes recordings one step further and stores results in the work directory.

Each stage has a folder with its results in parts (`common.parts`) and its recordings. The item of a row is a hash of
the recording's content and of the settings of its stage and all earlier ones: a finished stage is not run again, and a
changed option reruns its stage and all later ones. Turns are recomputed. Transcripts are stored by episode, so that
several workers can share a long recording.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError
from sdiareward.chat_sdiareward import ROLES
from sdiareward.common.errors import Skipped, UserError
from sdiareward.common.files import lock_folder
from sdiareward.common.parts import Make, PartFolder, Rows, run_parts
from sdiareward.pairs.content import stamp_file
from sdiareward.pairs.schema import UNKNOWN, make_stable_id

from ..episodes import Episode, Part, Recording, SkipError, Turn
from ..marks import remove_marks
from ..shards import ChooseEngine, EngineName, open_engines
from .media import decode_recording, read_span
from .settings import NoEnhancementSettings, PipelineSettings, require_packages
from .turns import Segment, SkippedSpan, form_episodes, split_at_silent_turns


logger = logging.getLogger(__name__)
_MAX_PARTS = 1000
_ON_TORCH = ("enhancement", "vad", "diarization")
# Results for later stages; `wav` is relative to the work directory.
_FOUND = ("wav", "wavs", "duration_s", "speech", "segments", "texts")
_LABELS = ("source", "subset", "language", "license", "native_coding")


@dataclass
class Job:
    """A recording between stages, or an episode to transcribe."""

    recording: Recording
    key: str  # Hash of its content and the stages so far.
    found: dict[str, Any] = field(default_factory=dict)  # Results of the stages so far.
    skipped: list[Skipped] = field(default_factory=list)
    is_finished: bool = False  # No further stage runs.

    def skip(self, kind: str, reason: str, start_s: float | None = None, end_s: float | None = None) -> None:
        stretch = "" if start_s is None else f" {start_s:.2f}-{end_s:.2f} s"
        item = f"{self.recording.source} {self.recording.recording_id}{stretch}"
        self.skipped.append(Skipped(item, kind, reason))
        self.is_finished |= start_s is None

    def skip_spans(self, spans: Iterable[SkippedSpan]) -> None:
        for span in spans:
            self.skip(span.kind, span.reason, span.start_s, span.end_s)

    def find_wav(self, turn: Segment) -> str:
        """Return the recording of a turn, or its channel if there are two, relative to the work directory."""
        return str(self.found["wavs"][int(turn.speaker)] if "wavs" in self.found else self.found["wav"])

    def name_wav(self, stage: str, key: str) -> str:
        return f"{stage}/{re.sub(r'[^A-Za-z0-9_-]+', '_', self.recording.recording_id)[:80]}-{key}.wav"


def run_pipeline(
    recordings: Iterable[Recording], settings: PipelineSettings, folder: Path, engine: EngineName, num_workers: int
) -> tuple[list[Episode], list[Skipped]]:
    """Cut recordings into unannotated episodes; return them by recording and time, and the skipped items.

    Resumes an earlier run in the absolute `folder`. Call it under `if __name__ == "__main__":`.
    """
    require_packages(settings)
    jobs, skipped = _start_jobs(recordings)
    jobs.sort(key=lambda job: (job.recording.recording_id, job.recording.source))
    with lock_folder(folder), open_engines(engine, num_workers) as choose:
        run = partial(_run_stage, settings, folder, choose)
        for stage in ("decode", "enhancement", "vad", "diarization"):
            run(stage, jobs, "recording")
        spoken = list(map(_list_episodes, jobs))
        run("asr", [episode for of_job in spoken for episode in of_job], "episode")
    episodes = []
    for job, of_job in zip(jobs, spoken, strict=True):
        made = [found for each in of_job if not each.is_finished for found in _make_episodes(each, settings, folder)]
        # An error of a recording applies to all its episodes.
        job.skipped += dict.fromkeys(skip for episode in of_job for skip in episode.skipped)
        skipped += job.skipped
        episodes += [] if any(episode.is_finished for episode in of_job) else made
    return episodes, skipped


def enhance_episodes(
    episodes: Iterable[Episode], settings: PipelineSettings, folder: Path, engine: EngineName, num_workers: int
) -> tuple[list[Episode], list[Skipped]]:
    """Return dialogues of clips with enhanced copies (section B.1: "consistent speech enhancement"), and the skipped.

    Diarization and recognition are only for recordings without metadata; the source's words are kept.
    """
    if isinstance(settings.enhancement, NoEnhancementSettings):
        raise ValueError("a source has `enhance`, but the pipeline's enhancement is 'none'; set one or remove it.")
    require_packages(settings, ["enhancement"])
    clips: dict[str, Recording] = {}
    for episode in episodes:
        for part in (part for turn in episode.turns for part in turn.parts):
            path, name = str(part.audio), (part.ref or str(part.audio)).removeprefix(f"{episode.source}:")
            labels = {label: getattr(episode, label) for label in _LABELS}
            clips.setdefault(path, Recording(recording_id=name, path=path, ref=part.ref or "", **labels))
    jobs, _ = _start_jobs(clips.values())
    with lock_folder(folder), open_engines(engine, num_workers) as choose:
        for stage in ("decode", "enhancement"):
            _run_stage(settings, folder, choose, stage, jobs, "clip")
    by_path = {job.recording.path: job for job in jobs}

    def copy(part: Part) -> Part:
        ref = None if part.ref is None else _mark_enhanced(part.ref, settings)
        return replace(part, audio=str(folder / by_path[str(part.audio)].found["wav"]), ref=ref)

    done, skipped = [], []
    for episode in episodes:
        of_clips = [by_path[str(part.audio)].skipped for turn in episode.turns for part in turn.parts]
        if reason := next(filter(None, of_clips), None):
            skipped.append(replace(reason[0], item=f"{episode.source} {episode.name}"))
        else:
            turns = [replace(turn, parts=tuple(map(copy, turn.parts))) for turn in episode.turns]
            done.append(replace(episode, turns=tuple(turns)))
    return done, skipped


def _mark_enhanced(ref: str, settings: PipelineSettings) -> str:
    is_plain = isinstance(settings.enhancement, NoEnhancementSettings)
    return ref if is_plain else f"{ref}?enhancement={settings.enhancement.name}"


def _start_jobs(recordings: Iterable[Recording]) -> tuple[list[Job], list[Skipped]]:
    """Return a job for each recording, and the recordings with a duplicate name."""
    jobs: dict[tuple[str, str], Job] = {}
    skipped = []
    for recording in recordings:
        name = (recording.source, recording.recording_id)
        if name in jobs:
            skipped.append(Skipped(" ".join(name), "duplicate_id", f"{recording.path}: another one has this id."))
            continue
        job = jobs[name] = Job(recording, "")
        try:
            with open(recording.path, "rb"):
                job.key = make_stable_id(*name, *stamp_file(recording.path))
        except OSError as error:
            job.skip("missing_audio", f"{recording.path}: cannot be read ({error.strerror}).")
    return list(jobs.values()), skipped


def _run_stage(
    settings: PipelineSettings, work_dir: Path, choose: ChooseEngine, stage: str, jobs: Iterable[Job], unit: str
) -> None:
    """Run a stage on the jobs that need it, and add its results to each."""
    options = getattr(settings, stage)
    if isinstance(options, NoEnhancementSettings):
        return
    by_key = {}
    for job in jobs:
        if not job.is_finished:
            job.key = make_stable_id(job.key, stage, json.dumps(options.identity(), sort_keys=True))
            by_key[job.key] = job
    parts = PartFolder(work_dir / stage, {})
    has_changed = partial(_find_lost, work_dir)
    pending = [
        by_key[key] for key in parts.find_pending(list(by_key), has_changed, "wav", "wavs", "digest", "is_failed")
    ]
    size = max(1, len(pending) // _MAX_PARTS)
    if pending:
        (work_dir / stage).mkdir(parents=True, exist_ok=True)
    engine = choose(-(-len(pending) // size), options.concurrency, options.num_gpus)
    run_parts(parts, pending, partial(_load, stage, settings, work_dir), size, engine, label=stage, unit=unit)
    for row in parts.iter_rows():
        if (done := by_key.get(row["item"])) is None:
            continue
        done.key = row.get("content") or done.key
        done.found |= {name: row[name] for name in _FOUND if row.get(name) is not None}
        for skipped in row["skipped"]:
            done.skip(**skipped)
        # At once, because the segments of all recordings may not fit into memory.
        if stage == "diarization" and not done.is_finished:
            segments = [Segment(**segment) for segment in done.found.pop("segments")]
            try:
                speech, turns = done.found.pop("speech"), settings.turns
                if "wavs" in done.found:  # Each turn is recorded separately, even in overlaps.
                    speech, turns = [(0.0, math.inf)], replace(turns, split_overlap=1.0)
                done.found["episodes"], spans = form_episodes(segments, speech, turns)
                done.skip_spans(spans)
            except SkipError as error:
                done.skip(error.kind, str(error))


def _find_lost(work_dir: Path, rows: Rows) -> Iterator[bool]:
    """Yield whether a stage failed in a way that may not recur, or its recording changed."""
    for row in rows:
        wav = work_dir / row["wav"] if row.get("wav") else None
        is_lost = wav is not None and not (wav.is_file() and _hash_file(wav) == row["digest"])
        is_lost |= not all((work_dir / each).is_file() for each in row.get("wavs") or ())
        if is_lost:
            logger.warning("%s: missing or damaged; it is made again.", wav)
        yield row["is_failed"] or is_lost


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load(stage: str, settings: PipelineSettings, work_dir: Path) -> Make:
    # With one thread per core in each worker process, two workers ran at a twentieth of the speed. Ray limits the
    # threads of its actors.
    if stage in _ON_TORCH and multiprocessing.parent_process() is not None:
        import torch

        torch.set_num_threads(1)
    step = partial(_STEPS[stage], getattr(settings, stage).load(), work_dir)
    return lambda parts: ([_make_row(stage, step, job, work_dir) for job in part] for part in parts)


def _make_row(stage: str, step: Callable[[Job], dict[str, Any]], job: Job, work_dir: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"item": job.key, "skipped": [], "is_failed": False}
    try:
        row |= step(job)
    except (SkipError, AudioError) as error:
        row["skipped"] = [{"kind": getattr(error, "kind", "unusable_audio"), "reason": str(error)}]
    except Exception as error:
        if isinstance(error, UserError) or getattr(error, "errno", None) == errno.ENOSPC:
            raise
        logger.exception("%s failed on %s %s", stage, job.recording.source, job.recording.recording_id)
        reason = f"{stage} failed: {type(error).__name__}: {error}"
        row |= {"skipped": [{"kind": "stage_failed", "reason": reason}], "is_failed": True}
    if "wav" in row:
        row["digest"] = _hash_file(work_dir / row["wav"])
    return row


def _decode(_: None, folder: Path, job: Job) -> dict[str, Any]:
    path = Path(job.recording.path)
    content = make_stable_id(job.recording.source, job.recording.recording_id, _hash_file(path))
    wav = job.name_wav("decode", content)
    return {"content": content, "wav": wav, "duration_s": decode_recording(path, folder / wav)}


def _enhance(enhancer: Any, folder: Path, job: Job) -> dict[str, Any]:
    wav = job.name_wav("enhancement", job.key)
    num_samples = round(job.found["duration_s"] * SAMPLING_RATE)
    enhancer.enhance(Path(job.recording.path), folder / wav, num_samples)
    return {"wav": wav}


def _find_speech(vad: Any, folder: Path, job: Job) -> dict[str, Any]:
    speech, short = vad.find_speech(folder / job.found["wav"])
    skipped = [asdict(span) for span in short]
    if not speech:
        skipped.append({"kind": "no_speech", "reason": f"no speech in {job.found['duration_s']:.1f} s."})
    return {"speech": speech, "skipped": skipped}


def _find_speakers(diarizer: Any, folder: Path, job: Job) -> dict[str, Any]:
    if hasattr(diarizer, "read_turns"):
        wavs = [job.name_wav("diarization", f"{job.key}-{channel}") for channel in range(2)]
        segments = diarizer.read_turns(Path(job.recording.path), [folder / wav for wav in wavs])
        return {"segments": [asdict(segment) for segment in segments], "wavs": wavs}
    segments = diarizer.find_speakers(folder / job.found["wav"], job.found["speech"])
    return {"segments": [asdict(segment) for segment in segments]}


def _transcribe(transcriber: Any, folder: Path, job: Job) -> dict[str, Any]:
    arrays = (read_span(folder / job.find_wav(turn), turn.start_s, turn.end_s) for turn in job.found["turns"])
    return {"texts": [transcriber.transcribe(array, job.recording.language) for array in arrays]}


_STEPS: dict[str, Callable[[Any, Path, Job], dict[str, Any]]]
_STEPS = {
    "decode": _decode,
    "enhancement": _enhance,
    "vad": _find_speech,
    "diarization": _find_speakers,
    "asr": _transcribe,
}


def _list_episodes(job: Job) -> list[Job]:
    jobs = []
    for turns in job.found.get("episodes", ()):
        spans = json.dumps([(turn.start_s, turn.end_s) for turn in turns])
        key = make_stable_id(job.key, job.recording.language, spans)
        wavs: dict[str, Any] = {name: job.found[name] for name in ("wav", "wavs") if name in job.found}
        jobs.append(Job(job.recording, key, {**wavs, "turns": turns}))
    return jobs


def _make_episodes(job: Job, settings: PipelineSettings, work_dir: Path) -> Iterator[Episode]:
    """Yield the parts of an episode between turns without recognised words."""
    recording, texts = job.recording, job.found["texts"]
    # The build removes other marks from the words.
    pieces, silent = split_at_silent_turns(job.found["turns"], [remove_marks(text)[0] and text for text in texts])
    job.skip_spans(silent)
    ref = _mark_enhanced(recording.ref, settings)
    for piece in pieces:
        parts = [
            Part(
                text,
                str(work_dir / job.find_wav(turn)),
                turn.start_s,
                turn.end_s,
                f"{ref}?channel={turn.speaker}" if "wavs" in job.found else ref,
            )
            for turn, text in piece
        ]
        yield Episode(
            name=f"{recording.recording_id}/{round(piece[0][0].start_s * 1000)}",
            group=recording.recording_id,
            turns=tuple(Turn(ROLES[index % 2], (part,)) for index, part in enumerate(parts)),
            primary=UNKNOWN,
            secondary=UNKNOWN,
            **{label: getattr(recording, label) for label in _LABELS},
        )
