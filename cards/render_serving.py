"""Render the numbers of `docs/serving.md` from `benchmarks/results`: `python -m sdiareward.cards.render_serving`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_markdown_table

from .render import not_measured, render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "serving.md"
RESULT = _ROOT / "benchmarks" / "results" / "serving_load.json"
_FAULTS = {
    "undisturbed": "nothing",
    "slow_clients": "slow clients",
    "malformed": "malformed bodies",
    "killed_replica": "the model's process is killed",
}
_ROLES = {"http": "HTTP", "replica": "model", "controller": "Ray Serve's controller", "ray": "Ray's own"}


def render_guide(guide: str, result: Path = RESULT) -> str:
    """Return the guide with its numbers taken from the result file; a block without numbers says so.

    Args:
        guide (`str`): Text with the blocks `batch_sizes`, `saturation` and `faults`.
        result (`Path`): What `benchmarks.serving_load` wrote; perhaps not all of it, or nothing yet.
    """
    found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    makers = {"batch_sizes": _batch_sizes, "saturation": _saturation, "faults": _faults}
    blocks = {name: make(found) if found.get(name) else not_measured("serving_load") for name, make in makers.items()}
    return render_readme(guide, blocks)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _batch_sizes(found: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{row['max_batch_size']}",
            _ms(row["alone"]["p50_s"]),
            _ms(row["alone"]["p99_s"]),
            f"{row['many']['requests_per_s']:.1f}",
            _ms(row["many"]["p50_s"]),
            _ms(row["many"]["p99_s"]),
            f"{row['mean_batch_requests']:.1f}",
        )
        for row in found["batch_sizes"]
    ]
    settings = found["settings"]
    many = f"{settings['concurrency']} clients"
    heads = (
        "`--max-batch-size`",
        "one client: p50",
        "p99",
        f"{many}: requests/s",
        "p50",
        "p99",
        "scored together, mean",
    )
    worst = max(row[load]["largest_difference"] for row in found["batch_sizes"] for load in ("alone", "many"))
    cpu = found["cpu"]
    note = (
        f"A row rests on {_num_sent(found, 'alone')} requests by one client and {_num_sent(found, 'many')} by {many}, "
        f"each with a dialogue of {settings['turns']} turns of its own; {_wrong(found['batch_sizes'])}; the largest "
        f"difference of a reward is {worst:.0e}. "
        f"{cpu['name']}, {cpu['usable_cores']} cores."
    )
    return "\n".join([*render_markdown_table(heads, rows, num_left=0), "", note])


def _num_sent(found: Mapping[str, Any], load: str) -> str:
    """Return how many requests a row rests on, or from how many to how many."""
    numbers = {row[load]["sent"] for row in found["batch_sizes"]}
    return " to ".join(str(number) for number in sorted({min(numbers), max(numbers)}))


def _wrong(rows: Sequence[Mapping[str, Any]]) -> str:
    tallies = [row[load] for row in rows for load in ("alone", "many")]
    return f"{sum(map(_num_lost, tallies))} lost, {sum(tally['mismatched'] for tally in tallies)} mismatched"


def _num_lost(tally: Mapping[str, Any]) -> int:
    return sum(tally["lost"].values())


def _saturation(found: Mapping[str, Any]) -> str:
    tally = found["saturation"]
    rows = [
        (
            _ROLES[role],
            *(f"{median:.0f} MiB" for median in memory["thirds_mib"]),
            f"{memory['mib_per_minute']:+.2f} MiB",
        )
        for role, memory in tally["memory"].items()
    ]
    heads = ("processes", "memory, first third", "second third", "last third", "per minute in the last third")
    note = (
        f"{tally['seconds']:.0f} s, {found['settings']['concurrency']} clients: {tally['sent']} requests sent, "
        f"{tally['answered']} answered, {_num_lost(tally)} lost, {tally['mismatched']} mismatched, {tally['put_off']} "
        f"put off with 503; {tally['requests_per_s']:.1f} requests/s, p50 {_ms(tally['p50_s'])}, p99 "
        f"{_ms(tally['p99_s'])}."
    )
    return "\n".join([*render_markdown_table(heads, rows), "", note])


def _faults(found: Mapping[str, Any]) -> str:
    faults = found["faults"]
    rows = [
        (
            title,
            f"{tally['sent']}",
            f"{tally['answered']}",
            f"{_num_lost(tally)}",
            f"{tally['mismatched']}",
            f"{tally['put_off']}",
            _ms(tally["p50_s"]),
            _ms(tally["p99_s"]),
        )
        for name, title in _FAULTS.items()
        for tally in [faults[name]]
    ]
    heads = ("meanwhile", "sent", "answered", "lost", "mismatched", "put off", "p50", "p99")
    return "\n".join([*render_markdown_table(heads, rows), "", *_fault_notes(faults)])


def _fault_notes(faults: Mapping[str, Any]) -> list[str]:
    slow, drain = faults["slow_clients"], faults["drain"]
    answers = ", ".join(f"{number} with {status}" for status, number in sorted(slow["answers"].items()))
    statuses = faults["malformed"]["statuses"]
    sent = sum(sum(kind["got"].values()) for kind in statuses.values())
    wrong = sum(
        number
        for kind in statuses.values()
        for status, number in kind["got"].items()
        # A body that is too large may find the connection closed before it has been sent.
        if status != str(kind["wanted"]) and not (status == "closed" and kind["wanted"] == 413)
    )
    gap_s = faults["killed_replica"]["longest_gap_s"]
    return [
        f"- {slow['number']} slow clients, each a byte now and then: answered {answers or 'not at all'}.",
        f"- {sent} malformed bodies of {len(statuses)} kinds: {wrong} got another answer than their fault's.",
        f"- After the model's process was killed the longest time without an answer was {gap_s:.1f} s.",
        f"- SIGTERM when of {drain['clients']} requests {drain['under_way']} were under way and "
        f"{drain['answered_before']} answered: {drain['answered']} answered in the end, {drain['refused']} refused "
        f"before they had connected, {drain['lost']} lost, {drain['mismatched']} mismatched, exit status "
        f"{drain['exit_status']}.",
    ]


if __name__ == "__main__":
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))
