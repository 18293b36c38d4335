"""Speed of scoring beside the released way: same weights, same clips, same process, rewards compared.

    python -m benchmarks.scoring_speed
    python -m benchmarks.scoring_speed --models nano --parts released --dialogues 4 --rounds 1    # a quick look

Parts; `gpu.py` measures most of them at the real sizes:

- `scoring`: `Scorer` with its defaults. `options`: one option changed at a time.
- `released`: `released.py`, with clips padded to 300 s and to the model's own length, in batches of 8, and on a GPU
  with inputs that are ready. `small` has no released way: its tokens hold four vectors of the encoder.
- `dtypes`: both with a backbone in bfloat16, and `Scorer` with `dtype="fast"`.
- `best of 8`: candidates for the turn that follows 3, 5 and 7 turns, as a group and each by itself.
- `profile`: where the time goes, by kind of operation. The profiler costs time, which counts as Python's.

Utilisation is the operations of both towers (`workloads.count_flops`) over the time, relative to a large matrix
product of the same run. Peak memory is that of the process, or on a GPU of tensors, while a way runs.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import racing, workloads
from benchmarks.racing import Contestant, Record
from benchmarks.released import ReleasedWay
from sdiareward.common.commands import parse_options
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.scoring.scorer import FAST, Scorer


OURS, RELEASED, ALONE = "`Scorer`", "released", "each by itself"
# The baseline of each part.
REFERENCES = {"scoring": OURS, "released": RELEASED, "options": OURS, "dtypes": RELEASED, "best of 8": ALONE}
_OPTIONS = (
    *(("pack", False), ("share_prefixes", False), ("share_clips", False)),
    # One of these is what the device has by default.
    *(("num_workers", 0), ("num_workers", 2)),
)
_HALF = ("bfloat16", FAST)
_CANDIDATES, _CONTEXT_TURNS = 8, (3, 5, 7)
# The first that is part of an operation's name decides.
_KINDS = {
    "attention": ("scaled_dot_product", "flash_attention"),
    "convolutions": ("conv",),
    "matrix products": ("mm", "linear", "matmul"),
    "memory": (
        *("copy_", "cat", "index", "clone", "empty", "_to", "::to", "contiguous", "gather", "embedding", "fill_"),
        *("zero", "stack", "pad", "view", "reshape", "slice", "select", "split", "transpose", "expand", "repeat"),
        *("permute", "narrow", "unsqueeze", "squeeze", "unflatten", "::t", "arange", "resize"),
    ),
}
_MATMUL_SIZE = {"cpu": 2048, "cuda": 8192}
_PREPARATION, _OTHERS = "preparation", "norms and activations"


@dataclass(kw_only=True)
class Arguments:
    models: list[str] = field(default_factory=lambda: ["nano", "small", "middle"])
    parts: list[str] = field(default_factory=lambda: [*REFERENCES, "profile"])
    dialogues: int = 64
    mean_s: float = 24.0
    rounds: int = 3
    seed: int = 0
    output: Path = racing.RESULTS / "scoring_speed.json"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_options(Arguments, argv, prog="python -m benchmarks.scoring_speed", description=__doc__)
    for name in args.models:
        for part in args.parts:
            if (name, part) == ("small", "released"):
                continue
            model, processor = workloads.load_model(name, args.seed)
            dialogues = workloads.SyntheticDialogues(args.dialogues, args.seed, args.mean_s, processor.max_turn_s)
            for title, work in make_work(part, dialogues).items():
                found = measure(part, model, processor, work, args.rounds)
                settings = {"dialogues": len(work), "rounds": args.rounds, "seed": args.seed}
                racing.save_record(args.output, render, part, name + title, settings=settings, **found)


def make_work(part: str, dialogues: Sequence[Any]) -> dict[str, Sequence[Any]]:
    if part != "best of 8":
        return {"": dialogues}
    last = [dialogue[-1:] for dialogue in dialogues[:_CANDIDATES]]
    contexts = {turns: [each[:turns] for each in dialogues if len(each) > turns][:2] for turns in _CONTEXT_TURNS}
    return {f", {turns} turns": [one + turn for one in found for turn in last] for turns, found in contexts.items()}


def measure(part: str, model: Any, processor: Any, dialogues: Sequence[Any], rounds: int) -> Record:
    own = str(model.dtype).removeprefix("torch.")
    is_half = own == "bfloat16"
    if part == "profile":
        Scorer(model, processor).score(dialogues[:2])
        scorers = {} if is_half else {"float32": Scorer(copy.deepcopy(model), processor)}
        scorers[own if is_half else FAST] = Scorer(model, processor, mixed_precision=not is_half)
        return {"shares": {name: profile_scoring(scorer, dialogues) for name, scorer in scorers.items()}}
    ways = make_ways(part, model, processor, dialogues)
    found = racing.race(ways, dialogues, rounds, "bfloat16" if part == "dtypes" else own)
    found |= workloads.describe(model, dialogues)
    # What candidates share is not computed.
    if part == "best of 8":
        return found | {"utilisation": {}}
    rates = {dtype: measure_matmul(dtype, model.device) for dtype in ("float32", "bfloat16")}
    flops = workloads.count_flops(model, processor, dialogues)
    dtypes = {way: "bfloat16" if way.endswith(_HALF) else own for way in ways}
    shares = {way: flops / median(times) / rates[dtypes[way]] for way, times in found["seconds"].items()}
    return found | {"matmul_flops_per_s": rates, "utilisation": shares}


def make_ways(part: str, model: Any, processor: Any, dialogues: Sequence[Any]) -> dict[str, Contestant]:
    """Return the contestants of a part by name, the one with the expected rewards first."""

    def ours(model: Any, **options: Any) -> Contestant:
        # A new scorer per round: nothing is cached.
        return lambda dialogues: Scorer(model, processor, **options).score(dialogues)

    def grouped(dialogues: Sequence[Any]) -> list[float]:
        groups = [row // _CANDIDATES for row in range(len(dialogues))]
        return Scorer(model, processor).score(dialogues, groups=groups)

    if part == "scoring":
        return {OURS: ours(model)}
    if part == "options":
        changed = {f"{OURS}, {name}={value}": ours(model, **{name: value}) for name, value in _OPTIONS}
        return {OURS: ours(model), **changed}
    if part == "best of 8":
        return {ALONE: ours(model, share_prefixes=False, share_clips=False), "as a group": grouped}
    if part == "released":
        own_s, released_s = processor.feature_extractor.chunk_length, workloads.RELEASED_CHUNK_LENGTH_S
        names = {each: f"{RELEASED}, {each} s" for each in (released_s, own_s)} | {released_s: RELEASED}
        ways = {name: ReleasedWay(model, processor, each).score for each, name in names.items()}
        ways[f"{names[own_s]}, batches of 8"] = ReleasedWay(model, processor, own_s, 8).score
        if model.device.type == "cuda":
            plain = ReleasedWay(model, processor, released_s)
            ready = [plain.prepare([dialogue]).to(model.device) for dialogue in dialogues]
            ways[f"{RELEASED}, inputs ready"] = lambda each: [plain.forward(one)[0] for one in ready[: len(each)]]
        return {**ways, OURS: ours(model)}
    half, fast = copy.deepcopy(model), copy.deepcopy(model)
    half.model.bfloat16()
    released = {RELEASED: model, f"{RELEASED}, bfloat16": half} if model.config.stack_factor == 1 else {}
    return {
        OURS: ours(model),
        f"{OURS}, bfloat16": ours(half),
        f"{OURS}, {FAST}": ours(fast, mixed_precision=True),
        **{
            name: ReleasedWay(each, processor, workloads.RELEASED_CHUNK_LENGTH_S).score
            for name, each in released.items()
        },
    }


def measure_matmul(dtype: str, device: Any) -> float:
    """Return the operations per second of a large matrix product, the best of several."""
    size = _MATMUL_SIZE[torch.device(device).type]
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))

    def multiply() -> float:
        racing.wait_for_device()
        start = time.perf_counter()
        torch.mm(left, right)
        racing.wait_for_device()
        return time.perf_counter() - start

    return 2 * size**3 / min(multiply() for _ in range(10))


def profile_scoring(scorer: Scorer, dialogues: Sequence[Any]) -> dict[str, float]:
    """Return the share of the time by kind of operation; on a GPU of its time, with the rest as waiting."""
    is_cuda = scorer.model.device.type == "cuda"
    prepares = {name: _name_calls(getattr(DialoguePreparer, name)) for name in ("read", "join", "compute_mels")}
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with patch.multiple(DialoguePreparer, **prepares), profile(activities=activities) as profiler:
        seconds = racing.measure(lambda: scorer.score(dialogues)).seconds
    spent: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CPU:
            spent[_name_kind(event)] += event.self_device_time_total if is_cuda else event.self_cpu_time_total
    shares = {kind: spent[kind] / 1e6 / seconds for kind in (_PREPARATION, *reversed(_KINDS), _OTHERS)}
    return {**shares, "waiting" if is_cuda else "Python": 1 - sum(shares.values())}


def _name_calls(prepare: Callable[..., Any]) -> Callable[..., Any]:
    def named(*args: Any, **options: Any) -> Any:
        with record_function(_PREPARATION):
            return prepare(*args, **options)

    return named


def _name_kind(event: Any) -> str:
    callers = event
    while callers is not None:
        if callers.name == _PREPARATION:
            return _PREPARATION
        callers = callers.cpu_parent
    return next((kind for kind, names in _KINDS.items() if any(name in event.name for name in names)), _OTHERS)


def render(records: list[Record]) -> str:
    tables = [
        render_race(part, found, reference)
        for part, reference in REFERENCES.items()
        for found in racing.group_records(records, part)
    ]
    return "\n\n".join([*tables, *map(render_profiles, racing.group_records(records, "profile"))]) + "\n"


def render_race(title: str, records: Sequence[Record], reference: str) -> str:
    columns = ("time", "dialogues/s", "real-time factor", "peak memory", "of matmul speed", "reward difference")
    rows = []
    for record in records:
        for way, times in record["seconds"].items():
            seconds, slow_s = median(times), record["seconds"].get(reference)
            cells = {
                "{:,} MiB": record["peak_mib"].get(way),
                "{:.0%}": record["utilisation"].get(way),
                "{:.0e}": record["largest_difference"].get(way),
                "{:.2f}": racing.speedup(slow_s, times) if slow_s else None,
            }
            rate, factor = record["settings"]["dialogues"] / seconds, seconds / record["audio_s"]
            speed = (f"{seconds:.1f} s", f"{rate:.2f}", f"{factor:.5f}")
            rows.append((f"{record['model']}, {way}", *speed, *racing.format_cells(cells)))
    return racing.make_table((title, *columns, f"speed-up over {reference}"), rows, records)


def render_profiles(records: Sequence[Record]) -> str:
    shares = {f"{each['model']}, {name}": found for each in records for name, found in each["shares"].items()}
    kinds = list(next(iter(shares.values())))
    rows = [(name, *(f"{found[kind]:.1%}" for kind in kinds)) for name, found in shares.items()]
    return racing.make_table(("share of the time", *kinds), rows, records)


if __name__ == "__main__":
    main()
