"""Find out what the evaluated model heard in training, from the files beside its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.checkpoint_io.builtin import find_checkpoint
from sdiareward.common.files import read_json_object
from sdiareward.pairs.labels import TRAINED_ON

from .summary import ALL_LEFT_OUT, ALL_SEEN


_REMEDY = "get the checkpoint again"


def read_heard_synthesizers(model: str | None) -> set[str] | None:
    """Return the synthesizers that a model heard in training; None if its folder does not tell.

    Args:
        model (`str`, *optional*): Checkpoint. Its `run.json` names them, else the `results.json` of its own evaluation
            tells the synthesizers that its training heard from those that were held out.
    """
    if model is None:
        return None
    folder = Path(find_checkpoint(model))
    run, results = (_read(folder / name) for name in ("run.json", "results.json"))
    if isinstance(trained_on := run.get(TRAINED_ON), Mapping):
        return None if trained_on["synthesizers"] is None else set(trained_on["synthesizers"])
    if results.get("left_out_synthesizers") is None:
        return None
    spoken = {row["synthesizer"] for row in results["by_synthesizer"]} - {ALL_SEEN, ALL_LEFT_OUT}
    return spoken - set(results["left_out_synthesizers"])


def read_heard_sources(model: str | None) -> set[str] | None:
    """Return the sources of the pairs that a model was trained on; None if its `run.json` does not tell.

    Args:
        model (`str`, *optional*): Checkpoint.
    """
    trained_on = {} if model is None else _read(Path(find_checkpoint(model)) / "run.json").get(TRAINED_ON)
    sources = trained_on.get("sources") if isinstance(trained_on, Mapping) else None
    return None if sources is None else set(sources)


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path, _REMEDY) if path.is_file() else {}
