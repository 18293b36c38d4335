"""What was skipped, and why: one type for every room."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Skipped:
    """Something that was skipped, for the report."""

    item: str
    kind: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    def explain(self) -> dict[str, str]:
        """Return the `kind` and the `reason`, for a record that identifies the item by other fields."""
        return {"kind": self.kind, "reason": self.reason}
