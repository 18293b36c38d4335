"""What was skipped, and why: one type for every room."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Skipped:
    item: str  # A pair, a row, a file, a segment with its times.
    kind: str  # A `snake_case` word that a summary counts by, such as "missing_audio".
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def explain(self) -> dict[str, str]:
        """Return `kind` and `reason`, for a record that identifies the item by other fields."""
        return {"kind": self.kind, "reason": self.reason}
