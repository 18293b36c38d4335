"""Prompts by name: the shipped ones of `configs/prompts.yaml`, and files that replace some of them.

A prompt is used verbatim except for its placeholders: white space at its beginning and end changes the tokens and so
the reward or the answer. Only line ends are normalized to line feeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from sdiareward.common.files import read_json_object, read_text
from sdiareward.common.package import CONFIGS
from sdiareward.common.settings import read_mapping

from .schema import make_stable_id


SHIPPED = CONFIGS / "prompts.yaml"
# Placeholders without which an answer could not be asked for; the others of a shipped text are optional.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "annotation": ("primary_labels", "secondary_labels"),
    "script_writing_request": ("number", "topic"),
    "scenario_writing": ("fields", "rules"),
    "scenario_request": ("number", "topic"),
    "scenario_labels": ("categories", "category"),
    "scenario_rules_content": ("categories",),
    "scenario_rules_understanding": ("labels",),
    "scenario_rules_generation": ("category", "labels"),
    "scenario_rules_implicit": ("category", "labels"),
}
# Without it there is no system turn.
_MAY_BE_EMPTY = ("wavreward_system",)
_OF_REWARD_MODEL = "reward_"


@dataclass(frozen=True)
class PromptSet:
    """The shipped prompts, some of them replaced."""

    given: Mapping[str, str] = field(default_factory=dict)

    def read_template(self, name: str) -> str:
        return self.given.get(name, _read_shipped()[name])

    def fill(self, name: str, **values: Any) -> str:
        """Return a prompt with values in place of its placeholders; other values are ignored."""
        return Template(self.read_template(name)).substitute(values)

    def compute_version(self, *names: str) -> str:
        """Return a hash of the texts of some prompts, which changes with any of them."""
        return make_stable_id(*map(self.read_template, names))


@cache
def _read_shipped() -> dict[str, str]:
    return dict(read_mapping(SHIPPED))


def read_prompt_file(path: str | Path | None) -> PromptSet:
    """Read a YAML file in the form of `configs/prompts.yaml`; None stands for the shipped prompts."""
    if path is None:
        return PromptSet()
    given, shipped = read_mapping(Path(path)), _read_shipped()
    if unknown := sorted(map(str, set(given) - set(shipped))):
        raise ValueError(f"{path}: there are no prompts {unknown}; {SHIPPED.name} has {list(shipped)}.")
    for name, text in given.items():
        label = f"{path}: {name}"
        if not isinstance(text, str) or not (text.strip() or name in _MAY_BE_EMPTY):
            raise ValueError(f"{label} is {text!r}; give a text.")
        if not Template(text).is_valid():
            raise ValueError(f"{label} has a dollar sign that begins no placeholder; write $$ for a dollar sign.")
        found, allowed = (Template(each).get_identifiers() for each in (text, shipped[name]))
        if unknown := sorted(set(found) - set(allowed)):
            raise ValueError(f"{label} has placeholders {unknown}; it takes {allowed}. Write $$ for a dollar sign.")
        if missing := sorted(set(REQUIRED.get(name, ())) - set(found)):
            raise ValueError(f"{label} lacks the placeholders {missing}; write them as ${missing[0]}.")
    return PromptSet(given)


def read_prompts(path: str | Path) -> dict[str, str]:
    """Read the reward model's system prompt of each criterion; a file that is neither YAML nor JSON is one for all."""
    from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, validate_prompts

    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        given = read_prompt_file(path)
        names = [name for name in given.given if name.startswith(_OF_REWARD_MODEL)]
        prompts = {name.removeprefix(_OF_REWARD_MODEL): given.fill(name) for name in names}
        if not names:
            wanted = [name for name in _read_shipped() if name.startswith(_OF_REWARD_MODEL)]
            raise ValueError(f"{path}: has no prompt of a reward model; give some of {wanted}.")
    elif path.suffix == ".json":
        prompts = read_json_object(path, "give an object from criterion to system prompt")
    else:
        prompts = dict.fromkeys(DEFAULT_PROMPTS, read_text(path, "prompt file"))
    try:
        validate_prompts(prompts, "of a file")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return prompts
