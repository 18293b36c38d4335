"""Find out what the evaluated model heard in training, from the files beside its checkpoint."""

from __future__ import annotations

from pathlib import Path

from sdiareward.checkpoint_io.builtin import find_checkpoint
from sdiareward.checkpoint_io.training_record import describe_stages, read_stages
from sdiareward.common.files import read_json_object
from sdiareward.pairs.labels import TRAINED_ON

from .summary import ALL_LEFT_OUT, ALL_SEEN


def read_heard_synthesizers(model: str | None) -> set[str] | None:
    """Return the synthesizers of all training stages, from `run.json` or else the model's `results.json`, if known."""
    if model is None:
        return None
    stages = read_stages(model)
    if any(TRAINED_ON in stage for stage in stages):
        heard = describe_stages(stages)["synthesizers"]
        return None if heard is None else set(heard)
    path = Path(find_checkpoint(model)) / "results.json"
    results = read_json_object(path, "get the checkpoint again") if path.is_file() else {}
    if results.get("left_out_synthesizers") is None:
        return None
    spoken = {row["synthesizer"] for row in results["by_synthesizer"]} - {ALL_SEEN, ALL_LEFT_OUT}
    return spoken - set(results["left_out_synthesizers"])


def read_heard_sources(model: str | None) -> set[str] | None:
    """Return the sources of the pairs of all training stages; None if `run.json` does not record them."""
    sources = None if model is None else describe_stages(read_stages(model))["sources"]
    return None if sources is None else set(sources)
