"""What nano and small follow: by kind of pair, on an unseen source, and under attacks.

    python -m benchmarks.validity --known runs/open/sdiareward-open --unseen runs/unseen/sdiareward-unseen

All pairs that are few are taken (recorded conversations, altered melodies, hibari, the announcer), and
at most `--num_pairs` of each other criterion, kind and voice. Every scorer is measured on the same pairs; `best count`
is the surface count that orders most of the very pairs. `--output_dir` keeps finished evaluations and audits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from sdiareward import cli
from sdiareward.auditing.verdicts import FAIL, show_limit, show_value
from sdiareward.common.commands import parse_options
from sdiareward.common.files import write_file
from sdiareward.common.machine import write_provenance
from sdiareward.common.tables import format_interval, format_percent, render_markdown_table, render_table
from sdiareward.dataset_builder.pairing.surface_counts import measure_shares
from sdiareward.evaluation.baselines import KINDS
from sdiareward.evaluation.scores import read_evaluation
from sdiareward.evaluation.summary import compute_accuracy, select_column
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import CRITERIA, JOINT, SIDES, make_stable_id


RESULTS = Path(__file__).parent / "results"
_LABELS = ("pair_id", "criterion", "subset", "source", "primary", "secondary", "synthesizer", "group_id")
_WHOLE = ((JOINT, "recording"), (JOINT, "world"), ("modality", "hibari"))
_NOT_GIVEN = (None, "", "Unknown", "Inform")
# Percent that `small` had to reach, set before training.
GOALS = {
    (JOINT, "context: last_answer", "recorded"): 90,
    (JOINT, "context: near_answer", "recorded"): 85,
    (JOINT, "context: all_answers", "recorded"): 90,
    (JOINT, "context: order", "recorded"): 90,
    (JOINT, "context: repetition", "recorded"): 90,
    (JOINT, "context: transcript", "recorded"): 90,
    (JOINT, "fluency: shuffled_words", "one synthesizer"): 95,
    (JOINT, "fluency: cut_off", "one synthesizer"): 95,
    ("colloquialness", "balanced", "one synthesizer"): 90,
    ("colloquialness", "balanced", "two synthesizers"): 90,
    ("modality", "drascula", "hibari"): 90,
    ("modality", "drascula", "festival"): 90,
}
Labels = Mapping[str, Any]
Scores = Mapping[str, Mapping[str, Any]]


@dataclass(kw_only=True)
class Arguments:
    known: str = field(metadata={"help": "folder of pairs whose sources small was trained on"})
    unseen: str = field(metadata={"help": "folder of pairs of an unseen source"})
    models: list[str] = field(default_factory=lambda: ["small", "nano"], metadata={"help": "names or folders"})
    num_pairs: int = field(default=30, metadata={"help": "known pairs of a criterion, kind and voice at most"})
    num_audited: int = field(default=60, metadata={"help": "pairs of the audits"})
    output_dir: Path = field(default=Path("runs/validity"), metadata={"help": "folder of evaluations and audits"})
    output: Path = field(default=RESULTS / "validity.json", metadata={"help": "file of the result"})


def name_voices(label: Labels) -> str:
    """Return the voices of both sides; of a pair with one recorded side, the synthesizer of the other."""
    synthesizer = str(label["synthesizer"])
    if label["criterion"] == "modality" or synthesizer == "world":
        return synthesizer
    if synthesizer == "recording":
        return "recorded"
    return "two synthesizers" if "+" in synthesizer else "one synthesizer"


def name_kind(label: Labels) -> str:
    """Return the kind of a pair, with its family where the criterion is `joint`; the source where it has no kind."""
    parts = (label["primary"], label["secondary"]) if label["criterion"] == JOINT else (label["secondary"],)
    return ": ".join(part for part in parts if part not in _NOT_GIVEN) or label["source"]


def draw_pairs(dataset: str, criteria: Sequence[str], num_pairs: int | None) -> datasets.Dataset:
    """Return all pairs of a small group, and at most `num_pairs` of each other criterion, kind and voice."""
    # The default configuration has only the criteria of the paper in its test split.
    pairs = datasets.concatenate_datasets([load_pairs(dataset, "test", name=name) for name in criteria])
    labels = pairs.select_columns(list(_LABELS)).to_list()
    counts: Counter[tuple[str, str, str]] = Counter()
    taken = []
    for row in sorted(range(len(labels)), key=lambda row: make_stable_id("family", labels[row]["pair_id"])):
        label = labels[row]
        key = (label["criterion"], name_kind(label), name_voices(label))
        counts[key] += 1
        is_few = (label["criterion"], label["synthesizer"]) in _WHOLE or label["source"] == "asterisk"
        if is_few or num_pairs is None or counts[key] <= num_pairs:
            taken.append(row)
    return pairs.select(sorted(taken))


def score(pairs: datasets.Dataset, name: str, args: Arguments) -> dict[str, Scores]:
    path = args.output_dir / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pairs.to_parquet(path)
    found: dict[str, Scores] = {}
    for model in args.models:
        folder = args.output_dir / f"{name}_{Path(model).name}"
        config = args.output_dir / f"{name}.yaml"
        config.write_text(f"{'baselines: false' if found else f'baseline_data: {args.known}'}\n", encoding="utf-8")
        options = ["--dataset", path, "--output_dir", folder, "--config", config]
        _run("eval", "--model", model, "--dtype", "fast", *options)
        found[Path(model).name] = {record["pair_id"]: record for record in read_evaluation(folder).scores}
        if len(found) == 1:
            kept = {kind: json.loads((folder / f"{kind}.json").read_text(encoding="utf-8")) for kind in KINDS}
    return found | {kind: each["scores"] for kind, each in kept.items()}


def _run(*words: Any) -> None:
    if status := cli.main(list(map(str, words))):
        raise SystemExit(status)


def group(labels: Sequence[Labels]) -> dict[tuple[str, str, str], list[Labels]]:
    """Return the pairs by criterion, kind and voices, and all voices together where a kind has several."""
    groups: dict[tuple[str, str, str], list[Labels]] = {}
    for label in labels:
        kind, voices = name_kind(label), name_voices(label)
        keys = [(label["criterion"], kind, voices), (label["criterion"], kind, "all")]
        if voices == "two synthesizers":
            rejected = str(label["synthesizer"]).partition("+")[2]
            keys.append((label["criterion"], "across voices", f"rejected side by {rejected}"))
        for key in dict.fromkeys(keys):
            groups.setdefault(key, []).append(label)
    num_voices = Counter(key[:2] for key in groups)
    return {key: groups[key] for key in sorted(groups) if key[2] != "all" or num_voices[key[:2]] > 2}


def measure(pairs: datasets.Dataset, scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Return the accuracy of every scorer on each group of the pairs that all of them have scored."""
    common = set.intersection(*map(set, scores.values()))
    rows = []
    labelled = {
        label["pair_id"]: label for label in pairs.select_columns([*_LABELS, *SIDES]) if label["pair_id"] in common
    }
    for (criterion, kind, voices), members in group([labelled[name] for name in sorted(labelled)]).items():
        row: dict[str, Any] = {"criterion": criterion, "kind": kind, "voices": voices, "num_pairs": len(members)}
        for name, own in scores.items():
            row[name] = select_column(compute_accuracy(members, own, {"nan": "wrong"}), "overall_micro")
        texts = [
            tuple([{"content": turn["text"] or ""} for turn in label[side]] for side in SIDES) for label in members
        ]
        if all(chosen != rejected for chosen, rejected in texts):
            count, share = max(measure_shares(texts).items(), key=lambda item: item[1])
            row["best_count"] = {"name": count, "accuracy": share}
        rows.append(row)
    return rows


def audit(model: str, args: Arguments) -> dict[str, Any]:
    folder = args.output_dir / f"audit_{Path(model).name}"
    options = ["--dataset", args.known, "--max_samples", args.num_audited, "--output_dir", folder]
    _run("audit", "--model", model, "--dtype", "fast", *options)
    return select_audit(json.loads((folder / "audit.json").read_text(encoding="utf-8")))


def select_audit(found: Mapping[str, Any]) -> dict[str, Any]:
    names = ("title", "num_pairs", "paid", "interval")
    attacks = [{name: row.get(name) for name in names} for row in found["attacks"]]
    return {**{name: found[name] for name in ("num_pairs", "num_groups", "verdicts")}, "attacks": attacks}


def format_share(found: Mapping[str, Any]) -> str:
    ties = f", {found['num_ties']} tied" if found.get("num_ties") else ""
    return f"{format_percent(found['accuracy'])} ({format_interval(found['interval'])}){ties}"


def render(result: Mapping[str, Any]) -> str:
    models = list(result["audits"])
    attacks = [{row["title"]: row for row in result["audits"][model]["attacks"]} for model in models]
    rows = [[title, *(cell for found in attacks for cell in _format_attack(found[title]))] for title in attacks[0]]
    head = ["attack", *(cell for model in models for cell in ("pairs", f"succeeds on {model}"))]
    return "\n\n".join(
        [
            "### By kind of pair\n\nRecordings and scripts from the training sources, held out of training.",
            _render_rows(result["known"], models),
            "### An unseen source",
            _render_rows(result["unseen"], models),
            f"Pairwise accuracy in percent with 95% intervals over recordings; a tie is wrong. "
            f"The goals are for {models[0]}. A goal is open if the interval reaches below it.",
            "### Attacks",
            "\n".join(render_table(head, rows)),
            "Percent of the pairs in which the attack succeeds, with 95% intervals over recordings or dialogues. "
            f"Audited: {'; '.join(_describe_sample(model, result['audits'][model]) for model in models)}.",
            "### Audit",
            _render_checks([result["audits"][model]["verdicts"] for model in models], models),
        ]
    )


def _render_rows(rows: Sequence[Mapping[str, Any]], models: Sequence[str]) -> str:
    scorers = [*models, *KINDS]
    lines = []
    for row in rows:
        goal = GOALS.get((row["criterion"], row["kind"], row["voices"]))
        is_met = goal is not None and 100 * row[models[0]]["accuracy"] >= goal
        count = row.get("best_count")
        lines.append(
            [
                *(row[name].replace("_", " ") for name in ("criterion", "kind", "voices")),
                row["num_pairs"],
                row[models[0]]["num_groups"],
                *(format_share(row[name]) for name in scorers),
                "-" if count is None else f"{count['name']} {format_percent(count['accuracy'])}",
                "-" if goal is None else f"{goal}, {'met' if is_met else 'not met'}",
            ]
        )
    head = ["criterion", "pairs", "voices", "number", "recordings", *scorers, "best count", "goal"]
    return "\n".join(render_markdown_table(head, lines, num_left=3))


def _render_checks(verdicts: Sequence[Sequence[Mapping[str, Any]]], models: Sequence[str]) -> str:
    by_name = [{verdict["name"]: verdict for verdict in each} for each in verdicts]
    rows = []
    for verdict in verdicts[0]:
        if not verdict["name"].startswith("attack."):
            found = [each.get(verdict["name"]) for each in by_name]
            rows.append([verdict["title"], show_limit(verdict), *map(_format_check, found)])
    return "\n".join(render_table(["check", "limit", *models], rows))


def _format_check(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None or verdict["value"] is None:
        return "-"
    return show_value(verdict["value"], verdict["unit"]) + (", FAILED" if verdict["status"] == FAIL else "")


def _describe_sample(model: str, found: Mapping[str, Any]) -> str:
    return f"{model} on {found['num_pairs']} pairs from {found['num_groups']} recordings or dialogues"


def _format_attack(row: Mapping[str, Any]) -> list[Any]:
    if row["paid"] is None:
        return [row["num_pairs"], "-"]
    return [row["num_pairs"], format_share({"accuracy": row["paid"], "interval": row["interval"]})]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_options(Arguments, argv, prog="python -m benchmarks.validity", description=__doc__)
    known = draw_pairs(args.known, [*CRITERIA, JOINT], args.num_pairs)
    unseen = draw_pairs(args.unseen, ["modality", JOINT], None)
    result = {
        "known": measure(known, score(known, "known", args)),
        "unseen": measure(unseen, score(unseen, "unseen", args)),
        "audits": {Path(model).name: audit(model, args) for model in args.models},
    }
    write_provenance(args.output, **result)
    write_file(args.output.with_suffix(".md"), render(result) + "\n")
    print(render(result))


if __name__ == "__main__":
    main()
