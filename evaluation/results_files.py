"""Read the files of a finished evaluation, for what is made from its scores afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.files import JsonLines, is_number, read_json_object
from sdiareward.common.package_files import NANO
from sdiareward.pairs.schema import SIDES


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation; `run` holds what the scores depend on, `config` the arguments of `eval.py`."""

    folder: Path
    scores: list[dict[str, Any]]
    run: dict[str, Any]
    config: dict[str, Any]
    # As in `results.json`: `overlap`, where it is known.
    training: dict[str, Any] = field(default_factory=dict)


def read_evaluation(folder: str | Path, *, finite: bool = True) -> Evaluation:
    """Read an evaluation that `eval.py` finished; `finite` requires finite rewards."""
    folder = Path(folder)
    for name in ("scores.jsonl", "results.json"):
        # Results come last, so a folder that has them is complete.
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: has no {name}; give the output_dir of a finished evaluation.")
    scores = JsonLines(folder / "scores.jsonl").read()
    if not scores:
        raise ValueError(f"{folder}: scores.jsonl holds no pair; evaluate at least one.")
    for record in scores:
        _check_record(record, folder, finite)
    results = read_json_object(folder / "results.json", "evaluate again")
    training = {name: results[name] for name in ("overlap",) if name in results}
    return Evaluation(folder, scores, results.get("run", {}), results.get("config", {}), training)


def _is_reward(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _check_record(record: Mapping[str, Any], folder: Path, finite: bool) -> None:
    if not isinstance(record.get("pair_id"), str) or not all(_is_reward(record.get(side, "")) for side in SIDES):
        raise ValueError(
            f"{folder}: scores.jsonl has a line without a pair_id or the rewards of both sides; take it out."
        )
    if finite and not all(is_number(record[side]) for side in SIDES):
        raise ValueError(
            f"{folder}: pair {record['pair_id']} has a reward that is missing or not finite; take its line out of "
            "the file."
        )


def name_scorer(config: Mapping[str, Any]) -> str:
    """Return the name of the evaluated model, or `judge` and the name of the judge."""
    return name_model(str(config["model"])) if config.get("judge") is None else f"judge {config['judge']}"


def name_model(model: str) -> str:
    """Return a checkpoint's name on pages; the package's own has another path on each machine."""
    return NANO.name if Path(model) == NANO else model
