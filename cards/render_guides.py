"""Render the numbers of `docs/validity.md` and `docs/quickstart.md`: `python -m sdiareward.cards.render_guides`.

They come from the nano checkpoint's evaluation, from the benchmarks' results, and from scoring the examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table
from sdiareward.common.package_files import NANO
from sdiareward.evaluation.summary import ALL_LEFT_OUT, ALL_SEEN, interval, percent

from .render import EXAMPLES, render_readme


_ROOT = Path(__file__).resolve().parent.parent
VALIDITY, QUICKSTART = _ROOT / "docs" / "validity.md", _ROOT / "docs" / "quickstart.md"
RESULTS = NANO / "results.json"
CHANNEL = _ROOT / "benchmarks" / "channel_matching.json"
CALIBRATION = _ROOT / "benchmarks" / "results" / "calibration.json"
_SCORERS = ("model", "acoustic", "text")
_KINDS = {ALL_SEEN: "heard in training", ALL_LEFT_OUT: "left out of training"}


def render_validity(guide: str) -> str:
    """Return the guide to validity with its numbers taken from the result files.

    Args:
        guide (`str`): Text with the blocks `beside`, `channel` and `failures`.
    """
    results, channel, calibration = (
        json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, CHANNEL, CALIBRATION)
    )
    blocks = {
        "beside": render_beside(results),
        "channel": render_channel(channel["acoustic_baseline"]),
        "failures": render_failures(results, calibration),
    }
    return render_readme(guide, blocks)


def render_beside(results: Mapping[str, Any]) -> str:
    """Return model and baselines side by side, on synthesizers heard in training and left out of it.

    Args:
        results (`Mapping`): What `eval.py` wrote.
    """
    rows = []
    for row in results["by_synthesizer"]:
        if row["synthesizer"] in _KINDS:
            counts = [row["num_pairs"], row["model"]["num_groups"]]
            found = [f"{percent(row[name]['accuracy'])} ({interval(row[name]['interval'])})" for name in _SCORERS]
            rows.append([row["criterion"], _KINDS[row["synthesizer"]], *counts, *found])
    return "\n".join(render_table(["criterion", "synthesizers", "pairs", "groups", *_SCORERS], rows, num_left=2))


def render_channel(found: Mapping[str, Any]) -> str:
    """Return the acoustic baseline's accuracy with and without one channel for both sides.

    Args:
        found (`Mapping`): `matched` and `unmatched`, each by synthesizer, from `benchmarks.channel_matching`.
    """
    rows = [
        [name, found["unmatched"][name]["num_pairs"], percent(found["unmatched"][name]["accuracy"]), percent(accuracy)]
        for name, accuracy in ((name, entry["accuracy"]) for name, entry in found["matched"].items())
    ]
    return "\n".join(render_table(["synthesizer", "pairs", "as recorded", "one channel"], rows))


def render_failures(results: Mapping[str, Any], calibration: Mapping[str, Any]) -> str:
    """Return what is known to fail, as a list.

    Args:
        results (`Mapping`): What `eval.py` wrote.
        calibration (`Mapping`): What `benchmarks.calibration` wrote.
    """
    accuracies = results["accuracies"]
    model = accuracies["model"]
    by_subset = [
        f"{name} {model['num_pairs'][name] - model['num_correct'][name]} of {model['num_pairs'][name]} pairs, from "
        f"{model['num_groups'][name]} recordings or scripts"
        for name in ("semi_wild", "scripted", "colloquialness")
        if model["num_pairs"][name]
    ]
    reward = calibration["methods"]["reward"]
    lines = [
        f"**Wrong pairs.** {'; '.join(by_subset)}. Few recordings weigh little, however many pairs come of them.",
        f"**No evidence of listening on `colloquialness`.** A bag of words is right on "
        f"{percent(accuracies['text']['colloquialness'])}% of its pairs, the spectrum on "
        f"{percent(accuracies['acoustic']['colloquialness'])}%: the two texts differ in words and in length.",
        f"**The spectrum still tells much.** On modality pairs the acoustic baseline is right on "
        f"{percent(accuracies['acoustic']['modality_micro'])}%, the text baseline ties on "
        f"{accuracies['text']['num_ties']['modality_micro']} of {accuracies['text']['num_pairs']['modality_micro']}.",
        f"**Thresholds from elsewhere.** One found on another subset loses {100 * reward['mean_loss']:.1f} points of "
        f"balanced accuracy on average, {100 * reward['worst_loss']:.1f} at worst.",
    ]
    if missing := ", ".join(model["missing_subsets"]):
        lines.append(f"**Missing.** No pairs of {missing}: nothing is known there.")
    return "\n".join(f"- {line}" for line in lines)


def render_quickstart(guide: str) -> str:
    """Return the quick start with what its command prints, by running it.

    Args:
        guide (`str`): Text with the block `score`.
    """
    import contextlib
    import io

    from sdiareward.cli import main as run

    command = ["score", *EXAMPLES, "--criterion", "modality"]
    printed = io.StringIO()
    with contextlib.chdir(_ROOT), contextlib.redirect_stdout(printed):
        run(command)
    return render_readme(guide, {"score": f"```console\n$ sdiareward {' '.join(command)}\n{printed.getvalue()}```"})


def main() -> None:
    """Render both guides."""
    for path, render in ((VALIDITY, render_validity), (QUICKSTART, render_quickstart)):
        write_file(path, render(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
