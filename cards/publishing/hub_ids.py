"""Distinguish names on the Hub from local folders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_hub_id(name: Any) -> bool:
    """Return whether a name has the form `ORG/NAME` and is not an existing folder."""
    return isinstance(name, str) and _HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def require_hub_ids(names: Iterable[str]) -> None:
    """Raise unless all names can be names on the Hub.

    Raises:
        ValueError: A name has another form, or is a folder.
    """
    for name in names:
        if not is_hub_id(name):
            raise ValueError(f"{name!r}: seems to be a folder, not a name on the Hub; give ORG/NAME.")
