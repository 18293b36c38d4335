"""Report how a judge reached its decisions: position bias, order agreement, ties, unusable answers, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdiareward.common.errors import UserError
from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.llm import TokenUsage
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET
from sdiareward.evaluation.statistics import describe_share
from sdiareward.evaluation.summary import list_groups, list_reasons, render_reasons

from .answers import ORDERS, RULES, Answer
from .judging import ANSWERS_FILE, Orders, Question, Recorded, choose_orders, find_criterion


Labels = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, Any]]
# By order, the answer about one pair.
Both = Mapping[str, Answer]
_MAX_PROBLEMS = 20
_SESSION_COUNTS = ("calls", "cached", "retries", "reasks", "calls_without_usage")


def summarise_judge(
    name: str, labels: Labels, scores: Scores, folder: Path, options: Mapping[str, Any], orders: Orders | None
) -> dict[str, Any]:
    """Summarise a run; raise `UserError` if no pair was decided. `orders` is None for a judge of single sides."""
    wanted = {label["pair_id"] for label in labels}
    lines = [line for line in JsonLines(folder / ANSWERS_FILE).read() if line["pair_id"] in wanted]
    if orders is None:
        found, problems, answers = *_summarise_sides(lines), None
    else:
        answers = _read_answers(labels, folder, orders)
        found, problems = _summarise_answers(answers)
    if all(scores[label["pair_id"]]["margin"] is None for label in labels):
        what = f"judge {name}: none of {len(labels)} pairs got a usable answer"
        write_file(folder / "results.md", f"# No accuracy\n\n{what}.\n\n{render_reasons(problems)}\n")
        raise UserError(
            f"{what}; the first reasons: {' '.join(list_reasons(problems))} {folder / ANSWERS_FILE} has all; mend the "
            "judge's settings and run the same command with --retry_failed, or in another folder."
        )
    groups = [
        {**_summarise_decisions(title, rows, scores, options), **_summarise_orders(rows, answers, options)}
        for title, rows in _group_by_column(labels).items()
    ]
    return {**found, **_sum_usage(lines, folder), "problems": problems[:_MAX_PROBLEMS], "groups": groups}


def _read_answers(labels: Labels, folder: Path, orders: Orders) -> dict[str, Both]:
    """Return the answers about each pair by order, parsed as in a replay."""
    asked = [
        Question(label["pair_id"], order, find_criterion(label), build=lambda: ([], 0.0))
        for label in labels
        for order in choose_orders(label["pair_id"], orders)
    ]
    found: dict[str, dict[str, Answer]] = {}
    for question, answer in zip(asked, Recorded(folder / ANSWERS_FILE)(asked), strict=True):
        found.setdefault(question.pair_id, {})[question.order] = answer
    return dict(found)


def _summarise_answers(answers: Mapping[str, Both]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Count the answers of a judge that compares both sides; also return those without a verdict."""
    flat = [(pair_id, order, answer) for pair_id, both in answers.items() for order, answer in both.items()]
    counts = Counter(answer.status for _, _, answer in flat)
    verdicts = [answer.verdict for _, _, answer in flat if answer.verdict is not None]
    counted = {status: counts[status] for status in ("usable", "refused", "unusable", "unanswered")}
    counted["repaired"] = sum(bool(verdict.repairs) for verdict in verdicts)
    counted["contradictory"] = sum(verdict.is_contradictory for verdict in verdicts)
    problems = [
        {"pair_id": pair_id, "order": order, "status": answer.status, "problem": answer.problem}
        for pair_id, order, answer in flat
        if answer.verdict is None
    ]
    return {"kind": "pairwise", "num_answers": len(flat), "answers": counted}, problems


def _summarise_sides(lines: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Count the answers of a judge that scores each side by itself; also return those without a score."""
    last = {(line["pair_id"], line["side"]): line for line in lines}.values()
    names = ("pair_id", "side", "problem")
    failed = [{**{name: line[name] for name in names}, "status": "unusable"} for line in last if line["score"] is None]
    counted = {
        "follow_format": sum(line["follows_format"] for line in last),
        "without_score": len(failed),
        "cut": sum(line["num_cut"] > 0 for line in last),
    }
    return {"kind": "pointwise", "num_answers": len(last), "answers": counted}, failed


def _sum_usage(lines: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Return the tokens of all answers, failed attempts included, and the counters of all sessions of a run."""
    spent: dict[Any, TokenUsage] = {}
    for number, line in enumerate(lines):
        counts = [int(line.get(name) or 0) for name in ("num_replies", "prompt_tokens", "completion_tokens")]
        # An answer that was reused counts once; only usable answers are cached.
        is_usable = line.get("status", "usable") == "usable"
        key = (line["pair_id"], line.get("order", line.get("side")), line["answer"]) if is_usable else number
        spent[key] = TokenUsage(counts[0] or 1, *counts[1:])
    sessions = JsonLines(folder / "sessions.jsonl").read()
    counted = {name: sum(session[name] for session in sessions if name in session) for name in _SESSION_COUNTS}
    return {
        **asdict(sum(spent.values(), TokenUsage())),
        "sessions": counted if any("calls" in session for session in sessions) else None,
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


def _summarise_orders(
    labels: Labels, answers: Mapping[str, Both] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure how the order of the sides decides; nothing of a judge of single sides."""
    if answers is None:
        return {}
    pairs = [(label, answers[label["pair_id"]]) for label in labels]
    preferred = {
        order: [(label, found[order].find_preferred_side(order)) for label, found in pairs if order in found]
        for order in ORDERS
    }
    both = [
        (label, len({answer.find_preferred_side(order) for order, answer in found.items()}) == 1)
        for label, found in pairs
        if len(found) == len(ORDERS) and all(answer.verdict for answer in found.values())
    ]
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
