"""Render the numbers of `docs/data.md` from `benchmarks/results`: `python -m sdiareward.cards.render_data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file

from .render import render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "data.md"
RESULTS = _ROOT / "benchmarks" / "results"


def render_guide(guide: str, results: Path = RESULTS) -> str:
    """Return the guide with its numbers taken from the result files.

    Args:
        guide (`str`): Text with the blocks `pipeline`, `builds`, `bad_input` and `fingerprints`.
        results (`Path`): Folder of the result files.
    """
    blocks = {
        "pipeline": "\n\n".join((_pipeline(results), _memory(_read(results / "pipeline_memory.json")))),
        "builds": "\n\n".join((_builds(results), _kills(_read(results / "kill_and_resume.json")["result"]))),
        "bad_input": _bad_input(_read(results / "bad_input.json")["result"]),
        "fingerprints": _fingerprints(_read(results / "fingerprints.json")),
    }
    return render_readme(guide, blocks)


def _pipeline(results: Path) -> str:
    """Return the tables of the test world, from its own report, without the single recordings."""
    report = (results / "pipeline_world.md").read_text(encoding="utf-8").split("\n", 1)[1]
    report = report[: report.index("## Each recording")] + report[report.index("## What the columns mean") :]
    return report.replace("\n## ", "\n### ").strip()


def _memory(found: dict[str, Any]) -> str:
    rows = [
        f"| {row['duration_s'] / 3600:.2f} h | {row['turns']} | {row['max_rss_mib']} MiB | {row['wall_s']:.0f} s |"
        for row in found["results"]
    ]
    head = ["| recording | turns | most memory | time |", "|--:|--:|--:|--:|"]
    note = f"Speech recognition only of the first {found['num_asr_turns']} turns, on {found['num_cpus']} cores."
    return "\n".join(["### Memory", "", *head, *rows, "", note])


def _builds(results: Path) -> str:
    found = _read(results / "build_all.json")["result"]
    rows = [("all", found), *found["by_source"].items()]
    lines = ["### All of the open sources", "", "| source | pairs | chosen | rejected |", "|---|--:|--:|--:|"]
    lines += [f"| {name} | {row['pairs']} | {row['chosen_h']} h | {row['rejected_h']} h |" for name, row in rows]
    first, second = found["first_run"], found["second_run"]
    drops = ", ".join(f"{count} {kind}" for kind, count in found["drops"].items())
    unchanged = "unchanged" if second["shards_unchanged"] else "CHANGED"
    memory = f"at most {first['peak_memory_gb']} GB in all processes together"
    built = f"Built from the Debian packages in {first['wall_s'] / 60:.1f} minutes with {memory};"
    left_out = f"{found['left_out']} items were left out ({drops})."
    again = f"The same command once more took {second['wall_s']:.1f} s and left the shards {unchanged}."
    lines += ["", f"{built} {left_out} {again}"]
    return "\n".join(lines)


def _kills(found: dict[str, Any]) -> str:
    trials = found["trials"]
    moments = ", ".join(f"{trial['killed_after_s']:.0f}" for trial in trials)
    same = sum(trial["identical"] for trial in trials)
    build = f"A build of {found['pairs']} pairs that takes {found['undisturbed_s']:.0f} s"
    killed = f"was killed (SIGKILL) after {moments} s and run again:"
    return (
        f"{build} {killed} in {same} of {len(trials)} trials all {found['files']} files were byte for byte the same."
    )


def _fingerprints(found: dict[str, Any]) -> str:
    verdicts = sorted({verdict for row in found["confusion"].values() for verdict in row})
    lines = [f"| what it was | {' | '.join(verdicts)} |", f"|---|{'--:|' * len(verdicts)}"]
    for truth, row in found["confusion"].items():
        lines.append(f"| {truth} | {' | '.join(str(row.get(verdict, 0)) for verdict in verdicts)} |")
    note = (
        f"Verdicts on {found['num_clips']} clips ({found['hours']} h), decoded, resampled, coded, cut or exchanged in "
        f"{len(found['variants'])} ways; 10 s take {found['characters_per_10_s']:.0f} characters."
    )
    return "\n".join([*lines, "", note])


def _bad_input(found: dict[str, Any]) -> str:
    rows = [("left out", row) for row in found["skipped"]] + [("used, noted", row) for row in found["noted"]]
    lines = ["| | kind | what the report says |", "|---|---|---|"]
    lines += [f"| {outcome} | `{row['kind']}` | {row['item']}: {row['reason']} |" for outcome, row in rows]
    return "\n".join([*lines, "", f"Everything else of that folder became pairs: {found['pairs']} of them."])


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))
