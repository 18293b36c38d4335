"""The stages of the pipeline: each takes recordings one step further and keeps what it finds in the work directory.

Stages keep their results in parts (`common.parts`), each stage in a folder with the recordings that it made. The item
of a row is a hash of the recording's content and of the settings of its stage and all earlier ones: a finished stage
is not run again, and a changed option runs its stage and all later ones again. Turns are arithmetic and not kept. What
is recognised is kept by episode, so that several workers share a long recording.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import multiprocessing
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from ..row_parts import ChooseEngine, EngineName, open_engines, require_engine
from .media import decode_recording, read_span
from .settings import NoEnhancementSettings, PipelineSettings, ResemblyzerSettings, require_packages
from .turns import (
    Segment,
    SkippedSpan,
    SpokenTurn,
    drop_crowded_turns,
    find_two_speakers,
    group_episodes,
    intersect,
    merge_turns,
    split_at_silent_turns,
)


logger = logging.getLogger(__name__)
_MAX_PARTS = 1000
_ON_TORCH = ("enhancement", "vad", "diarization")
_BLOCK_BYTES = 2**20
# What a later stage needs; `wav` is relative to the work directory.
_FOUND = ("wav", "duration_s", "speech", "segments", "texts")


@dataclass
class Job:
    """A recording between the stages, or an episode of it that is to be recognised."""

    recording: Recording
    key: str  # Hash of its content and of the stages so far.
    found: dict[str, Any] = field(default_factory=dict)  # By the stages so far.
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


# Takes a job and the work directory, and returns what it finds: `wav` is a recording that it made.
Step = Callable[[Job, Path], dict[str, Any]]
RunStage = Callable[..., None]


@contextmanager
def open_stages(
    settings: PipelineSettings, work_dir: str | Path, engine: EngineName, num_workers: int
) -> Iterator[RunStage]:
    """Yield a function that runs a stage on jobs: `run(stage, jobs, unit)`."""
    require_engine(engine, num_workers)
    folder = Path(work_dir).resolve()
    with lock_folder(folder), open_engines(engine, num_workers) as choose:
        yield partial(_run_stage, settings, folder, choose)


def run_pipeline(
    recordings: Iterable[Recording],
    settings: PipelineSettings,
    work_dir: str | Path,
    *,
    engine: EngineName = "datasets",
    num_workers: int = 2,
) -> tuple[list[Episode], list[Skipped]]:
    """Cut recordings into episodes, which are not annotated yet; return them by recording and time, and the skipped.

    Resumes an earlier run. Call it under `if __name__ == "__main__":`.
    """
    require_packages(settings)
    jobs, skipped = start_jobs(recordings)
    jobs.sort(key=lambda job: (job.recording.recording_id, job.recording.source))
    with open_stages(settings, work_dir, engine, num_workers) as run:
        for stage in ("decode", "enhancement", "vad"):
            run(stage, jobs)
        run("diarization", jobs, then=partial(_form_episodes, settings))
        spoken = [[_take_episode(job, turns) for turns in job.found.get("episodes", ())] for job in jobs]
        run("asr", [episode for of_job in spoken for episode in of_job], "episode")
    episodes = []
    for job, of_job in zip(jobs, spoken, strict=True):
        made = [found for episode in of_job for found in _make_episodes(episode, settings, Path(work_dir).resolve())]
        # An error of the whole recording is that of each of its episodes.
        job.skipped += dict.fromkeys(skip for episode in of_job for skip in episode.skipped)
        skipped += job.skipped
        episodes += [] if any(episode.is_finished for episode in of_job) else made
    return episodes, skipped


def enhance_episodes(
    episodes: Sequence[Episode],
    settings: PipelineSettings,
    work_dir: Path,
    *,
    engine: EngineName = "datasets",
    num_workers: int = 2,
) -> tuple[list[Episode], list[Skipped]]:
    """Return dialogues of clips with enhanced copies (section B.1: "consistent speech enhancement"), and the skipped.

    Diarization and recognition are for recordings without metadata: the source's words are kept.
    """
    if isinstance(settings.enhancement, NoEnhancementSettings):
        raise ValueError("a source has `enhance`, but the pipeline's enhancement is 'none'; choose one or remove it.")
    require_packages(settings, ["enhancement"])
    clips: dict[str, Recording] = {}
    for episode in episodes:
        for part in (part for turn in episode.turns for part in turn.parts):
            if part.audio is None:
                raise ValueError(f"{episode.source} {episode.name}: only recordings in files can be enhanced.")
            name = (part.ref or part.audio).removeprefix(f"{episode.source}:")
            common = (episode.source, episode.subset, episode.language, episode.license)
            clips.setdefault(part.audio, Recording(name, part.audio, part.ref or "", *common))
    jobs, _ = start_jobs(clips.values())
    with open_stages(settings, work_dir, engine, num_workers) as run:
        for stage in ("decode", "enhancement"):
            run(stage, jobs, "clip")
    by_path = {job.recording.path: job for job in jobs}

    def copy(part: Part) -> Part:
        ref = None if part.ref is None else _mark_enhanced(part.ref, settings)
        wav = work_dir.resolve() / by_path[str(part.audio)].found["wav"]
        return replace(part, audio=str(wav), ref=ref)

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


def start_jobs(recordings: Iterable[Recording]) -> tuple[list[Job], list[Skipped]]:
    """Return a job for each recording, and the recordings with the name of an earlier one."""
    jobs, skipped = [], []
    seen: Counter[tuple[str, str]] = Counter()
    for recording in recordings:
        name = (recording.source, recording.recording_id)
        seen[name] += 1
        if seen[name] > 1:
            reason = f"number {seen[name]} of this recording_id ({recording.path}); only the first is processed."
            skipped.append(Skipped(" ".join(name), "duplicate_id", reason))
            continue
        jobs.append(job := Job(recording, ""))
        try:
            with open(recording.path, "rb"):
                job.key = make_stable_id(*name, *stamp_file(recording.path))
        except OSError as error:
            job.skip("missing_audio", f"{recording.path}: cannot be read ({error.strerror}).")
    return jobs, skipped


def _run_stage(
    settings: PipelineSettings,
    work_dir: Path,
    choose: ChooseEngine,
    stage: str,
    jobs: Iterable[Job],
    unit: str = "recording",
    *,
    then: Callable[[Job], None] | None = None,
) -> None:
    """Run a stage on the jobs that need it, and add what it finds to each; `then` takes a job with its results."""
    options = settings.get_stage(stage)
    if isinstance(options, NoEnhancementSettings):
        return
    by_key = {}
    for job in jobs:
        if not job.is_finished:
            job.key = make_stable_id(job.key, stage, json.dumps(options.identity(), sort_keys=True))
            by_key[job.key] = job
    parts = PartFolder(work_dir / stage, {})
    has_changed = partial(_find_lost, work_dir)
    pending = [by_key[key] for key in parts.find_pending(list(by_key), has_changed, "wav", "crc32", "is_failed")]
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
        if then and not done.is_finished:
            then(done)


def _find_lost(work_dir: Path, rows: Rows) -> Iterator[bool]:
    """Yield whether a stage failed in a way that may not recur, or its recording is not as it was made."""
    for row in rows:
        is_whole = row.get("wav") is None or _compute_checksum(work_dir / row["wav"]) == row["crc32"]
        if not is_whole:
            logger.warning("%s: is missing or damaged; it is made again.", work_dir / row["wav"])
        yield row["is_failed"] or not is_whole


def _compute_checksum(wav: Path) -> int | None:
    if not wav.is_file():
        return None
    checksum = 0
    # Of a recording of a day, not all at once.
    with wav.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _load(stage: str, settings: PipelineSettings, work_dir: Path) -> Make:
    # With a thread for each core in every worker process, two workers ran at a twentieth of the speed. Ray limits the
    # threads of its actors itself.
    if stage in _ON_TORCH and multiprocessing.parent_process() is not None:
        import torch

        torch.set_num_threads(1)
    step = _LOADERS[stage](settings)

    def make(parts: Iterable[Any]) -> Iterator[Rows]:
        for part in parts:
            yield [_make_row(stage, step, job, work_dir) for job in part]

    return make


def _make_row(stage: str, step: Step, job: Job, work_dir: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"item": job.key, "skipped": [], "is_failed": False}
    try:
        row |= step(job, work_dir)
    except SkipError as error:
        row["skipped"] = [{"kind": error.kind, "reason": str(error)}]
    except AudioError as error:
        row["skipped"] = [{"kind": "unusable_audio", "reason": str(error)}]
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        logger.exception("%s failed on %s %s", stage, job.recording.source, job.recording.recording_id)
        reason = f"{stage} failed: {type(error).__name__}: {error}"
        row |= {"skipped": [{"kind": "stage_failed", "reason": reason}], "is_failed": True}
    if "wav" in row:
        row["crc32"] = _compute_checksum(work_dir / row["wav"])
    return row


def _load_decoder(settings: PipelineSettings) -> Step:
    def decode(job: Job, work_dir: Path) -> dict[str, Any]:
        recording = job.recording
        with open(recording.path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        content = make_stable_id(recording.source, recording.recording_id, digest)
        wav = _name_wav("decode", recording, content)
        return {"content": content, "wav": wav, "duration_s": decode_recording(recording.path, work_dir / wav)}

    return decode


def _name_wav(stage: str, recording: Recording, key: str) -> str:
    return f"{stage}/{re.sub(r'[^A-Za-z0-9_-]+', '_', recording.recording_id)[:80]}-{key}.wav"


def _load_enhancer(settings: PipelineSettings) -> Step:
    from .enhancement import AudioSeparatorEnhancer

    enhancer = AudioSeparatorEnhancer(settings.enhancement)  # type: ignore[arg-type]  # `none` runs no stage.

    def enhance(job: Job, work_dir: Path) -> dict[str, Any]:
        wav = _name_wav("enhancement", job.recording, job.key)
        num_samples = round(job.found["duration_s"] * SAMPLING_RATE)
        enhancer.enhance(Path(job.recording.path), work_dir / wav, num_samples)
        return {"wav": wav}

    return enhance


def _load_vad(settings: PipelineSettings) -> Step:
    from .diarization import SileroVad

    vad = SileroVad(settings.vad)

    def find_speech(job: Job, work_dir: Path) -> dict[str, Any]:
        speech, short = vad.find_speech(work_dir / job.found["wav"])
        skipped = [asdict(span) for span in short]
        if not speech:
            reason = f"no speech was found in {job.found['duration_s']:.1f} s; a dialogue needs some."
            skipped.append({"kind": "no_speech", "reason": reason})
        return {"speech": speech, "skipped": skipped}

    return find_speech


def _load_diarizer(settings: PipelineSettings) -> Step:
    from .diarization import PyannoteDiarizer, ResemblyzerDiarizer

    options = settings.diarization
    is_offline = isinstance(options, ResemblyzerSettings)
    # The class decides which settings it gets.
    diarizer: Any = (ResemblyzerDiarizer if is_offline else PyannoteDiarizer)(options)  # type: ignore[arg-type]

    def find_speakers(job: Job, work_dir: Path) -> dict[str, Any]:
        segments = diarizer.find_speakers(work_dir / job.found["wav"], job.found["speech"])
        return {"segments": [asdict(segment) for segment in segments]}

    return find_speakers


def _load_transcriber(settings: PipelineSettings) -> Step:
    from .asr import FasterWhisperTranscriber

    transcriber = FasterWhisperTranscriber(settings.asr)

    def transcribe(job: Job, work_dir: Path) -> dict[str, Any]:
        wav = work_dir / job.found["wav"]
        arrays = (read_span(wav, turn.start_s, turn.end_s) for turn in job.found["turns"])
        return {"texts": [transcriber.transcribe(array, job.recording.language) for array in arrays]}

    return transcribe


_LOADERS: dict[str, Callable[[PipelineSettings], Step]] = {
    "decode": _load_decoder,
    "enhancement": _load_enhancer,
    "vad": _load_vad,
    "diarization": _load_diarizer,
    "asr": _load_transcriber,
}


def _form_episodes(settings: PipelineSettings, job: Job) -> None:
    """Replace what VAD and diarization found by the turns of each episode."""
    rules, speech = settings.turns, job.found.pop("speech")
    spoken = intersect([Segment(**segment) for segment in job.found.pop("segments")], speech)
    try:
        speakers = find_two_speakers(spoken)
    except SkipError as error:
        job.skip(error.kind, str(error))
        return
    merged, skipped_segments = merge_turns(spoken, speakers, rules)
    turns, crowded_turns = drop_crowded_turns(merged, spoken, speakers, rules)
    job.found["episodes"], skipped_turns = group_episodes(turns, rules)
    job.skip_spans([*skipped_segments, *crowded_turns, *skipped_turns])


def _take_episode(job: Job, turns: Sequence[SpokenTurn]) -> Job:
    spans = [(turn.start_s, turn.end_s) for turn in turns]
    key = make_stable_id(job.key, job.recording.language, json.dumps(spans))
    return Job(job.recording, key, {"wav": job.found["wav"], "turns": turns})


def _make_episodes(job: Job, settings: PipelineSettings, work_dir: Path) -> Iterator[Episode]:
    """Yield what is left of an episode without the turns in which no words were recognised."""
    if job.is_finished:
        return
    recording, texts = job.recording, job.found["texts"]
    # The build takes the other marks out of the words.
    pieces, silent = split_at_silent_turns(job.found["turns"], [remove_marks(text)[0] and text for text in texts])
    job.skip_spans(silent)
    audio, ref = str(work_dir / job.found["wav"]), _mark_enhanced(recording.ref, settings)
    for piece in pieces:
        parts = [Part(text, audio, turn.start_s, turn.end_s, ref) for turn, text in piece]
        yield Episode(
            name=f"{recording.recording_id}/{round(piece[0][0].start_s * 1000)}",
            source=recording.source,
            subset=recording.subset,
            group=recording.recording_id,
            turns=tuple(Turn(ROLES[index % 2], (part,)) for index, part in enumerate(parts)),
            primary=UNKNOWN,
            secondary=UNKNOWN,
            language=recording.language,
            license=recording.license,
            native_coding=recording.native_coding,
        )
