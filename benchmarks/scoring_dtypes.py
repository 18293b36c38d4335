"""Scoring with a backbone in float32, in bfloat16 and with `dtype="fast"`: speed, memory and rewards, in one process.

    python -m benchmarks.scoring_dtypes
    python -m benchmarks.scoring_dtypes --models nano --dialogues 4 --rounds 1    # a quick look

On the dialogues of `scoring_speed.py`: `Scorer` in each dtype (pooling and head stay in float32), and plain
`transformers` in the first two, with clips padded to the 300 s of released checkpoints. Plain `transformers` cannot
run `small`, whose tokens hold four vectors of the encoder. Reference is the speed of a large matrix product in the
same run; the utilisation is the share of it that the scorer reaches. Peak memory is that of a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import racing
from benchmarks.scoring_speed import _workload, load_model
from sdiareward.common.arguments import parse_arguments
from sdiareward.scoring.precision import FAST
from sdiareward.scoring.tolerances import SAME_REWARD, scale_tolerance


RESULT = racing.RESULTS / "scoring_dtypes.json"
MODELS = ("nano", "small", "middle")
DTYPES = ("float32", "bfloat16", FAST)
# Matrix products of the last are those of bfloat16.
_PRODUCTS = {"float32": "float32", "bfloat16": "bfloat16", FAST: "bfloat16"}
# A larger change of a reward near 3 would be an error, not rounding.
_TOLERANCE = scale_tolerance(SAME_REWARD["bfloat16"], [3.0])
_MATRIX_SIZE = 2048


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    models: list[str] = field(
        default_factory=lambda: list(MODELS), metadata={"choices": MODELS, "help": "models to measure"}
    )
    dialogues: int = field(default=16, metadata={"help": "dialogues to score"})
    rounds: int = field(default=3, metadata={"help": "rounds of measurement"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})
    memory_of: str | None = field(default=None, metadata={"help": argparse.SUPPRESS})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.scoring_dtypes", description=__doc__)
    if args.memory_of:
        print(json.dumps(memory_here(args.models[0], args.memory_of, args.dialogues, args.seed)))
        return
    models = {}
    for name in args.models:
        models[name] = measure(name, args.dialogues, args.rounds, args.seed)
        models[name]["memory"] = measure_memory(name, args.dialogues, args.seed)
    settings = {name: getattr(args, name) for name in ("dialogues", "rounds", "seed")}
    racing.write_result(args.output, settings=settings, cpu=racing.describe_cpu(), models=models)
    print(json.dumps(models, indent=2))


def measure(name: str, num_dialogues: int, rounds: int, seed: int) -> dict[str, Any]:
    """Measure one model in every dtype.

    Args:
        name (`str`): One of `MODELS`.
        num_dialogues (`int`): Dialogues that all contestants score.
        rounds (`int`): Number of rounds.
        seed (`int`): Of the dialogues and of random weights.

    Raises:
        ValueError: A reward differs by more than bfloat16 explains.
    """
    from benchmarks.scoring_workload import duration_s

    with tempfile.TemporaryDirectory() as folder:
        model, processor = load_model(name, seed)
        dialogues = _workload(Path(folder), num_dialogues, seed, processor)
        seconds, differences = racing.race(_contestants(model, processor), dialogues, rounds, tolerance=_TOLERANCE)
        peak = {dtype: matmul_flops_per_s(dtype) for dtype in set(_PRODUCTS.values())}
        flops = count_flops(model, processor, dialogues)
        audio_s = duration_s(dialogues)
    return {
        "million_parameters": round(sum(weights.numel() for weights in model.parameters()) / 1e6, 1),
        "dialogues": num_dialogues,
        "audio_s": round(audio_s, 1),
        "seconds": seconds,
        "real_time_factor": {each: median(times) / audio_s for each, times in seconds.items()},
        "speedup_over_plain": _compare_with_plain(seconds),
        "largest_difference": differences,
        "matmul_gflops": {dtype: value / 1e9 for dtype, value in sorted(peak.items())},
        "utilisation": {dtype: flops / median(seconds[f"ours_{dtype}"]) / peak[_PRODUCTS[dtype]] for dtype in DTYPES},
    }


def _contestants(model: Any, processor: Any) -> dict[str, racing.Contestant]:
    """Return the contestants by name; the first is the scorer in float32."""
    from benchmarks.opponents import PlainTransformers
    from benchmarks.speed_models import RELEASED_CHUNK_LENGTH_S
    from sdiareward.scoring.scorer import Scorer

    models = {dtype: to_dtype(copy.deepcopy(model), dtype) for dtype in DTYPES}
    entrants: dict[str, racing.Contestant] = {
        # A new scorer in each round, so that nothing is cached.
        f"ours_{dtype}": lambda dialogues, dtype=dtype: Scorer(
            models[dtype], processor, mixed_precision=dtype == FAST
        ).score(dialogues)
        for dtype in DTYPES
    }
    if model.config.stack_factor == 1:
        for dtype in ("float32", "bfloat16"):
            plain = PlainTransformers(models[dtype], processor, chunk_length_s=RELEASED_CHUNK_LENGTH_S)
            entrants[f"plain_{dtype}"] = plain.score
    return entrants


def _compare_with_plain(seconds: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return by dtype of the scorer, and of plain `transformers` where they ran, how much faster the scorer is."""
    plain = {name.removeprefix("plain_"): times for name, times in seconds.items() if name.startswith("plain_")}
    return {
        dtype: {other: racing.speedup(times, seconds[f"ours_{dtype}"]) for other, times in plain.items()}
        for dtype in DTYPES
    }


def to_dtype(model: Any, dtype: str) -> Any:
    """Move the backbone to a dtype, as `from_pretrained` loads it; `"fast"` starts from float32. Return the model."""
    import torch

    if dtype != FAST:
        model.model.to(getattr(torch, dtype))
    return model


def measure_memory(name: str, num_dialogues: int, seed: int) -> dict[str, dict[str, int]]:
    """Return by dtype what `memory_here` finds, each in a process of its own."""
    arguments = ("--models", name, "--dialogues", num_dialogues, "--seed", seed)
    return {dtype: racing.run_module("scoring_dtypes", *arguments, "--memory-of", dtype) for dtype in DTYPES}


def memory_here(name: str, dtype: str, num_dialogues: int, seed: int) -> dict[str, int]:
    """Return the peak memory of this process with the model loaded, and after scoring all dialogues."""
    from sdiareward.scoring.scorer import Scorer

    with tempfile.TemporaryDirectory() as folder:
        model, processor = load_model(name, seed)
        dialogues = _workload(Path(folder), num_dialogues, seed, processor)
        scorer = Scorer(to_dtype(model, dtype), processor, mixed_precision=dtype == FAST)
        loaded = racing.max_rss_mib()
        scorer.score(dialogues)
    return {"loaded_mib": loaded, "peak_mib": racing.max_rss_mib()}


def matmul_flops_per_s(dtype: str) -> float:
    """Return the operations per second of a large matrix product, the best of several runs."""
    import torch

    one, other = (torch.randn(_MATRIX_SIZE, _MATRIX_SIZE).to(getattr(torch, dtype)) for _ in range(2))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        one @ other
        times.append(time.perf_counter() - start)
    return 2 * _MATRIX_SIZE**3 / min(times)


def count_flops(model: Any, processor: Any, dialogues: list[Any]) -> int:
    """Count the operations of the dialogues without the prompt, which is computed once per batch."""
    from benchmarks.flops import audio_flops, text_flops

    total = 0
    start_id = processor.tokenizer.convert_tokens_to_ids("<|im_start|>")
    for dialogue in dialogues:
        prepared = processor.prepare(dialogue)
        num_frames = [-(-clip.size // processor.feature_extractor.hop_length) for clip in prepared.clips]
        total += sum(audio_flops(model.config.audio_config, frames) for frames in num_frames)
        # The first message is the prompt.
        prompt_tokens = int((prepared.input_ids == start_id).nonzero()[0][1])
        own_tokens = len(prepared.input_ids) - prompt_tokens
        total += text_flops(model.config.text_config, own_tokens, num_before=prompt_tokens)
    return total


if __name__ == "__main__":
    main()
