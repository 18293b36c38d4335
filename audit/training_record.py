"""Read which perturbations and attacks a model was trained with; robustness to those is the weakest evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sdiareward.common.files import read_json_object
from sdiareward.training.augmentation import AugmentationSettings


def read_trained_with(model: str) -> dict[str, list[str]] | None:
    """Return the perturbations and attacks that the training pairs of a model went through.

    Args:
        model (`str`): Checkpoint folder; `train.py` writes a `run.json` into it.

    Returns:
        `dict[str, list[str]]`, *optional*: `nuisances` and `attacks` by name; None without a record.
    """
    path = Path(model) / "run.json"
    if not path.is_file():
        return None
    try:
        arguments: dict[str, Any] = read_json_object(path, "train again")["arguments"]
        names = {key: arguments.get(key, []) for key in ("augmentations", "hard_negatives")}
        settings = AugmentationSettings(**names)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # The record only adds a note to a verdict, and the folder may come from anywhere.
    return {"nuisances": list(settings.list_perturbations()), "attacks": list(settings.find_attacks())}
