"""Best-of-8 on a CPU: candidates that share their context, with and without prefix sharing.

    python -m benchmarks.best_of_n
    python -m benchmarks.best_of_n --contexts 1 --rounds 1    # a quick look

Real speech of the bundled sample (`scoring_workload.py`). A context is the first 3, 5 or 7 turns of a dialogue; its
eight candidates are the last turns of eight dialogues, its own among them, and no candidate occurs twice. Both
contestants are ours, with the committed nano checkpoint:

- `unshared`: `Scorer(share_prefixes=False, share_clips=False)`, without groups: the candidates of a context may be in
  different batches.
- `shared`: `Scorer` with its defaults; the candidates of a context are a group.

Each round uses a new scorer, so that no clip is cached from the previous round. A speed-up is the median over rounds
of the quotient of the two times of a round.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.racing import RESULTS, Contestant, describe_cpu, race, speedup, write_result
from benchmarks.scoring_workload import duration_s, write_dialogues
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.package_files import NANO
from sdiareward.scoring.scorer import Scorer


RESULT = RESULTS / "best_of_n.json"
NUM_CANDIDATES = 8
CONTEXT_TURNS = (3, 5, 7)
_GOAL = 3.0
# Lengths are drawn at random; with these there are enough dialogues of each.
_SPARE_DIALOGUES = 24


def make_groups(dialogues: Sequence[Any], num_contexts: int) -> dict[int, list[Any]]:
    """Return dialogues by the number of turns of their context; eight in a row have the same context.

    Args:
        dialogues (`list[list[dict]]`): Dialogues of 4, 6 and 8 turns.
        num_contexts (`int`): Contexts of each length.
    """
    contexts = {
        turns: [dialogue for dialogue in dialogues if len(dialogue) == turns + 1][:num_contexts]
        for turns in CONTEXT_TURNS
    }
    taken = [id(dialogue) for chosen in contexts.values() for dialogue in chosen]
    others = iter([dialogue[-1] for dialogue in dialogues if id(dialogue) not in taken])
    return {
        turns: [
            [*dialogue[:-1], candidate]
            for dialogue in chosen
            for candidate in [dialogue[-1], *(next(others) for _ in range(NUM_CANDIDATES - 1))]
        ]
        for turns, chosen in contexts.items()
    }


def contestants(base: Scorer) -> dict[str, Contestant]:
    """Return the contestants by name; both must give the rewards of `unshared`, the first."""

    def unshared(dialogues: Sequence[Any]) -> list[float]:
        return Scorer(base.model, base.processor, share_prefixes=False, share_clips=False).score(dialogues)

    def shared(dialogues: Sequence[Any]) -> list[float]:
        groups = [index // NUM_CANDIDATES for index in range(len(dialogues))]
        return Scorer(base.model, base.processor).score(dialogues, groups=groups)

    return {"unshared": unshared, "shared": shared}


def measure(num_contexts: int, rounds: int, seed: int) -> dict[str, Any]:
    """Time both on contexts of each length."""
    base = Scorer.from_pretrained(NANO, device="cpu")
    num_dialogues = NUM_CANDIDATES * len(CONTEXT_TURNS) * num_contexts + _SPARE_DIALOGUES
    by_turns: dict[str, Any] = {}
    totals = {name: [0.0] * rounds for name in contestants(base)}
    with tempfile.TemporaryDirectory() as folder:
        dialogues = write_dialogues(Path(folder), num_dialogues, seed=seed, max_turn_s=base.processor.max_turn_s)
        for turns, group in make_groups(dialogues, num_contexts).items():
            seconds, differences = race(contestants(base), group, rounds)
            totals = {name: [a + b for a, b in zip(totals[name], seconds[name], strict=True)] for name in totals}
            by_turns[str(turns)] = {
                "dialogues": len(group),
                "audio_s": round(duration_s(group), 1),
                "seconds": seconds,
                "speedup": speedup(seconds["unshared"], seconds["shared"]),
                "largest_difference": max(differences.values()),
            }
    return {
        "speedup": speedup(totals["unshared"], totals["shared"]),
        "goal": _GOAL,
        "largest_difference": max(found["largest_difference"] for found in by_turns.values()),
        "seconds": totals,
        "by_turns_of_context": by_turns,
    }


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    contexts: int = field(default=2, metadata={"help": "contexts of each length"})
    rounds: int = field(default=5, metadata={"help": "rounds of measurement"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.best_of_n", description=__doc__)
    measured = measure(args.contexts, args.rounds, args.seed)
    settings = {name: getattr(args, name) for name in ("contexts", "rounds", "seed")}
    write_result(args.output, settings=settings, cpu=describe_cpu(), **measured)
    print(json.dumps({name: measured[name] for name in ("speedup", "goal", "largest_difference")}, indent=1))


if __name__ == "__main__":
    main()
