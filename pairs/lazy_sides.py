"""The dialogues of pairs as a sequence that reads a side when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .loading import turns_to_messages
from .schema import SIDES


if TYPE_CHECKING:
    import datasets


class Sides(Sequence[Any]):
    """The dialogues of some pairs as messages, read when asked for: pair k's chosen is 2k, its rejected 2k + 1.

    Args:
        pairs (`datasets.Dataset`): Pairs as `loading.load_pairs` gives them.
        rows (`Sequence[int]`): Which of them.
    """

    def __init__(self, pairs: datasets.Dataset, rows: Sequence[int]):
        self.pairs = pairs
        self.rows = rows

    def __len__(self) -> int:
        return len(SIDES) * len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"side {index} of {len(self)}")
        return turns_to_messages(self.pairs[self.rows[index // 2]][SIDES[index % 2]])
