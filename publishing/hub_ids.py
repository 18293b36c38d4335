"""Tell a name on the Hub from a folder of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_hub_id(name: Any) -> bool:
    """Return whether a name is of the form `ORG/NAME`; what looks like both is a folder if there is one."""
    return isinstance(name, str) and _HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def require_hub_ids(names: Iterable[str]) -> None:
    """Raise unless all names can be of repositories on the Hub.

    Raises:
        ValueError: One is of another form, or a folder.
    """
    for name in names:
        if not is_hub_id(name):
            raise ValueError(f"{name!r}: not a name on the Hub but a folder, it seems; give ORG/NAME.")
