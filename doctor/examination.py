"""Make all checks in their order, and tell what their findings amount to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sdiareward.common.redaction import redact

from .facts import list_fact_checks
from .findings import FAILED, PASSED, SKIPPED, WARNING, Check, Finding, Outcome, Settings
from .invariants import LOADING, list_invariant_checks
from .subject import UNUSABLE


_MAX_CHARACTERS = 300


def list_checks() -> list[Check]:
    """Return every check: first the facts, then the invariants, which begin with loading the checkpoint."""
    return [*list_fact_checks(), *list_invariant_checks()]


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield the finding of each check as soon as it is known.

    Args:
        settings ([`Settings`]): Which checkpoint, where.
    """
    is_loaded = False
    names = {check.name for check in list_invariant_checks()}
    for check in list_checks():
        started = time.perf_counter()
        if check.name in names - {LOADING} and not is_loaded:
            outcome = Outcome(SKIPPED, f"needs '{LOADING}'")
        else:
            outcome = _run(check, settings)
        if check.name == LOADING:
            is_loaded = outcome.status in (PASSED, WARNING)
        yield Finding(check.section, check.name, time.perf_counter() - started, outcome)


def _run(check: Check, settings: Settings) -> Outcome:
    try:
        outcome = check.function(settings)
    # A broken installation raises what it likes, and that is what the report is for.
    except (Exception, SystemExit) as error:
        outcome = Outcome(FAILED, f"{type(error).__name__}: {error}")
    return replace(outcome, found=shorten(outcome.found))


def shorten(text: str) -> str:
    """Return a text in one line, without tokens, the home folder written as `~`."""
    line = " ".join(redact(text).replace(str(Path.home()), "~").split())
    return line if len(line) <= _MAX_CHARACTERS else f"{line[:_MAX_CHARACTERS]}..."


def exit_status(findings: Sequence[Finding], strict: bool = False) -> int:
    """Return 1 if something failed, with `strict` also if there is a warning, else 0.

    Args:
        findings (`Sequence[Finding]`): Of an examination.
        strict (`bool`, *optional*, defaults to `False`): Let warnings count.
    """
    bad = {FAILED, WARNING} if strict else {FAILED}
    return int(any(finding.outcome.status in bad for finding in findings))


def find_checkpoint_problem(findings: Sequence[Finding]) -> str | None:
    """Return why the checkpoint could not be loaded, if that is its fault and not the machine's."""
    loading = (finding.outcome for finding in findings if finding.name == LOADING)
    return next((outcome.found for outcome in loading if outcome.details.get(UNUSABLE)), None)
