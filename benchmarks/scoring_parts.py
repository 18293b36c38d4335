"""Take a scoring run apart: where the time of `Scorer` goes, by kind of operation.

    python -m benchmarks.scoring_parts
    python -m benchmarks.scoring_parts --models nano --dialogues 4    # a quick look

`torch.profiler` gives every operation's own time on the dialogues of `scoring_speed.py`. Preparation is the reading
of recordings, resampling, mel features and tokens; what no operation accounts for is Python's. The profiler costs
time, which is counted as Python's: its share is an upper bound.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import racing
from benchmarks.scoring_dtypes import MODELS
from benchmarks.scoring_speed import _workload, load_model
from sdiareward.common.arguments import parse_arguments
from sdiareward.scoring.precision import FAST


RESULT = racing.RESULTS / "scoring_parts.json"
DTYPES = ("float32", FAST)
PREPARATION, PYTHON, REST = "preparation", "python", "norms and activations"
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
KINDS_OF_OPERATIONS = tuple(reversed(_KINDS))
KINDS = (PREPARATION, *KINDS_OF_OPERATIONS, REST, PYTHON)
_WARM_UP_DIALOGUES = 2


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    models: list[str] = field(
        default_factory=lambda: list(MODELS), metadata={"choices": MODELS, "help": "models to measure"}
    )
    dialogues: int = field(default=16, metadata={"help": "dialogues to score"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.scoring_parts", description=__doc__)
    models = {
        name: {dtype: measure(name, dtype, args.dialogues, args.seed) for dtype in DTYPES} for name in args.models
    }
    settings = {"dialogues": args.dialogues, "seed": args.seed}
    racing.write_result(args.output, settings=settings, cpu=racing.describe_cpu(), models=models)
    print(json.dumps(models, indent=2))


def measure(name: str, dtype: str, num_dialogues: int, seed: int) -> dict[str, Any]:
    """Profile one model; return the seconds, and the share of each of [`KINDS`].

    Args:
        name (`str`): One of `MODELS`.
        dtype (`str`): One of `DTYPES`.
        num_dialogues (`int`): Dialogues to score.
        seed (`int`): Of the dialogues and of random weights.
    """
    from torch.profiler import ProfilerActivity, profile

    from sdiareward.scoring.batching import DialoguePreparer
    from sdiareward.scoring.scorer import Scorer

    with tempfile.TemporaryDirectory() as folder:
        model, processor = load_model(name, seed)
        dialogues = _workload(Path(folder), num_dialogues + _WARM_UP_DIALOGUES, seed, processor)
        scorer = Scorer(model, processor, mixed_precision=dtype == FAST)
        scorer.score(dialogues[num_dialogues:])
        scorer._prepare = _by_name(DialoguePreparer)(processor, scorer._encoded)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            start = time.perf_counter()
            scorer.score(dialogues[:num_dialogues])
            seconds = time.perf_counter() - start
    shares = {kind: spent / seconds for kind, spent in _add_up(profiler.events()).items()}
    shares[PYTHON] = 1 - sum(shares.values())
    return {"seconds": round(seconds, 3), "shares": {kind: round(shares.get(kind, 0.0), 4) for kind in KINDS}}


def _by_name(preparer: type[Any]) -> type[Any]:
    """Return the class with a name for the profiler around what it does."""
    from torch.profiler import record_function

    class NamedPreparer(preparer):  # type: ignore[misc]
        def __call__(self, *args: Any, **options: Any) -> Any:
            with record_function(PREPARATION):
                return super().__call__(*args, **options)

        def compute_mels(self, *args: Any, **options: Any) -> Any:
            with record_function(PREPARATION):
                return super().compute_mels(*args, **options)

    return NamedPreparer


def _add_up(events: Any) -> Counter[str]:
    """Return the seconds of each kind; whatever preparation calls is preparation."""
    found: Counter[str] = Counter()
    for event in events:
        if _is_prepared(event.cpu_parent):
            continue
        if event.name == PREPARATION:
            found[PREPARATION] += event.cpu_time_total / 1e6
        elif event.name.startswith(("aten::", "mkldnn::")):
            found[name_kind(event.name)] += event.self_cpu_time_total / 1e6
    return found


def _is_prepared(event: Any) -> bool:
    while event is not None:
        if event.name == PREPARATION:
            return True
        event = event.cpu_parent
    return False


def name_kind(operation: str) -> str:
    """Return the kind of an operation by its name, such as `aten::addmm`."""
    return next((kind for kind, parts in _KINDS.items() if any(part in operation for part in parts)), REST)


if __name__ == "__main__":
    main()
