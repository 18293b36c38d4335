"""Read the settings of a judge, by its name, from a file of judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from sdiareward.common.llm import ChatSettings
from sdiareward.common.package import CONFIGS
from sdiareward.common.settings import make_settings, parse_yaml, read_mapping, require_mapping


JUDGES_FILE = CONFIGS / "judges.yaml"
# Seconds heard of each turn, as the reward model hears.
MAX_TURN_S = 30.0


@dataclass(config={"extra": "forbid"}, frozen=True)
class EndpointSettings(ChatSettings):
    """A judge behind an OpenAI-compatible endpoint whose model takes `input_audio`."""

    backend: ClassVar[str] = "endpoint"
    # The largest number of requests until an answer is valid.
    attempts: PositiveInt = 2
    max_turn_s: PositiveFloat = MAX_TURN_S
    # Folder of valid answers, which runs may share; by default `cache` in the run's folder.
    cache_dir: str | None = None
    # YAML of prompts that replace shipped ones.
    prompt_file: str | None = None


def read_judge(
    name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return the settings of a judge and their label in errors; `overrides` are `KEY=VALUE`, the value in YAML."""
    path = Path(judges_file or JUDGES_FILE)
    entries = read_mapping(path)
    if name not in entries:
        known = sorted(map(str, entries))
        raise ValueError(f"{path}: has no judge {name!r}; it has {known}. Add one, or name another file.")
    label = f"{path}: {name}"
    require_mapping(entries[name], label)
    values = dict(entries[name])
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ValueError(f"judge_options holds {text!r}; give KEY=VALUE, such as temperature=0.5.")
        values[key] = parse_yaml(value, f"judge_options: {text!r}")
    return values, label


def choose_endpoint(
    name: str,
    judges_file: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> EndpointSettings:
    """Read the settings of a judge, which must be an endpoint; `defaults` are of the settings that it leaves open."""
    values, label = read_judge(name, judges_file, overrides)
    backend = values.pop("backend", None)
    if backend != EndpointSettings.backend:
        raise ValueError(f"judge {name!r} has the backend {backend!r}; an endpoint is needed here.")
    return make_settings(EndpointSettings, {**defaults, **values}, label)
