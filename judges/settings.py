"""Files of judges: the settings of a judge by its name, and those of every endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sdiareward.common.package_files import CONFIGS
from sdiareward.common.yaml_files import parse_yaml
from sdiareward.dataset_builder.settings import make_settings, read_mapping
from sdiareward.llm.settings import ChatSettings


JUDGES_FILE = CONFIGS / "judges.yaml"
# The reward model hears as much of each turn.
MAX_TURN_S = 30.0


@dataclass(frozen=True)
class EndpointSettings(ChatSettings):
    """A judge behind an OpenAI-compatible endpoint whose model takes `input_audio`.

    Args:
        attempts (`int`, *optional*, defaults to 3): How often a question is asked until its answer is valid.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds heard of each turn.
        cache_dir (`str`, *optional*): Where valid answers are kept; by default `cache` in the run's folder. Runs may
            share one.
    """

    backend: ClassVar[str] = "endpoint"
    attempts: int = 3
    max_turn_s: float = MAX_TURN_S
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, attempts=1)


def check_numbers(settings: Any, **least: float) -> None:
    """Check the numbers of a judge's settings.

    Args:
        settings: A dataclass with `max_turn_s`, which must be more than 0.
        **least (`float`): The smallest value of each other field to check.

    Raises:
        ValueError: A number is too small.
    """
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise ValueError(f"{name} is {getattr(settings, name)}; it must be at least {bound}.")
    if settings.max_turn_s <= 0:
        raise ValueError(f"max_turn_s is {settings.max_turn_s}; it must be more than 0.")


def read_judge(
    name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Read the settings of a judge from a file of judges.

    Args:
        name (`str`): A key of the file.
        judges_file (`str` or `Path`, *optional*): YAML, settings by name of judge, each with a `backend`; by default
            `configs/judges.yaml` of the package.
        overrides (`Sequence[str]`, *optional*): `KEY=VALUE` each, the value in YAML; they override the file.

    Returns:
        `tuple[dict, str]`: The settings, and the name of their place for error texts.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no such judge, or an override is not of that form.
    """
    path = Path(judges_file or JUDGES_FILE)
    entries = read_mapping(path)
    if name not in entries:
        known = sorted(map(str, entries))
        raise ValueError(f"{path}: has no judge {name!r}; it has {known}. Add one, or name another file.")
    label = f"{path}: {name}"
    if not isinstance(entries[name], Mapping):
        raise ValueError(f"{label}: holds {type(entries[name]).__name__}; a mapping of settings is needed.")
    return {**entries[name], **_read_overrides(overrides)}, label


def _read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ValueError(f"judge_options holds {text!r}; give KEY=VALUE, such as temperature=0.5.")
        found[key] = parse_yaml(value, f"judge_options: {text!r}")
    return found


def choose_endpoint(
    name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()
) -> EndpointSettings:
    """Read the settings of an endpoint; see `read_judge`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no such judge, a setting is invalid, or the judge is no endpoint.
    """
    values, label = read_judge(name, judges_file, overrides)
    backend = values.pop("backend", None)
    if backend != EndpointSettings.backend:
        raise ValueError(f"judge {name!r} has the backend {backend!r}; an endpoint is needed here.")
    return make_settings(EndpointSettings, values, label)
