"""From long recordings to dialogues: the audio processing pipeline of section B.1.

Stages: decode, enhancement, voice activity detection, diarization, turns, speech recognition. The paper names
diarization before voice activity detection; turns are formed from the intersection of both, which does not depend on
the order, and this order skips silence before the diarizer. `turns` documents how the paper's rules are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdiareward.chat_sdiareward import ROLES
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, Recording, Turn
from sdiareward.pairs.schema import UNKNOWN

from .engines import Engine, require_engine, run_stages
from .enhanced_episodes import enhance_episodes, mark_enhanced
from .jobs import Job, format_job
from .settings import ComponentError, PipelineSettings, make_settings, read_settings, require_packages


__all__ = [
    "ComponentError",
    "PipelineResult",
    "PipelineSettings",
    "enhance_episodes",
    "make_settings",
    "read_settings",
    "run_pipeline",
]


@dataclass(frozen=True)
class PipelineResult:
    episodes: list[Episode]  # Sorted by recording and time; not annotated yet.
    skipped: list[Skipped]
    # By stage: `recordings`, `audio_s`, `wall_s`, and `speed` in seconds of audio per second.
    stats: dict[str, dict[str, float]]


def run_pipeline(
    recordings: Iterable[Recording],
    settings: PipelineSettings,
    work_dir: str | Path,
    *,
    engine: Engine = "datasets",
    num_workers: int = 2,
) -> PipelineResult:
    """Cut recordings into episodes; resume an earlier run. Call it under `if __name__ == "__main__":`."""
    require_engine(engine, num_workers)
    require_packages(settings)
    jobs, skipped = _start_jobs(recordings, Path(work_dir).resolve())
    jobs = run_stages(jobs, settings, engine, num_workers)
    jobs.sort(key=lambda job: (job.recording.recording_id, job.recording.source))
    stats: dict[str, dict[str, float]] = {}
    episodes = []
    for job in jobs:
        skipped += _collect_skipped(job)
        _count(job, stats)
        if "asr" in job.artifacts and not job.is_finished:
            episodes += _make_episodes(job, settings.enhancement.name)
    return PipelineResult(episodes, skipped, stats)


def _start_jobs(recordings: Iterable[Recording], work_dir: Path) -> tuple[list[Job], list[Skipped]]:
    jobs, skipped = [], []
    seen: Counter[tuple[str, str]] = Counter()
    for recording in recordings:
        name = (recording.source, recording.recording_id)
        seen[name] += 1
        if seen[name] > 1:
            reason = f"number {seen[name]} of this recording_id ({recording.path}); only the first is processed."
            skipped.append(Skipped(format_job(recording), "duplicate_id", reason))
        else:
            jobs.append(Job.start(recording, work_dir))
    return jobs, skipped


def _collect_skipped(job: Job) -> list[Skipped]:
    skipped = []
    for stage in job.artifacts:
        artifact = job.read_artifact(stage)
        skipped += [Skipped(**skip) for skip in artifact["drops"]]
        if artifact["recording_drop"]:
            skipped.append(Skipped(format_job(job.recording), **artifact["recording_drop"]))
    if job.failure:
        skipped.append(Skipped(format_job(job.recording), **job.failure))
    return skipped


def _count(job: Job, stats: dict[str, dict[str, float]]) -> None:
    for stage in job.artifacts:
        artifact = job.read_artifact(stage)
        entry = stats.setdefault(stage, {"recordings": 0, "audio_s": 0.0, "wall_s": 0.0, "speed": 0.0})
        entry["recordings"] += 1
        entry["audio_s"] += artifact["audio_s"]
        entry["wall_s"] += artifact["wall_s"]
        entry["speed"] = round(entry["audio_s"] / max(entry["wall_s"], 1e-3), 2)


def _make_episodes(job: Job, enhancement: str) -> list[Episode]:
    recording = job.recording
    ref = recording.ref if enhancement == "none" else mark_enhanced(recording.ref, enhancement)
    audio = str(job.wav)
    return [
        Episode(
            name=f"{recording.recording_id}/{round(turns[0]['start_s'] * 1000)}",
            source=recording.source,
            subset=recording.subset,
            group=recording.recording_id,
            turns=tuple(_make_turn(index, turn, audio, ref) for index, turn in enumerate(turns)),
            primary=UNKNOWN,
            secondary=UNKNOWN,
            language=recording.language,
            license=recording.license,
            # A list after its way through an engine's rows.
            native_coding=tuple(recording.native_coding),
        )
        for turns in job.read_result("asr")["episodes"]
    ]


def _make_turn(index: int, turn: dict[str, Any], audio: str, ref: str) -> Turn:
    return Turn(ROLES[index % 2], (Part(turn["text"], audio, turn["start_s"], turn["end_s"], ref),))
