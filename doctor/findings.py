"""The form of a check and of what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


PASSED, WARNING, FAILED, SKIPPED = "passed", "warning", "failed", "skipped"
STATUSES = (PASSED, WARNING, FAILED, SKIPPED)


@dataclass(frozen=True)
class Settings:
    """What the user said; pickles, and serves as a key.

    Args:
        model (`str`): Folder or Hub name of the checkpoint that is measured.
        device (`str`, *optional*): Where it computes; by default an accelerator if there is one.
        offline (`bool`): Whether the Hub is not to be asked.
        stdout_encoding (`str`, *optional*): Encoding of the stream that the user reads.
    """

    model: str
    device: str | None = None
    offline: bool = False
    stdout_encoding: str | None = None


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
    """A check; pickles.

    Args:
        section (`str`): Heading that it stands under.
        name (`str`): Unlike that of any other check.
        function (`Callable`): Makes an [`Outcome`] of [`Settings`]; a function of a module, or a `partial` of one.
        needs (`tuple[str, ...]`): Names of checks without which it makes no sense: it is skipped if one of them failed
            or was skipped itself.
        limit_s (`float`): Seconds after which it counts as hung.
    """

    section: str
    name: str
    function: Callable[[Settings], Outcome]
    needs: tuple[str, ...] = ()
    limit_s: float = 60.0


@dataclass(frozen=True)
class Finding:
    """What became of a check.

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
        """Return the finding as it stands in the JSON file."""
        head = {"section": self.section, "name": self.name, "seconds": round(self.seconds, 3)}
        return head | asdict(self.outcome)


def reason_of(error: BaseException) -> str:
    """Return what was raised in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
