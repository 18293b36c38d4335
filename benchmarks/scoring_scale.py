"""Time and memory of scoring 10 to 10,000 dialogues: time grows with the seconds of audio, memory does not.

    python -m benchmarks.scoring_scale
    python -m benchmarks.scoring_scale --counts 10 30 100          # a quick look

The nano checkpoint scores distinct dialogues of two short turns, made from the bundled sample's speech on access
(`scoring_workload.ManyDialogues`). Each number of dialogues runs in its own process; `loaded_mib` is its memory before
the first dialogue. The slope is that of log seconds of scoring against log seconds of audio: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from benchmarks import racing
from sdiareward.common.arguments import parse_arguments


RESULT = racing.RESULTS / "scoring_scale.json"
COUNTS = (10, 100, 1_000, 10_000)
_WARM_UP_DIALOGUES = 8


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    counts: list[int] = field(default_factory=lambda: list(COUNTS), metadata={"help": "numbers of dialogues"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})
    here: bool = field(default=False, metadata={"help": argparse.SUPPRESS})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.scoring_scale", description=__doc__)
    if args.here:
        print(json.dumps(score_here(args.counts[0], args.seed)))
        return
    rows = [
        racing.run_module("scoring_scale", "--here", "--counts", count, "--seed", args.seed)
        for count in tqdm(args.counts, "counts")
    ]
    racing.write_result(args.output, seed=args.seed, cpu=racing.describe_cpu(), rows=rows, **measure_growth(rows))
    print(json.dumps(rows, indent=2))


def score_here(num_dialogues: int, seed: int) -> dict[str, Any]:
    """Score in this process; return seconds, seconds of audio, and peak memory before and after."""
    from benchmarks.scoring_workload import ManyDialogues
    from benchmarks.speed_models import load
    from sdiareward.scoring.scorer import Scorer

    model, processor = load("nano")
    # A warm-up with other dialogues, so that no measured clip is cached.
    Scorer(model, processor).score(ManyDialogues(_WARM_UP_DIALOGUES, seed + 1))
    dialogues, scorer = ManyDialogues(num_dialogues, seed), Scorer(model, processor)
    loaded_mib = racing.max_rss_mib()
    start = time.perf_counter()
    num_scored = sum(1 for _ in scorer.iter_scores(dialogues))
    seconds = time.perf_counter() - start
    return {
        "dialogues": num_scored,
        "audio_s": round(scorer.audio_s, 1),
        "seconds": seconds,
        "loaded_mib": loaded_mib,
        "peak_mib": racing.max_rss_mib(),
    }


def measure_growth(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the slope of log seconds against log audio seconds, over all rows and between neighbours.

    Args:
        rows (`list[dict]`): Results of `score_here` for growing numbers; at least two.
    """
    audio, seconds = (np.log([row[name] for row in rows]) for name in ("audio_s", "seconds"))
    between = [(seconds[b] - seconds[a]) / (audio[b] - audio[a]) for a, b in pairwise(range(len(rows)))]
    return {"slope": float(np.polyfit(audio, seconds, 1)[0]), "slopes_between": [float(slope) for slope in between]}


if __name__ == "__main__":
    main()
