"""Show what models follow, family by family of pairs, beside the baselines: from evaluations that are finished.

    python -m benchmarks.families --dataset runs/family_pairs.parquet \
        --evaluations small=runs/small_eval nano=runs/nano_eval

An evaluation by `sdiareward eval` of each model, or several of other pairs each, is read with the labels of the data
set, which `benchmarks.family_pairs` draws. Written to `benchmarks/results/families.json`: accuracy with its interval
and ties of every scorer, by criterion, family and kind, and by whether the voices are recorded, synthetic, or of two
synthesizers; for pairs of scripts also the best of all counts (`surface_counts`), chosen on the very pairs. Beside it
the rank correlation of reward and number of words among the dialogues of one style and one voice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.provenance import write_provenance
from sdiareward.dataset_builder.pairing.surface_counts import measure_shares
from sdiareward.evaluation.baselines import KINDS
from sdiareward.evaluation.results_files import read_evaluation
from sdiareward.evaluation.summary import compute_accuracy, select_column
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import SIDES


RESULT = Path(__file__).parent / "results" / "families.json"
# Dialogues of one style and voice below which their correlation is not shown.
_MIN_DIALOGUES = 10
_NOT_GIVEN = (None, "", "Unknown", "Inform")


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: Path = field(metadata={"help": "folder of the pairs, for their labels and texts"})
    evaluations: list[str] = field(metadata={"help": "NAME=FOLDER, several of a name for several evaluations"})
    runs: list[str] = field(
        default_factory=list, metadata={"help": "NAME=run.json of the training of a model, for how much it has seen"}
    )
    split: str = field(default="test", metadata={"help": "split that was evaluated (default: test)"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def name_voices(label: Mapping[str, Any]) -> str:
    """Return how both sides of a pair were spoken; of a pair with one recorded side, the synthesizer of the other."""
    synthesizer = str(label["synthesizer"])
    if label["criterion"] == "modality" or synthesizer == "world":
        return synthesizer
    if synthesizer == "recording":
        return "recorded"
    return "two synthesizers" if "+" in synthesizer else "one synthesizer"


def name_kind(label: Mapping[str, Any]) -> str:
    """Return the kind of a pair, with its family where the criterion is `joint`; the source where it has no kind."""
    parts = (label["primary"], label["secondary"]) if label["criterion"] == "joint" else (label["secondary"],)
    return ": ".join(part for part in parts if part not in _NOT_GIVEN) or label["source"]


def read_labels(dataset: Path, split: str) -> dict[str, dict[str, Any]]:
    """Return the labels of each pair, and the texts of its sides, by `pair_id`."""
    pairs = load_pairs(dataset, split)
    labels = {}
    for row in pairs:
        texts = {side: [{"content": turn["text"] or ""} for turn in row[side]] for side in SIDES}
        names = ("criterion", "subset", "source", "primary", "secondary", "synthesizer", "group_id")
        labels[row["pair_id"]] = {"pair_id": row["pair_id"], **{name: row[name] for name in names}, "texts": texts}
    return labels


def read_scores(evaluations: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the rewards by name of the scorer and `pair_id`."""
    found: dict[str, dict[str, Any]] = {}
    for given in evaluations:
        name, _, folder = given.partition("=")
        scores = {record["pair_id"]: record for record in read_evaluation(folder).scores}
        found[name] = scores | found.get(name, {})
        for kind in KINDS:
            path = Path(folder) / f"{kind}.json"
            if path.exists():
                kept = json.loads(path.read_text(encoding="utf-8"))["scores"]
                found[kind] = kept | found.get(kind, {})
    return found


def read_dtypes(evaluations: Sequence[str]) -> dict[str, list[str]]:
    """Return how each scorer computed, by its name: "checkpoint" for the dtype of the checkpoint."""
    found: dict[str, set[str]] = {}
    for given in evaluations:
        name, _, folder = given.partition("=")
        found.setdefault(name, set()).add(read_evaluation(folder).config.get("dtype") or "checkpoint")
    return {name: sorted(dtypes) for name, dtypes in found.items()}


def read_steps(runs: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the steps and the pairs of each training, by its name."""
    found = {}
    for given in runs:
        name, _, path = given.partition("=")
        run = json.loads(Path(path).read_text(encoding="utf-8"))
        size = run["training"]["per_device_train_batch_size"] * run["training"]["gradient_accumulation_steps"]
        steps = run["history"][-1]["step"]
        found[name] = {"steps": steps, "pairs": steps * size}
    return found


def describe(labels: Sequence[Mapping[str, Any]], scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of pairs, the accuracy of every scorer, and the best count where the texts differ."""
    found: dict[str, Any] = {"num_pairs": len(labels)}
    for name, own in scores.items():
        column = select_column(compute_accuracy(labels, own, {"nan": "wrong"}), "overall_micro")
        found[name] = column
    texts = [(label["texts"][SIDES[0]], label["texts"][SIDES[1]]) for label in labels]
    if all(chosen != rejected for chosen, rejected in texts):
        count, share = max(measure_shares(texts).items(), key=lambda item: item[1])
        found["best_count"] = {"name": count, "accuracy": share}
    return found


def group(labels: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    """Return the pairs by criterion, kind and voices; and all of a kind together, where they have several voices."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for label in labels:
        kind = name_kind(label)
        voices = name_voices(label)
        keys = [(label["criterion"], kind, voices), (label["criterion"], kind, "all")]
        if voices == "two synthesizers":
            rejected = str(label["synthesizer"]).partition("+")[2]
            keys.append((label["criterion"], "across voices", f"rejected side by {rejected}"))
        for key in dict.fromkeys(keys):
            groups.setdefault(key, []).append(label)
    num_voices = Counter(key[:2] for key in groups)
    # "all", and the only voices.
    return {key: groups[key] for key in sorted(groups) if key[2] != "all" or num_voices[key[:2]] > 2}


def measure(labels: Mapping[str, Mapping[str, Any]], scores: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each group of the pairs that every scorer has scored."""
    common = set.intersection(*(set(own) for own in scores.values())) & set(labels)
    rows = []
    for (criterion, kind, voices), members in group([labels[name] for name in sorted(common)]).items():
        rows.append({"criterion": criterion, "kind": kind, "voices": voices, **describe(members, scores)})
    return rows


def correlate_length(
    labels: Mapping[str, Mapping[str, Any]], scores: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rank correlation of reward and words among the sides of one style and one voice, of every model."""
    from scipy.stats import spearmanr

    models = {name: own for name, own in scores.items() if name not in KINDS}
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted(set.intersection(*map(set, models.values())) & set(labels)):
        if labels[name]["criterion"] != "colloquialness":
            continue
        first, _, second = str(labels[name]["synthesizer"]).partition("+")
        for side, voice in zip(SIDES, (first, second or first), strict=True):
            groups.setdefault((side, voice), []).append(name)
    rows = []
    for (side, voice), members in sorted(groups.items()):
        words = [sum(len(turn["content"].split()) for turn in labels[name]["texts"][side]) for name in members]
        if len(members) < _MIN_DIALOGUES:
            continue
        found = {
            name: round(float(spearmanr(words, [own[each][side] for each in members])[0]), 4)
            for name, own in models.items()
        }
        rows.append({"side": side, "voice": voice, "num_dialogues": len(members), "spearman": found})
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Read the evaluations and write the result."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.families", description=__doc__)
    scores = read_scores(args.evaluations)
    labels = read_labels(args.dataset, args.split)
    rows, length = measure(labels, scores), correlate_length(labels, scores)
    dtypes = read_dtypes(args.evaluations)
    seen = read_steps(args.runs)
    write_provenance(args.output, scorers=list(scores), dtypes=dtypes, seen=seen, rows=rows, length=length)
    for row in rows:
        shares = "  ".join(f"{name} {100 * row[name]['accuracy']:.1f}" for name in scores)
        print(f"{row['criterion']}, {row['kind']}, {row['voices']}: {row['num_pairs']} pairs, {shares}")


if __name__ == "__main__":
    main()
