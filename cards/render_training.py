"""Render the numbers of `docs/training.md` from `benchmarks/results`: `python -m sdiareward.cards.render_training`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table
from sdiareward.esdr_accuracy.pairwise import COLUMNS
from sdiareward.evaluation.summary import ALL_LEFT_OUT, interval, percent

from .render import not_measured, render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "training.md"
RESULTS = _ROOT / "benchmarks" / "results"
_WAYS = {
    "plain": "TRL's trainer, padded to nano's own 30 s",
    "plain_300_s": "the same, padded to 300 s",
    "ours_running_tower": "ours, audio tower in each step",
    "ours": "ours, audio encoded ahead",
}
_BASELINES = {"acoustic": "acoustic baseline", "text": "text baseline"}


def render_guide(guide: str, results: Path = RESULTS) -> str:
    """Return the guide with its numbers taken from the result files; a block without one says so.

    Args:
        guide (`str`): Text with the blocks `recipes`, `training_speed` and `gpu_training`.
        results (`Path`): Folder of the result files.
    """
    sources: dict[str, tuple[str, Callable[[Any], str]]] = {
        "recipes": ("recipes_nano", _recipes),
        "training_speed": ("training_speed", _speed),
        "gpu_training": ("gpu_training", _gpu),
    }
    return render_readme(guide, {name: _render(results, *source) for name, source in sources.items()})


def _render(results: Path, name: str, render: Callable[[Any], str]) -> str:
    path = results / f"{name}.json"
    if not path.exists():
        return not_measured(name.removesuffix("_nano"))
    return render(json.loads(path.read_text(encoding="utf-8")))


def _recipes(found: Mapping[str, Any]) -> str:
    first, *_ = found["runs"]
    unheard = _left_out(first)
    columns = [name for name in COLUMNS if first["accuracies"]["num_pairs"][name]]
    counts = [*(first["accuracies"]["num_pairs"][name] for name in columns), unheard["num_pairs"]]
    rows = [("pairs", "", *map(str, counts), "")]
    for run in found["runs"]:
        cells = [*(_accuracy(run["accuracies"], name) for name in columns), _share(_left_out(run)["model"])]
        rows.append((run["mode"], str(run["seed"]), *cells, f"{run['train_runtime_s'] / 60:.1f} min"))
    for name, title in _BASELINES.items():
        cells = [*(_accuracy(found["baselines"][name], column) for column in columns), _share(unheard[name])]
        rows.append((title, "", *cells, ""))
    heads = ("recipe", "seed", *(name.replace("_", " ") for name in columns), "modality, left out", "last start")
    ties = sum(run["accuracies"]["num_ties"]["overall_micro"] for run in found["runs"])
    cpu = found["cpu"]
    note = (
        "Percent, with 95% intervals by group of recordings; subsets without pairs are not shown. Left out of "
        f"training: {', '.join(first['left_out_synthesizers'])}. Last start: how long training took since; of a run "
        f"that was interrupted that is a part. Ties of all runs together: {ties}. {cpu['name']}, "
        f"{cpu['usable_cores']} cores, {cpu['torch_threads']} for torch."
    )
    return "\n".join([*render_table(heads, rows, num_left=2), "", note])


def _left_out(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was measured on the modality pairs of the synthesizers that training left out."""
    return next(
        row for row in run["by_synthesizer"] if (row["criterion"], row["synthesizer"]) == ("modality", ALL_LEFT_OUT)
    )


def _share(found: Mapping[str, Any]) -> str:
    return f"{percent(found['accuracy'])} ({interval(found['interval'])})"


def _accuracy(accuracies: Mapping[str, Any], column: str) -> str:
    return _share({"accuracy": accuracies[column], "interval": accuracies["interval"][column]})


def _speed(found: Mapping[str, Any]) -> str:
    rows = [
        (
            _WAYS[name],
            f"{median(times) / found['settings']['steps']:.2f} s",
            f"{found['tokens_per_second'][name]:,.0f}",
            *(f"{found['speedup'][name][way]:.1f}" if name in found["speedup"] else "" for way in list(_WAYS)[2:]),
            f"{found['first_epoch_speedup'][name]:.1f}" if name in found["first_epoch_speedup"] else "",
        )
        for name, times in found["seconds"].items()
    ]
    heads = (
        "how",
        "a step",
        "tokens a second",
        "faster: tower in each step",
        "audio encoded ahead",
        "in a first epoch, encoding included",
    )
    settings, cpu = found["settings"], found["cpu"]
    note = (
        f"{settings['steps']} steps of {found['pairs_a_step']} pairs, medians of {settings['rounds']} paired rounds; "
        f"tokens are those of the dialogues, without padding; {cpu['name']}, {cpu['usable_cores']} cores."
    )
    return "\n".join([*render_table(heads, rows), "", note])


def _gpu(found: Mapping[str, Any]) -> str:
    rows: list[tuple[str, ...]] = []
    for size, modes in found["sizes"].items():
        for mode, run in modes.items():
            if "seconds" in run:
                peak = f"{run['peak_bytes'] / 2**30:.1f} GiB" if "peak_bytes" in run else ""
                speed = (f"{median(run['seconds']):.3f} s", f"{run['tokens_per_second']:,.0f}")
                rows.append((f"{size.upper()}, {mode}", *speed, f"{run['utilisation']:.0%}", peak))
    heads = ("model", "a step", "tokens a second", "of the speed of a matrix product", "peak memory")
    note = f"{found['settings']['pairs']} pairs a step, {found['dtype']}, {found['device']['name']}."
    return "\n".join([*render_table(heads, rows), "", note])


def main() -> None:
    """Render the guide in place."""
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
