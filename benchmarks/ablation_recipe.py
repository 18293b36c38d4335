"""Read the recipe of `train.py` that the ablations start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trl import RewardConfig

from sdiareward.common.settings import read_mapping
from sdiareward.common.yaml_files import parse_yaml
from sdiareward.training.arguments import TrainArguments


@dataclass(frozen=True)
class Recipe:
    """A recipe of `train.py`, read from its YAML.

    Args:
        arguments (`dict`): Fields of `TrainArguments`.
        training (`dict`): Fields of `trl.RewardConfig`.
    """

    arguments: dict[str, Any]
    training: dict[str, Any]

    @property
    def coefficient(self) -> float:
        """Lambda of the recipe."""
        return float(self.training.get("center_rewards_coefficient") or 0.0)


def read_recipe(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path (`Path`): Its YAML.
        changes (`Sequence[str]`, *optional*): `KEY=VALUE`; they override the file.

    Raises:
        ValueError: A key is unknown to `train.py`, or a change is not of that form.
    """
    values = read_mapping(path)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"{change!r} is no change of a recipe; give KEY=VALUE.")
        values[key] = parse_yaml(value, change)
    own, of_trl = ({each.name for each in fields(kind)} for kind in (TrainArguments, RewardConfig))
    unknown = sorted(set(values) - own - of_trl)
    if unknown:
        raise ValueError(f"{path}: {', '.join(unknown)} is no key of a recipe; train.py --help lists them.")
    arguments = {key: value for key, value in values.items() if key in own}
    # Not part of a run's key: its output folder and its seed.
    training = {key: value for key, value in values.items() if key not in own | {"output_dir", "seed"}}
    return Recipe(arguments, training)
