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

from .answers import ORDERS, RULES, Answer, Orders
from .judging import ANSWERS_FILE, Question, ReplayBackend, choose_orders, find_criterion


Labels = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, Any]]
# By order, the answer about one pair.
Both = Mapping[str, Answer]
ALL = "all pairs"
_MAX_PROBLEMS = 20
_SESSION_COUNTS = ("calls", "cached", "retries", "reasks", "calls_without_usage")


def require_decision(
    name: str, labels: Labels, scores: Scores, folder: Path, problems: Sequence[Mapping[str, Any]]
) -> None:
    """Raise `UserError` if no pair was decided, with the reasons, which `results.md` has as well."""
    if any(scores[label["pair_id"]]["margin"] is not None for label in labels):
        return
    found = f"judge {name}: none of {len(labels)} pairs got a usable answer"
    reasons = list_reasons(problems)
    write_file(folder / "results.md", f"# No accuracy\n\n{found}.\n\n{render_reasons(problems)}\n")
    raise UserError(
        f"{found}; the first reasons: {' '.join(reasons)} {folder / ANSWERS_FILE} has all; mend the judge's settings "
        "and run the same command with --retry_failed, or in another folder."
    )


def summarise_pairwise(
    labels: Labels, scores: Scores, folder: Path, options: Mapping[str, Any], orders: Orders = "both"
) -> dict[str, Any]:
    """Summarise a run that compared the sides of each pair."""
    answers = _read_answers(labels, folder, orders)
    flat = [(pair_id, order, answer) for pair_id, both in answers.items() for order, answer in both.items()]
    counts = Counter(answer.status for _, _, answer in flat)
    verdicts = [answer.verdict for _, _, answer in flat if answer.verdict is not None]
    problems = [
        {"pair_id": pair_id, "order": order, "status": answer.status, "problem": answer.problem}
        for pair_id, order, answer in flat
        if answer.verdict is None
    ]
    return {
        "kind": "pairwise",
        "num_answers": len(flat),
        **summarise_usage(labels, folder),
        "answers": {
            **{status: counts[status] for status in ("usable", "refused", "unusable", "unanswered")},
            "repaired": sum(bool(verdict.repairs) for verdict in verdicts),
            "contradictory": sum(verdict.is_contradictory for verdict in verdicts),
        },
        "problems": problems[:_MAX_PROBLEMS],
        "groups": [
            _summarise_group(name, rows, scores, answers, options) for name, rows in _group_by_column(labels).items()
        ],
    }


def summarise_pointwise(labels: Labels, scores: Scores, folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise a run that scored each side by itself."""
    wanted = {label["pair_id"] for label in labels}
    lines = JsonLines(folder / ANSWERS_FILE).read()
    records = {(line["pair_id"], line["side"]): line for line in lines if line["pair_id"] in wanted}.values()
    names = ("pair_id", "side", "problem")
    failed = [
        {**{name: line[name] for name in names}, "status": "unusable"} for line in records if line["score"] is None
    ]
    return {
        "kind": "pointwise",
        "num_answers": len(records),
        **summarise_usage(labels, folder),
        "answers": {
            "follow_format": sum(line["follows_format"] for line in records),
            "without_score": len(failed),
            "cut": sum(line["num_cut"] > 0 for line in records),
        },
        "problems": failed[:_MAX_PROBLEMS],
        "groups": [
            _summarise_decisions(name, rows, scores, options) for name, rows in _group_by_column(labels).items()
        ],
    }


def summarise_usage(labels: Labels, folder: Path) -> dict[str, Any]:
    """Return the tokens of all answers, failed attempts included, and the counters of all sessions of a run."""
    wanted = {label["pair_id"] for label in labels}
    spent: dict[Any, TokenUsage] = {}
    for number, line in enumerate(JsonLines(folder / ANSWERS_FILE)):
        if line["pair_id"] in wanted:
            counts = [int(line.get(name) or 0) for name in ("num_replies", "prompt_tokens", "completion_tokens")]
            # An answer that was reused counts once; only usable answers are cached.
            is_usable = line.get("status", "usable") == "usable"
            key = (line["pair_id"], line.get("order", line.get("side")), line["answer"]) if is_usable else number
            spent[key] = TokenUsage(counts[0] or 1, *counts[1:])
    sessions = JsonLines(folder / "sessions.jsonl").read()
    counted = {name: sum(session[name] for session in sessions if name in session) for name in _SESSION_COUNTS}
    changed = {name: other for each in sessions for name, other in each.get("changed_parameters", {}).items()}
    return {
        **asdict(sum(spent.values(), TokenUsage())),
        "sessions": counted if any("calls" in session for session in sessions) else None,
        "changed_parameters": changed,
    }


def _read_answers(labels: Labels, folder: Path, orders: Orders) -> dict[str, Both]:
    """Return the answers of each pair by order, parsed as in a replay."""
    questions = [
        Question(label["pair_id"], order, find_criterion(label), dict)
        for label in labels
        for order in choose_orders(label["pair_id"], orders)
    ]
    found: dict[str, dict[str, Answer]] = {}
    for question, answer in zip(questions, ReplayBackend(folder / ANSWERS_FILE).answer(questions), strict=True):
        found.setdefault(question.pair_id, {})[question.order] = answer
    return dict(found)


def _group_by_column(labels: Labels) -> dict[str, Labels]:
    """Return all pairs, and those of each criterion and each subset (Table 2) where there are several."""
    groups: dict[str, Labels] = {ALL: labels}
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
        "ties": _share([rule == "tie" for rule in rules], labels, options),
    }


def _summarise_group(
    name: str, labels: Labels, scores: Scores, answers: Mapping[str, Both], options: Mapping[str, Any]
) -> dict[str, Any]:
    usable = [(label, answers[label["pair_id"]]) for label in labels]
    # In both orders.
    complete = [(label, both) for label, both in usable if len(both) > 1 and all(a.verdict for a in both.values())]
    agree = [len({both[order].find_preferred_side(order) for order in ORDERS}) == 1 for _, both in complete]
    each = [(label, order, answer) for label, both in usable for order, answer in both.items() if answer.verdict]
    prefers_first = [answer.find_preferred_side(order) == ORDERS[order][0] for _, order, answer in each]
    bias = _share(prefers_first, [label for label, _, _ in each], options)
    # The share of answers that prefer the version heard first, minus one half.
    bias["bias"] = None if bias["share"] is None else bias["share"] - 0.5
    bias["interval"] = bias["interval"] and [bound - 0.5 for bound in bias["interval"]]
    one_order = {}
    for order in ORDERS:
        asked = [(label, both[order]) for label, both in usable if order in both]
        is_right = [answer.find_preferred_side(order) == "chosen" for _, answer in asked]
        one_order[order] = _share(is_right, [label for label, _ in asked], options)
    return {
        **_summarise_decisions(name, labels, scores, options),
        "position_bias": bias,
        "order_agreement": _share(agree, [label for label, _ in complete], options),
        "one_order": one_order,
    }


def _share(values: Sequence[bool], labels: Labels, options: Mapping[str, Any]) -> dict[str, Any]:
    return describe_share(values, list_groups(labels), [label["subset"] for label in labels], **options)
