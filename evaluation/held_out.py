"""Find out what the evaluated model heard in training, and which pairs are held out of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.checkpoint_io.training_record import describe_stages, hash_pairs, read_pairs_record, read_stages
from sdiareward.common.files import read_json_object
from sdiareward.pairs.labels import TRAINED_ON

from .summary import ALL_LEFT_OUT, ALL_SEEN, OVERLAPS, Labels, Record, Scores, describe_accuracy, name_synthesizers


if TYPE_CHECKING:
    import datasets

Names = set[str] | None


def find_heard(model: str | None, train_labels: Labels | None) -> tuple[Names, Names, str | None]:
    """Return synthesizers and sources of the training pairs, and who names them: the `model`, else the `split`."""
    heard, sources = _read_heard(model)
    if heard is not None or train_labels is None:
        return heard, sources, None if heard is None else "model"
    return name_synthesizers(train_labels), {label["source"] for label in train_labels}, "split"


def _read_heard(model: str | None) -> tuple[Names, Names]:
    """Return what all training stages heard, by `run.json`; the synthesizers else by the model's `results.json`."""
    if model is None:
        return None, None
    stages = read_stages(model)
    found = describe_stages(stages)
    names = (found["synthesizers"], found["sources"])
    heard, sources = (None if each is None else set(each) for each in names)
    path = Path(find_checkpoint(model)) / "results.json"
    if any(TRAINED_ON in stage for stage in stages) or not path.is_file():
        return heard, sources
    results = read_json_object(path, "get the checkpoint again")
    if (left_out := results.get("left_out_synthesizers")) is None:
        return None, sources
    spoken = {row["synthesizer"] for row in results["by_synthesizer"]}
    return spoken - {ALL_SEEN, ALL_LEFT_OUT, *left_out}, sources


def find_left_out_sources(labels: Labels, heard: Names) -> list[str] | None:
    """Return the sources of pairs that training did not have, in order; None if its sources are unknown."""
    return None if heard is None else sorted({label["source"] for label in labels if label["source"]} - heard)


def find_overlap(
    model: str, pairs: datasets.Dataset, labels: Labels, scores: Scores, options: Mapping[str, Any]
) -> Record | None:
    """Return the ids of pairs by what they share with training pairs, and the accuracy on `others`; None if unknown.

    A pair counts once: both sides were trained on, else its id, else the first that it shares in this order.
    """
    record = read_pairs_record(model)
    if record is None:
        return None
    known = {name: set(record[name]) for name in OVERLAPS if name != "content"}
    found: dict[str, list[str]] = {name: [] for name in OVERLAPS}
    for label, hashes in zip(labels, hash_pairs(pairs), strict=True):
        if len(hashes["side"]) == 2 and set(hashes["side"]) <= known["side"]:
            found["content"].append(label["pair_id"])
        elif name := next((name for name in known if known[name].intersection(hashes[name])), None):
            found[name].append(label["pair_id"])
    shared = {pair_id for names in found.values() for pair_id in names}
    others = describe_accuracy([label for label in labels if label["pair_id"] not in shared], scores, options)
    return {"num_pairs": len(labels), "is_whole": record["is_whole"], **found, "others": others}
