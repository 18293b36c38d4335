"""An examination for people, line by line, and for programs, as JSON."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sdiareward.common.version import __version__

from .findings import STATUSES, Check, Finding, Outcome


# To be raised when fields of the JSON change their meaning.
FORMAT = 1
_LABELS = {"passed": "ok", "warning": "warn", "failed": "FAIL", "skipped": "skip"}
_WIDTH = 118


def lines_of(findings: Iterable[Finding], checks: Sequence[Check]) -> Iterable[str]:
    """Yield the lines of a table, each as soon as it can be written.

    Args:
        findings (`Iterable[Finding]`): Of the checks, in their order.
        checks (`Sequence[Check]`): All that are made, for the width of the table.
    """
    width = max(len(check.name) for check in checks)
    section = None
    for finding in findings:
        if finding.section != section:
            section = finding.section
            yield f"\n{section}"
        yield from _lines_of(finding, width)


def _lines_of(finding: Finding, width: int) -> list[str]:
    outcome = finding.outcome
    head = f"  {_LABELS[outcome.status]:<4}  {finding.name:<{width}}  {finding.seconds:>6.1f} s  "
    text = format_outcome(outcome)
    if outcome.remedy:
        text += f" -> {outcome.remedy}"
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]


def format_outcome(outcome: Outcome) -> str:
    """Return what was found in words; of a measurement the number and its limit."""
    if outcome.measured is None or outcome.limit is None:
        return outcome.found
    return f"{outcome.measured:.1e}, at most {outcome.limit:.1e}"


def summary_of(findings: Sequence[Finding], seconds: float) -> str:
    """Return the last line: how many passed and did not, and how long it took."""
    counts = Counter(finding.outcome.status for finding in findings)
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    return f"{', '.join(parts)}; {seconds:.1f} s"


def record_of(findings: Sequence[Finding], model: str, seconds: float, exit_status: int) -> dict[str, Any]:
    """Return an examination as JSON values.

    Args:
        findings (`Sequence[Finding]`): What was found.
        model (`str`): The checkpoint, as it may be shown.
        seconds (`float`): How long everything took.
        exit_status (`int`): Of the command.
    """
    counts = Counter(finding.outcome.status for finding in findings)
    record = {
        "format": FORMAT,
        "sdiareward": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model,
        "counts": {status: counts[status] for status in STATUSES},
        "seconds": round(seconds, 2),
        "exit_status": exit_status,
        "checks": [finding.as_record() for finding in findings],
    }
    # JSON has no word for what is not a number.
    plain: dict[str, Any] = json.loads(json.dumps(record), parse_constant=str)
    return plain
