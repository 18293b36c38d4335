"""Scoring on a CPU against plain `transformers`: same weights, same clips, same process, rewards compared.

    python -m benchmarks.scoring_speed
    python -m benchmarks.scoring_speed --models nano --dialogues 8 --ablation-dialogues 4 --rounds 1    # a quick look

Contestants, on dialogues of 4 to 8 turns of 2 to 8 s of real speech (`scoring_workload.py`):

- `plain`: `opponents.py`, one dialogue at a time, with clips padded as by the model's own preprocessor: to 30 s for
  nano, to 300 s for the middle size, which has Qwen2.5-Omni's.
- `plain_300_s` (nano only): the same with the 300 s of all released checkpoints.
- `plain_batch_8`: `plain` in batches of 8.
- `ours`: `Scorer` with its defaults; and, on fewer dialogues, with one option changed at a time.

A speed-up is the median over rounds of the quotient of the two times of a round. Rewards that differ from those of
`plain` end the benchmark. Peak memory is measured in a separate process that scores the first 16 dialogues, because it
depends on the batches and not on their number.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from benchmarks import racing
from benchmarks.racing import RESULTS, Contestant, write_result
from sdiareward.common.arguments import parse_arguments


if TYPE_CHECKING:
    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

MODELS = ("nano", "middle")
CHANGED: dict[str, dict[str, Any]] = {
    "ours": {},
    "pack=False": {"pack": False},
    "share_prefixes=False": {"share_prefixes": False},
    "share_clips=False": {"share_clips": False},
    "num_workers=2": {"num_workers": 2},
}
_BATCH_SIZE = 8
_CLIP_S = 4.0
_NUM_CLIPS = 32
_MEMORY_DIALOGUES = 16

Task = Callable[[], Any]


def main() -> None:
    """Run the benchmark from the command line."""
    args = _parse_arguments()
    if args.memory_of:
        print(json.dumps(memory_here(args.models[0], args.memory_of, args.dialogues, args.seed)))
        return
    settings = {name: getattr(args, name) for name in ("dialogues", "ablation_dialogues", "rounds", "seed")}
    args.output.mkdir(exist_ok=True)
    for name in args.models:
        models = {name: measure(name, args.dialogues, args.ablation_dialogues, args.rounds, args.seed)}
        path = args.output / f"scoring_speed_{name}.json"
        write_result(path, settings=settings, cpu=racing.describe_cpu(), models=models)
        print(json.dumps(models, indent=2))


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    models: list[str] = field(
        default_factory=lambda: list(MODELS), metadata={"choices": MODELS, "help": "models to measure"}
    )
    dialogues: int = field(default=64, metadata={"help": "dialogues to score"})
    ablation_dialogues: int = field(
        default=24, metadata={"help": "dialogues to score with each speed-up switched off"}
    )
    rounds: int = field(default=3, metadata={"help": "rounds of measurement"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULTS, metadata={"help": "folder of the results, a file a model"})
    memory_of: str | None = field(default=None, metadata={"help": argparse.SUPPRESS})


def _parse_arguments() -> Arguments:
    return parse_arguments((Arguments,), None, prog="python -m benchmarks.scoring_speed", description=__doc__)[0]


def measure(name: str, num_dialogues: int, num_ablation: int, rounds: int, seed: int) -> dict[str, Any]:
    """Measure one model.

    Args:
        name (`str`): One of `MODELS`.
        num_dialogues (`int`): Dialogues that all contestants score.
        num_ablation (`int`): Dialogues that are also scored with changed options.
        rounds (`int`): Number of rounds.
        seed (`int`): Of the dialogues and of random weights.

    Raises:
        ValueError: A contestant's rewards differ from those of the first one.
    """
    from benchmarks.scoring_workload import duration_s
    from sdiareward.scoring.scorer import Scorer

    with tempfile.TemporaryDirectory() as folder:
        model, processor = load_model(name, seed)
        dialogues = _workload(Path(folder), num_dialogues, seed, processor)
        entrants = contestants(model, processor)
        seconds, differences = racing.race(entrants, dialogues, rounds)
        ablation = _ablation(model, processor, dialogues[:num_ablation], rounds)
        preprocessing = measure_preprocessing(processor, Path(folder) / "clips", rounds)
        waste = padding_waste(processor, Scorer(model, processor).batch_tokens)
        audio_s = duration_s(dialogues)
    arguments = ("--models", name, "--dialogues", min(num_dialogues, _MEMORY_DIALOGUES), "--seed", seed)
    memory = {
        each: racing.run_module("scoring_speed", *arguments, "--memory-of", each) for each in tqdm(entrants, "memory")
    }
    return {
        "million_parameters": round(sum(weights.numel() for weights in model.parameters()) / 1e6, 1),
        "padded_to_s": processor.feature_extractor.chunk_length,
        "max_turn_s": processor.max_turn_s,
        "dialogues": num_dialogues,
        "clips": sum(len(dialogue) for dialogue in dialogues),
        "audio_s": round(audio_s, 1),
        "seconds": seconds,
        "real_time_factor": {each: median(times) / audio_s for each, times in seconds.items()},
        "speedup": {each: racing.speedup(seconds[each], seconds["ours"]) for each in seconds if each != "ours"},
        "largest_difference": differences,
        "changed": ablation,
        "memory": memory,
        "preprocessing": preprocessing,
        "padding_waste": waste,
    }


def load_model(name: str, seed: int) -> tuple[SDiaRewardModel, SDiaRewardProcessor]:
    """Return a model by name, nano, small or a size of `speed_models`, and its processor; in float32."""
    from benchmarks import speed_models

    return speed_models.load(name) if name in speed_models.TRAINED else speed_models.build(name, seed=seed)


def contestants(model: SDiaRewardModel, processor: SDiaRewardProcessor) -> dict[str, Contestant]:
    """Return the contestants by name; all must give the rewards of `plain`, the first."""
    from benchmarks.opponents import PlainTransformers
    from benchmarks.speed_models import RELEASED_CHUNK_LENGTH_S
    from sdiareward.scoring.scorer import Scorer

    own_s = processor.feature_extractor.chunk_length
    entrants: dict[str, Contestant] = {"plain": PlainTransformers(model, processor, chunk_length_s=own_s).score}
    if own_s != RELEASED_CHUNK_LENGTH_S:
        padded = PlainTransformers(model, processor, chunk_length_s=RELEASED_CHUNK_LENGTH_S)
        entrants[f"plain_{RELEASED_CHUNK_LENGTH_S}_s"] = padded.score
    batched = PlainTransformers(model, processor, chunk_length_s=own_s, batch_size=_BATCH_SIZE)
    return {**entrants, f"plain_batch_{_BATCH_SIZE}": batched.score, "ours": _fresh(Scorer, model, processor)}


def _fresh(scorer: Callable[..., Any], *args: Any, **options: Any) -> Contestant:
    """Return a contestant with a new scorer in each round, so that nothing is cached."""
    return lambda dialogues: scorer(*args, **options).score(dialogues)


def _ablation(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, dialogues: Sequence[Any], rounds: int
) -> dict[str, Any]:
    """Time the scorer with one option changed at a time."""
    from sdiareward.scoring.scorer import Scorer

    entrants = {name: _fresh(Scorer, model, processor, **options) for name, options in CHANGED.items()}
    seconds, differences = racing.race(entrants, dialogues, rounds)
    return {
        "dialogues": len(dialogues),
        "seconds": seconds,
        "slowdown": {name: racing.speedup(times, seconds["ours"]) for name, times in seconds.items()},
        "largest_difference": differences,
    }


def measure_preprocessing(processor: SDiaRewardProcessor, folder: Path, rounds: int) -> dict[str, Any]:
    """Time the preprocessing of clips of 4 s, in this thread.

    Args:
        processor (`SDiaRewardProcessor`): The package's processor; the plain one is built from it.
        folder (`Path`): Folder for the clips.
        rounds (`int`): Number of rounds.

    Returns:
        `dict`: For mel features (`mel`) and for all steps from files to the model's inputs (`inputs`), the seconds
        per clip, plain and ours, and the speed-up. Each dialogue has 4 clips.
    """
    from benchmarks.opponents import stock_processor
    from benchmarks.scoring_workload import write_dialogues

    dialogues = write_dialogues(folder, _NUM_CLIPS // 4, turn_counts=(4,), turn_range_s=(_CLIP_S, _CLIP_S))
    plain = stock_processor(processor, processor.feature_extractor.chunk_length)
    clips = [processor.prepare(dialogue).clips for dialogue in dialogues]
    tasks = {"mel": _mel_tasks(plain, processor, clips), "inputs": _input_tasks(plain, processor, dialogues)}
    measured = {name: _time_per_clip(plain_way, our_way, rounds) for name, (plain_way, our_way) in tasks.items()}
    return {"clip_s": _CLIP_S, "num_clips": _NUM_CLIPS, **measured}


def _mel_tasks(plain: Any, processor: SDiaRewardProcessor, clips: list[list[Any]]) -> tuple[Task, Task]:
    from sdiareward.scoring.batching import DialoguePreparer

    rate = processor.sampling_rate
    options = {"padding": "max_length", "sampling_rate": rate, "return_attention_mask": True, "return_tensors": "pt"}
    by_name = {str((row, index)).encode(): clip for row, each in enumerate(clips) for index, clip in enumerate(each)}
    return (
        lambda: [plain.feature_extractor(each, **options) for each in clips],
        lambda: DialoguePreparer(processor).compute_mels(by_name),
    )


def _input_tasks(plain: Any, processor: SDiaRewardProcessor, dialogues: list[Any]) -> tuple[Task, Task]:
    from benchmarks.opponents import prepare
    from sdiareward.scoring.batching import DialoguePreparer

    criteria = ["joint"] * len(dialogues)
    return (
        lambda: [prepare(plain, [processor.with_prompt(dialogue)]) for dialogue in dialogues],
        lambda: DialoguePreparer(processor)(range(len(dialogues)), dialogues, criteria),
    )


def _time_per_clip(plain_way: Task, our_way: Task, rounds: int) -> dict[str, float]:
    """Return medians over rounds; the first round is a warm-up."""
    times: dict[str, list[float]] = {"plain_s": [], "ours_s": []}
    for _ in range(rounds + 1):
        for seconds, task in zip(times.values(), (plain_way, our_way), strict=True):
            start = time.perf_counter()
            task()
            seconds.append((time.perf_counter() - start) / _NUM_CLIPS)
    plain_s, ours_s = (seconds[1:] for seconds in times.values())
    return {"plain_s": median(plain_s), "ours_s": median(ours_s), "speedup": racing.speedup(plain_s, ours_s)}


def padding_waste(processor: SDiaRewardProcessor, batch_tokens: int) -> dict[str, Any]:
    """Measure the share of padding in the padded batches of the bundled sample (`pack=False`).

    Args:
        processor (`SDiaRewardProcessor`): Counts the tokens.
        batch_tokens (`int`): Budget of a batch.
    """
    from benchmarks.scoring_workload import sample_dialogues
    from sdiareward.scoring.batching import plan_batches

    lengths = [processor.num_tokens(dialogue) for dialogue in sample_dialogues()]
    batches = list(plan_batches(lengths, [[index] for index in range(len(lengths))], batch_tokens, padded=True))
    computed = sum(len(batch) * max(lengths[index] for index in batch) for batch in batches)
    return {
        "dialogues": len(lengths),
        "batches": len(batches),
        "batch_tokens": batch_tokens,
        "share": 1 - sum(lengths) / computed,
    }


def memory_here(name: str, contestant: str, num_dialogues: int, seed: int) -> dict[str, int]:
    """Return the peak memory of this process with the model loaded, and after scoring all dialogues."""
    with tempfile.TemporaryDirectory() as folder:
        model, processor = load_model(name, seed)
        dialogues = _workload(Path(folder), num_dialogues, seed, processor)
        score = contestants(model, processor)[contestant]
        loaded = racing.max_rss_mib()
        score(dialogues)
    return {"loaded_mib": loaded, "peak_mib": racing.max_rss_mib()}


def _workload(folder: Path, num_dialogues: int, seed: int, processor: SDiaRewardProcessor) -> list[Any]:
    from benchmarks.scoring_workload import write_dialogues

    return write_dialogues(folder, num_dialogues, seed=seed, max_turn_s=processor.max_turn_s)


if __name__ == "__main__":
    main()
