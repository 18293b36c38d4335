"""Claim a folder for one run, so that results of another model or other pairs are never mixed into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import read_json_object, write_file


def claim_run_dir(folder: Path, identity: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "identity.json"
    if not path.exists():
        # All processes of a run claim its folder.
        write_file(path, json.dumps(dict(identity), indent=2) + "\n", is_shared=True)
        return
    before = read_json_object(path, "use another output_dir or delete it")
    different = [name for name in {**before, **identity} if before.get(name) != identity.get(name)]
    if different:
        changes = "; ".join(f"{name} was {before.get(name)!r}, is {identity.get(name)!r}" for name in different)
        raise ValueError(f"{folder} holds results of another run ({changes}); use another output_dir or delete it.")
