"""Build all of `amazon_queen`, `asterisk` and `colloquial_scripts`, then once more: pairs, hours, time and memory.

Needs the Debian packages that `configs/data_full.yaml` names. Run `python -m benchmarks.build_all`; it writes
`benchmarks/results/build_all.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.provenance import write_provenance
from sdiareward.common.settings import read_mapping
from sdiareward.dataset_builder.reports.data_card import make_content_id


RESULT = Path(__file__).resolve().parent / "results" / "build_all.json"
CONFIG = Path(__file__).resolve().parent.parent / "configs" / "data_full.yaml"


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    source: list[str] = field(
        default_factory=list, metadata={"action": "append", "metavar": "NAME=PATH", "help": "where a corpus lies"}
    )
    output_dir: Path = field(default=Path("runs/full/sdiareward"), metadata={"help": "folder to write"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> int:
    """Build twice and write the result."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.build_all", description=__doc__)
    places = dict(entry.split("=", 1) for entry in args.source)
    settings = read_mapping(CONFIG) | {"output_dir": str(args.output_dir)}
    for source in settings["sources"]:
        if source["name"] in places:
            source["path"] = places[source["name"]]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(settings, file)
        file.flush()
        first = measure_build(Path(file.name))
        before = make_content_id(args.output_dir)
        second = measure_build(Path(file.name))
    report = json.loads((args.output_dir / "report.json").read_text(encoding="utf-8"))
    result = describe_build(report) | {
        "first_run": first,
        "second_run": second | {"shards_unchanged": make_content_id(args.output_dir) == before},
    }
    args.output.parent.mkdir(exist_ok=True)
    write_provenance(args.output, config="configs/data_full.yaml", result=result)
    print(json.dumps(result, indent=2))
    return 0


def measure_build(config: Path) -> dict[str, Any]:
    """Run a build in a process of its own; return wall seconds and the most memory all its processes held at once."""
    import psutil

    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "sdiareward.dataset_builder", "build", "--config", str(config)])
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.5):
            try:
                family = [psutil.Process(process.pid)]
                family += family[0].children(recursive=True)
                peak = max(peak, sum(member.memory_info().rss for member in family))
            except psutil.NoSuchProcess:
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = process.wait()
    done.set()
    watcher.join()
    if status != 0:
        raise RuntimeError(f"the build ended with {status}.")
    return {"wall_s": round(time.monotonic() - start, 1), "peak_memory_gb": round(peak / 1e9, 2)}


def describe_build(report: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a build's report: pairs and hours in all and by source, and skipped items by kind."""
    rows = report["pairs"]
    by_source = {}
    for source in sorted({row["source"] for row in rows}):
        members = [row for row in rows if row["source"] == source]
        by_source[source] = _total(members)
    return {**_total(rows), "by_source": by_source, "left_out": len(report["skipped"]), "drops": report["drops"]}


def _total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    hours = {name: round(sum(row[name] for row in rows), 2) for name in ("chosen_h", "rejected_h")}
    return {"pairs": sum(row["pairs"] for row in rows), **hours}


if __name__ == "__main__":
    sys.exit(main())
