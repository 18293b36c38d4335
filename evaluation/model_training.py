"""Find out what the evaluated model heard in training, from the files beside its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.checkpoint_io.training_record import describe_stages, hash_pairs, read_pairs_record, read_stages
from sdiareward.common.files import read_json_object
from sdiareward.pairs.labels import TRAINED_ON

from .summary import ALL_LEFT_OUT, ALL_SEEN, OVERLAPS, Labels, Scores, describe_accuracy


if TYPE_CHECKING:
    import datasets


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


def find_overlap(
    model: str, pairs: datasets.Dataset, labels: Labels, scores: Scores, options: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the ids of pairs by what they share with training pairs, and the accuracy on `others`; None if unknown.

    A pair counts once: both sides were trained on, else its id, else the first that it shares in this order.
    """
    record = read_pairs_record(model)
    if record is None:
        return None
    order = [name for name in OVERLAPS if name != "content"]
    known = {name: set(record[name]) for name in order}
    found: dict[str, list[str]] = {name: [] for name in OVERLAPS}
    for label, hashes in zip(labels, hash_pairs(pairs), strict=True):
        in_training = {name: known[name].intersection(of_pair) for name, of_pair in hashes.items()}
        if len(hashes["side"]) == 2 and set(hashes["side"]) <= known["side"]:
            found["content"].append(label["pair_id"])
        elif name := next((name for name in order if in_training[name]), None):
            found[name].append(label["pair_id"])
    shared = {pair_id for names in found.values() for pair_id in names}
    others = describe_accuracy([label for label in labels if label["pair_id"] not in shared], scores, options)
    return {"num_pairs": len(labels), "is_whole": record["is_whole"], **found, "others": others}
