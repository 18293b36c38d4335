"""Read the YAML file of a build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.settings import make_settings, read_mapping, require_mapping
from sdiareward.perturbations.channel import ChannelSettings

from .builder import BuildConfig, SourceConfig
from .pairing.families import FamilySpec
from .pairing.pairing import SynthesizerSpec


def read_build_config(path: Path, overrides: Mapping[str, Any]) -> BuildConfig:
    """Read a build's YAML file; `pipeline` may name a file beside it, and an override of None is ignored."""
    values = read_mapping(path) | {key: value for key, value in overrides.items() if value is not None}
    for key, kind in (("sources", list), ("synthesizers", dict)):
        if not values.get(key):
            raise ValueError(f"{path}: {key} is empty; name at least one.")
        if not isinstance(values[key], kind):
            raise ValueError(f"{path}: {key} is a {type(values[key]).__name__}; a {kind.__name__} is needed.")
    values["sources"] = tuple(make_settings(SourceConfig, entry, f"{path}: sources") for entry in values["sources"])
    values["synthesizers"] = {
        criterion: make_settings(SynthesizerSpec, entry, f"{path}: synthesizers.{criterion}")
        for criterion, entry in values["synthesizers"].items()
    }
    require_mapping(families := values.get("families") or {}, f"{path}: families")
    values["families"] = {
        family: make_settings(FamilySpec, entry or {}, f"{path}: families.{family}")
        for family, entry in families.items()
    }
    if values.get("channel") is not None:
        values["channel"] = make_settings(ChannelSettings, values["channel"], f"{path}: channel")
    if isinstance(values.get("pipeline"), str):
        values["pipeline"] = read_mapping(path.parent / values["pipeline"])
    return make_settings(BuildConfig, values, str(path))
