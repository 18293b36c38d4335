"""Scoring on one CUDA GPU at the real sizes: throughput, utilisation, memory, and the effect of each optimisation.

    python -m benchmarks.gpu                                    # 7B and 3B in bfloat16, at most nine minutes
    python -m benchmarks.gpu --compile --float8                 # also compiled, and in float8 by torchao
    python -m benchmarks.gpu --sizes 7b --dialogues 3452        # as many dialogues as ESDR-Bench has
    python -m benchmarks.gpu --device cpu --dtype float32 --sizes tiny --dialogues 6 --mean-s 4

It prints one table and writes `benchmarks/results/gpu.json`. Weights are random and drawn on the device, dialogues are
synthetic (`synthetic_workload.py`), the tokenizer is nano's: nothing is downloaded or installed. On a machine that has
only `torch` and `transformers`, bring the other requirements of `pyproject.toml` and those that are too old there
(`soundfile`, `cffi`, `pycparser`, `soxr`, `datasets`, `dill`, `multiprocess`; `trl` and `peft` for training; perhaps
`transformers`, `tokenizers`, `huggingface_hub`), fetched elsewhere with `pip download --no-deps` for its version of
Python:

    pip install --no-index --no-deps --target SITE WHEELS/*.whl
    mkdir LINK && ln -s "$PWD" LINK/sdiareward
    PYTHONPATH=SITE:LINK:. python -m benchmarks.gpu

Notable choices:

- Utilisation is the operations of both towers (`flops.py`; the shared system prompt does not count) over the total
  time, with reading and mel features, relative to a large matrix product of the same run.
- A contestant and its opponents run in turn; every number is a median of rounds.
- Peak memory is that of tensors, as PyTorch counts them, including weights.
- Steps that would start after `--limit-s` are skipped and named. Results are written after each size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_steps import Bench, Clock, Settings
from benchmarks.racing import RESULTS, write_result
from benchmarks.speed_models import SIZES, build
from benchmarks.synthetic_workload import MEAN_DIALOGUE_S
from sdiareward.common.arguments import parse_arguments


RESULT = RESULTS / "gpu.json"
_MATMUL_SIZE = {"cuda": 8192, "cpu": 512}
_MATMUL_REPEATS = 20
_PATIENCE_S = 480.0


def main() -> None:
    """Run the benchmark from the command line."""
    args = _parse_arguments()
    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    device = torch.device(args.device)
    dtype = getattr(torch, args.dtype)
    clock = Clock(device, args.limit_s)
    record: dict[str, Any] = {"device": describe_device(device), "dtype": args.dtype, "settings": settings}
    record["matmul_flops_per_s"] = matmul_rate(clock, device, dtype)
    record["sizes"] = {}
    for size in args.sizes:
        record["sizes"][size] = measure(size, device, dtype, clock, settings, record["matmul_flops_per_s"])
        write_result(args.output, **record)
    print(table(record))


@dataclass(kw_only=True)
class GPUArguments:
    """The arguments that every benchmark of a GPU has."""

    sizes: list[str] = field(
        default_factory=lambda: ["7b", "3b"], metadata={"choices": list(SIZES), "help": "sizes of the model"}
    )
    device: str = field(default="cuda", metadata={"help": "device"})
    dtype: str = field(
        default="bfloat16", metadata={"choices": ("bfloat16", "float32"), "help": "dtype of the backbone"}
    )
    mean_s: float = field(default=MEAN_DIALOGUE_S, metadata={"help": "seconds of audio in a dialogue"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})


@dataclass(kw_only=True)
class Arguments(GPUArguments):
    """The arguments of the command line."""

    dialogues: int = field(default=256, metadata={"help": "dialogues scored with everything switched on"})
    ablation_dialogues: int = field(default=64, metadata={"help": "dialogues scored with each option changed"})
    check_dialogues: int = field(default=4, metadata={"help": "dialogues that are scored the plain way"})
    rounds: int = field(default=3, metadata={"help": "rounds of every measurement"})
    batch_tokens: int | None = field(
        default=None, metadata={"help": "tokens in one forward pass; by default the scorer's"}
    )
    num_workers: int = field(default=2, metadata={"help": "threads that prefetch"})
    compile: bool = field(default=False, metadata={"help": "also measure with compile=True"})
    float8: bool = field(default=False, metadata={"help": "also measure in float8, which needs torchao and Hopper"})
    limit_s: float = field(default=_PATIENCE_S, metadata={"help": "start no step after this number of seconds"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def _parse_arguments() -> Arguments:
    return parse_arguments((Arguments,), None, prog="python -m benchmarks.gpu", description=__doc__)[0]


def describe_device(device: torch.device) -> dict[str, Any]:
    """Return the device's name and memory, and PyTorch's CUDA version."""
    if device.type != "cuda":
        return {"name": device.type}
    found = torch.cuda.get_device_properties(device)
    return {"name": found.name, "memory_gib": round(found.total_memory / 2**30, 1), "cuda": torch.version.cuda}


def matmul_rate(clock: Clock, device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations a second of a large square matrix product of random numbers."""
    size = _MATMUL_SIZE.get(device.type, 1024)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def multiply() -> None:
        for _ in range(_MATMUL_REPEATS):
            torch.mm(left, right)

    clock.seconds(multiply)
    return _MATMUL_REPEATS * 2 * size**3 / clock.seconds(multiply)[0]


def measure(
    size: str, device: torch.device, dtype: torch.dtype, clock: Clock, settings: Settings, rate: float
) -> dict[str, Any]:
    """Measure one size until the time limit.

    Args:
        size (`str`): One of `speed_models.SIZES`.
        device (`torch.device`): Where the model is.
        dtype (`torch.dtype`): Of the backbone.
        clock (`Clock`): Measures time and knows the limit.
        settings (`Settings`): The amount of work.
        rate (`float`): Operations per second at full utilisation.
    """
    if clock.is_over():
        return {"left_out": ["everything"]}
    build_s, (model, processor) = clock.seconds(
        lambda: build(size, seed=settings.seed, device=str(device), dtype=dtype)
    )
    bench = Bench(model, processor, clock, settings)
    # The last two change the model.
    steps: dict[str, Callable[[], Any]] = {
        "ours": lambda: bench.throughput(rate),
        "preparation": bench.preparation,
        "plain": bench.plain,
        "parts": bench.parts,
        "changed": bench.changed,
        **({"compiled": bench.compiled} if settings.compile else {}),
        **({"float8": bench.float8} if settings.float8 else {}),
    }
    found: dict[str, Any] = {
        "million_parameters": round(sum(weights.numel() for weights in model.parameters()) / 1e6, 1),
        "weights_bytes": sum(weights.nbytes for weights in (*model.parameters(), *model.buffers())),
        "build_s": build_s,
        "left_out": [],
    }
    for name, step in steps.items():
        if clock.is_over():
            found["left_out"].append(name)
        else:
            found[name] = step()
    return found


def table(record: Mapping[str, Any]) -> str:
    """Render all results as text: one line per number, one column per size."""
    sizes = record["sizes"]
    lines = [_line("", list(sizes))]
    if "matmul_flops_per_s" in record:
        lines.append(_line("matmul, TFLOP/s", [f"{record['matmul_flops_per_s'] / 1e12:.4g}"]))
    for name in sorted({path for found in sizes.values() for path, _ in _leaves(found)}):
        values = [dict(_leaves(found)).get(name) for found in sizes.values()]
        lines.append(_line(name, ["" if value is None else f"{value:.4g}" for value in values]))
    left_out = [f"{size}: {', '.join(found['left_out'])}" for size, found in sizes.items() if found.get("left_out")]
    return "\n".join([*lines, *(f"left out for lack of time: {text}" for text in left_out)])


def _line(name: str, values: list[str]) -> str:
    return f"{name:<52}" + "".join(f"{value:>14}" for value in values)


def _leaves(found: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """Return every number of a result with its path of names."""
    leaves: list[tuple[str, float]] = []
    for name, value in found.items():
        if isinstance(value, Mapping):
            leaves += _leaves(value, f"{prefix}{name} / ")
        elif isinstance(value, (int, float)):
            leaves.append((f"{prefix}{name}", value))
    return leaves


if __name__ == "__main__":
    main()
