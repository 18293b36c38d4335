"""All checks in their order, and what their findings amount to."""

from __future__ import annotations

from collections.abc import Sequence

from .attention import attention_checks
from .findings import FAILED, WARNING, Check, Finding
from .folders import folder_checks
from .hub import hub_checks
from .invariants import LOADING, invariant_checks
from .machine import machine_checks
from .packages import import_checks, version_checks
from .sound import sound_checks
from .subject import UNUSABLE


def all_checks() -> list[Check]:
    """Return every check; those that others need come first."""
    return [
        *version_checks(),
        *import_checks(),
        *machine_checks(),
        *attention_checks(),
        *sound_checks(),
        *folder_checks(),
        *hub_checks(),
        *invariant_checks(),
    ]


def exit_status(findings: Sequence[Finding], strict: bool = False) -> int:
    """Return 1 if something failed, with `strict` also if there is a warning, else 0.

    Args:
        findings (`Sequence[Finding]`): Of an examination.
        strict (`bool`, *optional*, defaults to `False`): Let warnings count.
    """
    bad = {FAILED, WARNING} if strict else {FAILED}
    return int(any(finding.outcome.status in bad for finding in findings))


def unusable_checkpoint(findings: Sequence[Finding]) -> str | None:
    """Return why the checkpoint could not be loaded, if that is its fault and not the machine's."""
    loading = (finding.outcome for finding in findings if finding.name == LOADING)
    return next((outcome.found for outcome in loading if outcome.details.get(UNUSABLE)), None)
