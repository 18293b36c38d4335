"""Kill a build at five random moments: the resumed result must be byte for byte that of an undisturbed one.

Each trial starts from nothing, is killed (SIGKILL, all its processes) at its moment, and is then run to its end. The
recordings are the bundled sample's and the synthesizer one whose samples do not differ from call to call.

Run `python -m benchmarks.kill_and_resume`; it writes `benchmarks/results/kill_and_resume.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.provenance import write_provenance


RESULT = Path(__file__).resolve().parent / "results" / "kill_and_resume.json"
_SYNTHESIZER = "hibari"


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    kills: int = field(default=5, metadata={"help": "trials, each killed once"})
    episodes: int = field(default=40, metadata={"help": "recorded episodes of the sample"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> int:
    """Run the trials and write the result; return 1 when a resumed build differs."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.kill_and_resume", description=__doc__)
    with tempfile.TemporaryDirectory() as folder:
        result = run_trials(Path(folder), kills=args.kills, episodes=args.episodes, seed=args.seed)
    args.output.parent.mkdir(exist_ok=True)
    write_provenance(args.output, result=result)
    print(json.dumps(result, indent=2))
    return 0 if all(trial["identical"] for trial in result["trials"]) else 1


def run_trials(folder: Path, *, kills: int, episodes: int, seed: int) -> dict[str, Any]:
    """Build once undisturbed and `kills` times killed and resumed; say whether the results are identical.

    Args:
        folder (`Path`): Where to build.
        kills (`int`): Number of trials.
        episodes (`int`): Recorded episodes, and half as many scripts.
        seed (`int`): Draws the moments, uniform over most of the wall time of the undisturbed build.
    """
    start = time.monotonic()
    reference = _digest(_build(folder / "undisturbed", episodes))
    wall_s = time.monotonic() - start
    moments = random.Random(seed)
    trials = []
    for index in range(kills):
        after_s = moments.uniform(0.05, 0.9) * wall_s
        output = folder / f"trial-{index}"
        finished = _build_and_kill(output, episodes, after_s)
        parts = len(list((output / "sdiareward" / ".parts").glob("*.parquet")))
        digest = _digest(_build(output, episodes))
        trials.append(
            {
                "killed_after_s": round(after_s, 2),
                "was_finished": finished,
                "pairs_kept": parts,
                "identical": digest == reference,
            }
        )
    return {
        "undisturbed_s": round(wall_s, 2),
        "files": len(reference),
        "pairs": _count(folder / "undisturbed"),
        "trials": trials,
    }


def _config(output: Path, episodes: int) -> Path:
    output.mkdir(parents=True, exist_ok=True)
    settings = {
        "output_dir": str(output / "sdiareward"),
        "sources": [{"name": "sample", "limit": episodes}, {"name": "colloquial_scripts", "limit": episodes // 2}],
        "synthesizers": {"modality": {"seen": [_SYNTHESIZER]}, "colloquialness": {"seen": [_SYNTHESIZER]}},
    }
    path = output / "build.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def _start(output: Path, episodes: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sdiareward.dataset_builder", "build", "--config", str(_config(output, episodes))]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _build(output: Path, episodes: int) -> Path:
    process = _start(output, episodes)
    if process.wait() != 0:
        raise RuntimeError(f"the build in {output} ended with {process.returncode}.")
    return output / "sdiareward"


def _build_and_kill(output: Path, episodes: int, after_s: float) -> bool:
    """Start a build and kill it with all its processes; return whether it had finished before."""
    process = _start(output, episodes)
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True


def _digest(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a data set folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _count(output: Path) -> int:
    report = json.loads((output / "sdiareward" / "report.json").read_text(encoding="utf-8"))
    return sum(row["pairs"] for row in report["pairs"])


if __name__ == "__main__":
    sys.exit(main())
