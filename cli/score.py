"""`sdiareward score`: score dialogues given as files, or a data set of pairs or dialogues."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts.types import PositiveInt

from sdiareward.calls.reading import CallSettings, find_calls
from sdiareward.calls.recordings import CALL_SUFFIXES, CallFiles, Form, UserChannel, has_one_clock, pair_files
from sdiareward.calls.turns import CallRules
from sdiareward.common.commands import YAML_ONLY
from sdiareward.scoring.model_spec import DATASET, MODEL, DatasetArguments, ModelArguments

from .calls import describe_call, score_call


if TYPE_CHECKING:
    from sdiareward.scoring.dataset import Summary


def score(
    dialogue: Path | None = None,
    other: Path | None = None,
    /,
    *,
    criterion: str | None = None,
    form: Form | None = None,
    user_channel: UserChannel | None = None,
    segments: Path | None = None,
    user: str | None = None,
    assistant: str | None = None,
    window: Annotated[int, YAML_ONLY] = 6,
    turns_dir: Path | None = None,
    json: bool = False,
    data: DatasetArguments = DATASET,
    user_turns: Path | None = None,
    output_dir: Path | None = None,
    max_samples: PositiveInt | None = None,
    seed: Annotated[int, YAML_ONLY] = 0,
    strict: bool = False,
    engine: Literal["local", "ray"] | None = None,
    num_actors: PositiveInt | None = None,
    gpus_per_actor: Annotated[float | None, YAML_ONLY] = None,
    model: ModelArguments = MODEL,
) -> int:
    """Score one dialogue, two and their margin, or a data set.

    Give one or two dialogues, the recordings of a user's turn and of the answer, or --dataset. To use N devices, start
    it with `accelerate launch --num_processes N -m sdiareward.cli score ...`.

    Keys of --config without a flag: gpus_per_actor, seed, window.

    Args:
        dialogue: One dialogue (a JSON file of turns, or a folder of recordings), the recording of a call, a folder of
            dialogues or calls, or the recording of the user's turn.
        other: A second dialogue, the recording of the answer, or the other side of the call.
        criterion: Criterion to score under; by default the column criterion of a data set, else joint.
        form: Whether recordings are turns or calls; by default decided from their names, lengths and channels.
        user_channel: The user's channel of a stereo call; left is assumed.
        segments: Segments of a call (RTTM, JSON, SRT, VTT); by default a file beside it, else found in the audio.
        user: The user's name in the segments of a call.
        assistant: The assistant's name in the segments of a call.
        window: Turns of a call that are scored together: an even number from 2 to 16.
        turns_dir: Folder for the turns of a call, as dialogues.
        json: Print one JSON object instead of lines.
        user_turns: Folder of the user's turns; the scored folder then has the assistant's turns.
        output_dir: Folder for scores.parquet, skipped.jsonl and summary.json; the same command resumes a killed run.
        max_samples: Number of rows to score, drawn evenly from subsets, recordings and synthesizers; all by default.
        seed: Seed of the draw of max_samples.
        strict: Exit with 1 if a row was skipped.
        engine: Where to run; local by default.
        num_actors: With ray: copies of the model; by default one per GPU, or one on the CPUs.
        gpus_per_actor: With ray: GPUs of each copy; 1 by default if there are any.
    """
    from sdiareward.pairs.dialogue_folders import holds_dialogues

    given = [path for path in (dialogue, other) if path is not None]
    calls = CallSettings(form, user_channel, user, assistant, CallRules(window=window))
    call, of_call = _find_call(given, calls), {"segments": segments, "turns_dir": turns_dir}
    if call is None and any(of_call.values()):
        raise ValueError(
            "--segments and --turns_dir are for one call; give its recording, or the folder of both sides."
        )
    folders = [path for path in given if call is None and (user_turns or holds_dialogues(path, calls))]
    if len(folders) == 2:
        raise ValueError(f"{dialogue} and {other} are folders of dialogues; compare them with `sdiareward compare`.")
    if folders == given and given and data.dataset is None:
        data, given = replace(data, dataset=str(dialogue)), []
    if bool(given) == (data.dataset is not None):
        raise ValueError("give either a dialogue's file or --dataset; see `sdiareward score --help`.")
    if call is None and given and output_dir is not None and given[0].is_dir():
        raise ValueError(f"{dialogue}: not a folder of dialogues, which --output_dir needs; omit --output_dir.")
    of_ray: dict[str, Any] = {"num_actors": num_actors, "gpus_per_actor": gpus_per_actor}
    of_data = {
        "output_dir": output_dir if call is None else None,
        "max_samples": max_samples,
        "seed": seed,
        "strict": strict,
        "engine": engine,
        **of_ray,
    }
    foreign = vars(data) | of_data if given else of_ray if engine != "ray" else {}
    if unused := [f"--{name}" for name, value in foreign.items() if value]:
        raise ValueError(f"{', '.join(unused)} needs {'--dataset' if given else '--engine ray'}.")
    if call is not None:
        report = score_call(call, calls, criterion, model, output_dir=output_dir, **of_call)
        print(dumps(report, allow_nan=False) if json else describe_call(report))
        return 0
    if given:
        return _score_files(given, criterion, calls, model, is_json=json)
    if json:
        raise ValueError("--json is for single dialogues; for a data set, --output_dir writes summary.json.")
    if output_dir is None and (engine == "ray" or int(os.environ.get("WORLD_SIZE", "1")) > 1):
        raise ValueError("several processes need --output_dir, a folder for the scores.")
    if data.split is not None and Path(str(data.dataset)).is_file():
        raise ValueError(f"{data.dataset}: is one file, which has no splits; omit --split {data.split}.")
    from sdiareward.scoring.dataset import ScoringJob, score_dataset, score_on_ray

    job = ScoringJob(
        model.make_spec(),
        str(data.dataset),
        data.split,
        data.dataset_config,
        limit=max_samples,
        seed=seed,
        criterion=criterion,
        audio_root=data.audio_root,
        calls=calls,
        user_turns=None if user_turns is None else str(user_turns),
    )
    with TemporaryDirectory() if output_dir is None else nullcontext(output_dir) as place:
        folder = Path(place)
        summary = score_on_ray(job, folder, **of_ray) if engine == "ray" else score_dataset(job, folder)
    if summary is None:  # Of several processes the main one prints.
        return 0
    print(_describe_scores(summary, job.model.load_processor().max_turn_s if summary.num_cut else None, output_dir))
    return int(strict and summary.num_skipped > 0)


def _find_call(given: Sequence[Path], calls: CallSettings) -> CallFiles | None:
    """Return the call of one recording or folder, or of the two recordings of its sides."""
    if len(given) == 2 and calls.form != "turns" and all(path.suffix.lower() in CALL_SUFFIXES for path in given):
        pairs = {name: pair for name, pair in pair_files(given).items() if calls.form or has_one_clock(pair)}
        return next((CallFiles(name.replace("*", ""), pair) for name, pair in pairs.items()), None)
    found = find_calls(given[0], calls) if len(given) == 1 else []
    return found[0] if len(found) == 1 else None


def _score_files(
    paths: Sequence[Path],
    criterion: str | None,
    calls: CallSettings,
    model: ModelArguments,
    *,
    is_json: bool,
) -> int:
    from sdiareward.audio_sdiareward import Heard, describe_unheard
    from sdiareward.pairs.labels import name_criterion
    from sdiareward.pairs.messages import list_recordings, read_dialogue

    spec = model.make_spec()
    if len(paths) == 2 and all(path.suffix.lower() in CALL_SUFFIXES for path in paths):
        dialogues = [read_dialogue((paths[0], paths[1]), calls.form)]
        told = "are read as the user's turn and the answer; use --form call for the two sides of a call"
        print(f"sdiareward: notice: {paths[0]} and {paths[1]} {told}", file=sys.stderr)
        paths = [Path(f"{paths[0]} {paths[1]}")]
    else:
        dialogues = [read_dialogue(path, calls.form) for path in paths]
    for path in paths:
        if path.is_dir() and pair_files(list_recordings(path)):
            told = "its recordings are read as turns; use --form call for the two sides of a call"
            print(f"sdiareward: notice: {path}: {told}", file=sys.stderr)
    criterion = name_criterion(criterion)
    scorer = spec.load(criterion)
    report: dict[str, Any] = {"criterion": criterion, "dialogues": []}
    for path, dialogue in zip(paths, dialogues, strict=True):
        heard: dict[int, Heard] = {}
        try:
            [reward] = scorer.score([dialogue], criterion, heard=heard)
        except ValueError as error:
            raise ValueError(f"{path}, {error}") from error
        for notice in describe_unheard([("", heard[0])]):
            print(f"sdiareward: notice: {path}: {notice}", file=sys.stderr)
        report["dialogues"].append({"path": str(path), "reward": reward, **asdict(heard[0])})
    lines = [(each["path"], each["reward"]) for each in report["dialogues"]]
    if len(lines) == 2:
        report["margin"] = lines[0][1] - lines[1][1]
        lines.append(("margin", report["margin"]))
    width = max(len(name) for name, _ in lines)
    text = "\n".join(f"{name:<{width}}  {value:+.4f}" for name, value in lines)
    print(dumps(report, allow_nan=False) if is_json else text)
    return 0


def _describe_scores(summary: Summary, hears_s: float | None, output: Path | None) -> str:
    speed = f", real-time factor {summary.real_time_factor:.4f}" if summary.real_time_factor else ""
    lines = [
        f"{summary.num_scored} of {summary.num_rows} rows, {summary.audio_s / 3600:.2f} h of audio; "
        f"{summary.num_new} of them scored now in {summary.seconds:.1f} s{speed}",
        *_as_table(summary.rewards),
    ]
    if summary.num_right is not None:
        share = 100 * summary.num_right / summary.num_scored
        ties = f", {summary.num_ties} ties" if summary.num_ties else ""
        lines.append(f"chosen > rejected in {summary.num_right} of {summary.num_scored} rows ({share:.1f}%){ties}")
    if summary.num_cut:
        lines.append(
            f"{summary.num_cut} turns cut: this model hears their first {hears_s:g} s, "
            f"{summary.audio_s / 3600:.2f} of {summary.given_s / 3600:.2f} h"
        )
    if summary.num_silent:
        more = ", ..." * (summary.num_silent > len(summary.silent_turns))
        lines.append(f"{summary.num_silent} silent turns ({', '.join(summary.silent_turns)}{more})")
    if summary.num_skipped:
        lines.append(f"{summary.num_skipped} skipped:")
        lines += [f"  row {row}: {' '.join(why.split())}" for row, why in summary.reasons.items()]
        if summary.num_skipped > len(summary.reasons):
            place = f" in {output / 'skipped.jsonl'}" if output else ""
            lines.append(f"  and {summary.num_skipped - len(summary.reasons)} more{place}")
    return "\n".join([*lines, *([f"Table: {output / 'scores.parquet'}"] if output else [])])


def _as_table(rewards: Mapping[str, Mapping[str, float]]) -> list[str]:
    heads = [
        name.replace("q0", "q").replace("q", "") + "%" * name.startswith("q") for name in next(iter(rewards.values()))
    ]
    rows = [[name, *(f"{value:+.3f}" for value in found.values())] for name, found in rewards.items()]
    return ["".join([row[0].ljust(10), *(cell.rjust(9) for cell in row[1:])]) for row in [["", *heads], *rows]]
