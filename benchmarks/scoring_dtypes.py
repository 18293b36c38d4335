"""Scoring with a bfloat16 backbone on a CPU: speed and rewards against float32, in one process.

    python -m benchmarks.scoring_bfloat16
    python -m benchmarks.scoring_bfloat16 --models nano --dialogues 4 --rounds 1    # a quick look

On the dialogues of `scoring_speed.py`: `Scorer` in float32 and in bfloat16 (pooling and head stay in float32), and
plain `transformers` in both, with clips padded to the 300 s of released checkpoints. Reference is the speed of a large
matrix product of each dtype in the same run; the utilisation is the share of it that the scorer reaches.
"""

from __future__ import annotations

import copy
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import racing
from benchmarks.scoring_speed import MODELS, _fresh, _workload, load_model
from sdiareward.common.arguments import parse_arguments
from sdiareward.scoring.tolerances import SAME_REWARD, scaled


RESULT = racing.RESULTS / "scoring_bfloat16.json"
# A larger change of a reward near 3 would be an error, not rounding.
_TOLERANCE = scaled(SAME_REWARD["bfloat16"], [3.0])
_MATRIX_SIZE = 2048
_DTYPES = ("float32", "bfloat16")


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


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.scoring_bfloat16", description=__doc__)
    models = {name: measure(name, args.dialogues, args.rounds, args.seed) for name in args.models}
    settings = {name: getattr(args, name) for name in ("dialogues", "rounds", "seed")}
    racing.write_result(args.output, settings=settings, cpu=racing.describe_cpu(), models=models)
    print(json.dumps(models, indent=2))


def measure(name: str, num_dialogues: int, rounds: int, seed: int) -> dict[str, Any]:
    """Measure one model in both dtypes.

    Args:
        name (`str`): One of `scoring_speed.MODELS`.
        num_dialogues (`int`): Dialogues that all contestants score.
        rounds (`int`): Number of rounds.
        seed (`int`): Of the dialogues and of random weights.

    Raises:
        ValueError: A reward differs by more than bfloat16 explains.
    """
    from benchmarks.opponents import PlainTransformers
    from benchmarks.scoring_workload import duration_s
    from benchmarks.speed_models import RELEASED_CHUNK_LENGTH_S
    from sdiareward.scoring.scorer import Scorer

    with tempfile.TemporaryDirectory() as folder:
        model, processor = load_model(name, seed)
        models = {"float32": model, "bfloat16": in_bfloat16(model)}
        dialogues = _workload(Path(folder), num_dialogues, seed, processor)
        entrants = {f"ours_{dtype}": _fresh(Scorer, models[dtype], processor) for dtype in _DTYPES}
        for dtype in _DTYPES:
            plain = PlainTransformers(models[dtype], processor, chunk_length_s=RELEASED_CHUNK_LENGTH_S)
            entrants[f"plain_{dtype}"] = plain.score
        seconds, differences = racing.race(entrants, dialogues, rounds, tolerance=_TOLERANCE)
        peak = {dtype: matmul_flops_per_s(dtype) for dtype in _DTYPES}
        flops = count_flops(model, processor, dialogues)
        audio_s = duration_s(dialogues)
    return {
        "dialogues": num_dialogues,
        "audio_s": round(audio_s, 1),
        "seconds": seconds,
        "real_time_factor": {each: median(times) / audio_s for each, times in seconds.items()},
        "speedup_over_plain": {
            dtype: {other: racing.speedup(seconds[f"plain_{other}"], seconds[f"ours_{dtype}"]) for other in _DTYPES}
            for dtype in _DTYPES
        },
        "largest_difference": differences,
        "matmul_gflops": {dtype: value / 1e9 for dtype, value in peak.items()},
        "utilisation": {dtype: flops / median(seconds[f"ours_{dtype}"]) / peak[dtype] for dtype in _DTYPES},
    }


def in_bfloat16(model: Any) -> Any:
    """Return a copy with its backbone in bfloat16, as `from_pretrained(dtype="bfloat16")` loads it."""
    import torch

    half = copy.deepcopy(model)
    half.model.to(torch.bfloat16)
    return half


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
