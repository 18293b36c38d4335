"""An examination for people, line by line, and for programs, as JSON."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sdiareward.common.version import __version__

from .findings import STATUSES, Finding


# To be raised when fields of the JSON change their meaning.
FORMAT = 1
_LABELS = {"passed": "ok", "warning": "warn", "failed": "FAIL", "skipped": "skip"}
_WIDTH = 118


def render_finding(finding: Finding, width: int) -> str:
    """Return the line of a finding, wrapped under its column where it is long.

    Args:
        finding ([`Finding`]): What to show.
        width (`int`): Length of the longest name.
    """
    outcome = finding.outcome
    head = f"  {_LABELS[outcome.status]:<4}  {finding.name:<{width}}  {finding.seconds:>6.1f} s  "
    text = outcome.found
    if outcome.measured is not None and outcome.limit is not None:
        text = f"{outcome.measured:.1e}, at most {outcome.limit:.1e}"
    if outcome.remedy:
        text += f" -> {outcome.remedy}"
    return textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head)) or head.rstrip()


def render_summary(findings: Sequence[Finding], seconds: float) -> str:
    """Return the last line: the number of findings by status, and how long it took."""
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
    # JSON has no word for NaN.
    plain: dict[str, Any] = json.loads(json.dumps(record, default=str), parse_constant=str)
    return plain
