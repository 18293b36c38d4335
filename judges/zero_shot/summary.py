"""Report how a judge reached its decisions: position bias, order agreement, ties, unusable answers, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.llm import TokenUsage
from sdiareward.common.user_errors import UserError
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET
from sdiareward.evaluation.statistics import describe_share
from sdiareward.evaluation.summary import list_groups, list_reasons, render_reasons
from sdiareward.scoring.outcomes import Labels

from .answers import ORDERS, PROMPTS, RULES


ANSWERS_FILE = "answers.jsonl"
Scores = Mapping[str, Mapping[str, Any]]
# The last line of `answers.jsonl` on each question: a pair, and an order or a side.
Lines = Mapping[tuple[str, str], Mapping[str, Any]]
_MAX_PROBLEMS = 20
_SESSION_COUNTS = ("calls", "cached", "retries", "reasks", "calls_without_usage")


def find_criterion(label: Mapping[str, Any]) -> str:
    """Return the criterion to judge by; the paper has no judge's prompt for `joint`, so there the subset decides."""
    if label["criterion"] in PROMPTS:
        return str(label["criterion"])
    return "colloquialness" if label["subset"] == "colloquialness" else "modality"


def summarise_judge(
    name: str, labels: Labels, scores: Scores, folder: Path, options: Mapping[str, Any], *, is_pairwise: bool
) -> dict[str, Any]:
    """Summarise a run of a judge of pairs or of single sides; raise `UserError` if no pair was decided."""
    wanted = {label["pair_id"] for label in labels}
    lines = [line for line in JsonLines(folder / ANSWERS_FILE) if line["pair_id"] in wanted]
    last = {(line["pair_id"], line["order" if is_pairwise else "side"]): line for line in lines}
    problems = [
        {"pair_id": pair_id, "order": order, "status": line["status"], "problem": line["problem"]}
        for (pair_id, order), line in last.items()
        if line["status"] != "usable"
    ]
    if all(scores[label["pair_id"]]["margin"] is None for label in labels):
        what = f"judge {name}: none of {len(labels)} pairs got a usable answer"
        write_file(folder / "results.md", f"# No accuracy\n\n{what}.\n\n{render_reasons(problems)}\n")
        raise UserError(
            f"{what}; the first reasons: {' '.join(list_reasons(problems))} {folder / ANSWERS_FILE} has all; mend the "
            "judge's settings and run the same command with --retry_failed, or in another folder."
        )
    groups = [
        {**_summarise_decisions(title, rows, scores, options), **_summarise_orders(rows, last, options, is_pairwise)}
        for title, rows in _group_by_column(labels).items()
    ]
    return {
        "kind": "pairwise" if is_pairwise else "pointwise",
        "num_answers": len(last),
        "answers": _count_answers(list(last.values()), is_pairwise),
        **_sum_usage(lines, folder),
        "problems": problems[:_MAX_PROBLEMS],
        "groups": groups,
    }


def _count_answers(lines: Sequence[Mapping[str, Any]], is_pairwise: bool) -> dict[str, int]:
    if is_pairwise:
        counts = Counter(line["status"] for line in lines)
        counted = {status: counts[status] for status in ("usable", "refused", "unusable", "unanswered")}
        sums = {name: sum(bool(line[name]) for line in lines) for name in ("repairs", "contradictory")}
        return {**counted, "repaired": sums["repairs"], "contradictory": sums["contradictory"]}
    return {
        "follow_format": sum(line["follows_format"] for line in lines),
        "without_score": sum(line["score"] is None for line in lines),
        "cut": sum(line["num_cut"] > 0 for line in lines),
    }


def _sum_usage(lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Return the tokens of all answers, failed attempts included, and the counters of all sessions of a run."""
    spent: dict[Any, TokenUsage] = {}
    for number, line in enumerate(lines):
        # An answer that was reused counts once; only usable answers are cached.
        is_usable = line["status"] == "usable"
        key = (line["pair_id"], line.get("order", line.get("side")), line["answer"]) if is_usable else number
        spent[key] = TokenUsage(line["num_replies"] or 1, line["prompt_tokens"], line["completion_tokens"])
    sessions = JsonLines(folder / "sessions.jsonl").read()
    counted = {name: sum(session[name] for session in sessions if name in session) for name in _SESSION_COUNTS}
    return {
        **asdict(sum(spent.values(), TokenUsage())),
        "sessions": counted if any("calls" in session for session in sessions) else {},
        "changed_parameters": {k: v for each in sessions for k, v in each.get("changed_parameters", {}).items()},
    }


def _group_by_column(labels: Labels) -> dict[str, Labels]:
    """Return all pairs, and those of each criterion and each subset (Table 2) where there are several."""
    groups: dict[str, Labels] = {"all pairs": labels}
    for find in (find_criterion, lambda label: label["subset"] or NO_SUBSET):
        names = dict.fromkeys(map(find, labels))
        found = {name: [label for label in labels if find(label) == name] for name in names}
        groups |= found if len(found) > 1 else {}
    return groups


def _summarise_decisions(name: str, labels: Labels, scores: Scores, options: Mapping[str, Any]) -> dict[str, Any]:
    rules = [scores[label["pair_id"]]["decided_by"] for label in labels]
    return {
        "criterion": name,
        "num_pairs": len(labels),
        "decided_by": {rule: rules.count(rule) for rule in RULES},
        "ties": _share([(label, rule == "tie") for label, rule in zip(labels, rules, strict=True)], options),
    }


def _summarise_orders(labels: Labels, lines: Lines, options: Mapping[str, Any], is_pairwise: bool) -> dict[str, Any]:
    """Measure how the order of the sides decides; nothing of a judge of single sides."""
    if not is_pairwise:
        return {}
    preferred = {
        order: [
            (each, lines[each["pair_id"], order]["preferred"]) for each in labels if (each["pair_id"], order) in lines
        ]
        for order in ORDERS
    }
    by_pair: dict[str, list[str | None]] = {}
    for of_order in preferred.values():
        for label, side in of_order:
            by_pair.setdefault(label["pair_id"], []).append(side)
    found = [(label, by_pair[label["pair_id"]]) for label in labels]
    both = [(label, len(set(sides)) == 1) for label, sides in found if len(sides) == len(ORDERS) and all(sides)]
    first = [(label, side == ORDERS[order][0]) for order, each in preferred.items() for label, side in each if side]
    bias = _share(first, options)
    # The share of answers that prefer the version heard first, minus one half.
    bias["bias"] = None if bias["share"] is None else bias["share"] - 0.5
    bias["interval"] = bias["interval"] and [bound - 0.5 for bound in bias["interval"]]
    return {
        "position_bias": bias,
        "order_agreement": _share(both, options),
        "one_order": {
            order: _share([(label, side == "chosen") for label, side in each], options)
            for order, each in preferred.items()
        },
    }


def _share(values: Sequence[tuple[Mapping[str, Any], bool]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of labels whose value is true, with its interval over recordings."""
    labels = [label for label, _ in values]
    return describe_share(
        [value for _, value in values], list_groups(labels), [label["subset"] for label in labels], **options
    )
