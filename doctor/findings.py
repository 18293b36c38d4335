"""The form of a check and of what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


PASSED, WARNING, FAILED, SKIPPED = "passed", "warning", "failed", "skipped"
STATUSES = (PASSED, WARNING, FAILED, SKIPPED)


@dataclass(frozen=True)
class Settings:
    """What is measured, and where; serves as a key.

    Args:
        model (`str`): Folder or Hub name of the checkpoint.
        device (`str`, *optional*): Where it computes; by default an accelerator if there is one.
    """

    model: str
    device: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What a check found.

    Args:
        status (`str`): One of `STATUSES`.
        found (`str`): What was found, in one line.
        remedy (`str`, *optional*): What to do about it.
        measured (`float`, *optional*): The number that was measured, if it is one that has a limit.
        limit (`float`, *optional*): The largest that passes.
        details (`dict`): Further values by name, of the types that JSON has.
    """

    status: str
    found: str
    remedy: str | None = None
    measured: float | None = None
    limit: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """Something to look at.

    Args:
        section (`str`): Heading of the report.
        name (`str`): Unique among all checks.
        function (`Callable`): Makes an [`Outcome`] of [`Settings`].
    """

    section: str
    name: str
    function: Callable[[Settings], Outcome]


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Args:
        section (`str`): Of the check.
        name (`str`): Of the check.
        seconds (`float`): How long it took.
        outcome ([`Outcome`]): What it found.
    """

    section: str
    name: str
    seconds: float
    outcome: Outcome

    def as_record(self) -> dict[str, Any]:
        """Return the finding as it is written to the JSON file."""
        head = {"section": self.section, "name": self.name, "seconds": round(self.seconds, 3)}
        return head | asdict(self.outcome)
