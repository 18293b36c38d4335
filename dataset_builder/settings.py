"""Read the YAML file of a build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.settings import make_settings, read_mapping

from .builder import BuildConfig


def read_build_config(path: Path, overrides: Mapping[str, Any]) -> BuildConfig:
    """Read a build's YAML file; `pipeline` may name a file beside it, and an override of None is ignored."""
    values = read_mapping(path) | {key: value for key, value in overrides.items() if value is not None}
    for key in ("sources", "synthesizers"):
        if not values.get(key):
            raise ValueError(f"{path}: {key} is empty; name at least one.")
    if isinstance(families := values.get("families") or {}, Mapping):
        values["families"] = {name: entry or {} for name, entry in families.items()}
    if isinstance(values.get("pipeline"), str):
        values["pipeline"] = read_mapping(path.parent / values["pipeline"])
    return make_settings(BuildConfig, values, str(path))
