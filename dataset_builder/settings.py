"""Read the builder's YAML files into dataclasses; a key that nobody knows is an error, not a shrug."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from sdiareward.common.yaml_files import read_yaml
from sdiareward.perturbations.channel import ChannelSettings

from .builder import BuildConfig, SourceConfig
from .pairing.pairing import SynthesizerSpec


_Settings = TypeVar("_Settings")


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not YAML, or holds something else than a mapping.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: holds {type(values).__name__}; a mapping of settings is needed.")
    return values


def make_settings(kind: type[_Settings], values: Any, label: str) -> _Settings:
    """Make a settings dataclass of a mapping read from YAML; lists become tuples.

    Args:
        kind (`type`): The dataclass.
        values (`Mapping`): Its fields by name.
        label (`str`): What to call the mapping in an error: the file and the key.

    Raises:
        ValueError: `values` is no mapping, a key is unknown, a required one is missing, or a value is refused.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{label}: holds {type(values).__name__}; a mapping of settings is needed.")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(map(str, set(values) - set(known))):
        raise ValueError(f"{label}: unknown keys {unknown}; known are {sorted(known)}.")
    required = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise ValueError(f"{label}: keys {missing} are missing.")
    try:
        return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
    # A value of another kind fails in whatever the checks of the dataclass do with it.
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise ValueError(f"{label}: {error}") from error


def read_build_config(path: Path, overrides: Mapping[str, Any]) -> BuildConfig:
    """Read a build's YAML file.

    Args:
        path (`Path`): The file; its keys are the fields of `BuildConfig`. `pipeline` may be a mapping of settings or
            the name of a YAML file beside it.
        overrides (`Mapping`): Values that replace the file's; None is ignored.

    Raises:
        FileNotFoundError: The file, or the pipeline's, is not there.
        ValueError: A key is unknown or missing, or a value is out of range.
    """
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
    if values.get("channel") is not None:
        values["channel"] = make_settings(ChannelSettings, values["channel"], f"{path}: channel")
    if isinstance(values.get("pipeline"), str):
        values["pipeline"] = read_mapping(path.parent / values["pipeline"])
    return make_settings(BuildConfig, values, str(path))
