"""Enhance the clips of dialogues that have their own metadata (section B.1: "consistent speech enhancement").

The clips go through the pipeline's first two stages and are cached like long recordings; diarization and recognition
are skipped, and the source's words are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, Recording

from .engines import Engine, run_stages
from .jobs import Job
from .settings import PipelineSettings, require_packages
from .stages import DecodeStage, EnhancementStage


def enhance_episodes(
    episodes: Sequence[Episode], settings: PipelineSettings, work_dir: Path, engine: Engine, num_workers: int
) -> tuple[list[Episode], list[Skipped]]:
    """Replace the recordings of episodes with enhanced copies, and mark their references; resume an earlier run."""
    if settings.enhancement.name == "none":
        raise ValueError("a source has `enhance`, but the pipeline's enhancement is 'none'; choose one or remove it.")
    require_packages(settings, ["enhancement"])
    jobs = [Job.start(recording, work_dir.resolve()) for recording in _list_clips(episodes)]
    by_path = {job.recording.path: job for job in run_stages(jobs, settings, engine, num_workers, _STAGES)}
    done, skipped = [], []
    for episode in episodes:
        reasons = [_find_reason(by_path[str(part.audio)]) for turn in episode.turns for part in turn.parts]
        if reason := next(filter(None, reasons), None):
            skipped.append(Skipped(f"{episode.source} {episode.name}", reason["kind"], reason["reason"]))
        else:
            done.append(_with_copies(episode, by_path, settings.enhancement.name))
    return done, skipped


_STAGES = (DecodeStage, EnhancementStage)


def _list_clips(episodes: Sequence[Episode]) -> list[Recording]:
    clips: dict[str, Recording] = {}
    for episode in episodes:
        for part in (part for turn in episode.turns for part in turn.parts):
            if part.audio is None:
                raise ValueError(f"{episode.source} {episode.name}: only recordings in files can be enhanced.")
            name = (part.ref or part.audio).removeprefix(f"{episode.source}:")
            common = (episode.source, episode.subset, episode.language, episode.license)
            clips.setdefault(part.audio, Recording(name, part.audio, part.ref or "", *common))
    return list(clips.values())


def _find_reason(job: Job) -> dict[str, str] | None:
    drops = [job.read_artifact(stage)["recording_drop"] for stage in job.artifacts]
    return job.failure or next(filter(None, drops), None)


def _with_copies(episode: Episode, by_path: Mapping[str, Job], enhancement: str) -> Episode:
    def copy(part: Part) -> Part:
        ref = None if part.ref is None else mark_enhanced(part.ref, enhancement)
        return replace(part, audio=str(by_path[str(part.audio)].wav), ref=ref)

    turns = tuple(replace(turn, parts=tuple(copy(part) for part in turn.parts)) for turn in episode.turns)
    return replace(episode, turns=turns)


def mark_enhanced(ref: str, enhancement: str) -> str:
    return f"{ref}?enhancement={enhancement}"
