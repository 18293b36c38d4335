"""One record of what a run skipped and why, for every kind of item."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Skipped:
    """An item that a run could not use.

    Args:
        item (`str`): Its id, such as a `pair_id` or `"row 7"`.
        kind (`str`): What went wrong, in one word that reports can count, such as `"unreadable"`.
        reason (`str`): The error in one line.
    """

    item: str
    kind: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)
