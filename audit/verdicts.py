"""Verdicts of an audit: every check with its value and its limit in `limits.yaml`, passed, failed or not measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import filter as filter_names
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from sdiareward.common.files import read_json_object
from sdiareward.common.package_files import AUDIT
from sdiareward.common.settings import make_settings, read_mapping


LIMITS = AUDIT / "limits.yaml"
PASS, FAIL, NOT_MEASURED = "pass", "fail", "not measured"
ANY = "any"
# Suffix of a value; values of other units are plain numbers.
_SIGNS = {"share": "%", "points": " points"}
# Of differences of shares: 0.95 less 0.9 is a little below 0.05.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Limit:
    """The limit of all checks whose names match a shell pattern; it is inclusive, and one of the two."""

    pattern: str
    # What is measured; `{}` is replaced by the part of the name that matches the star.
    title: str
    # "share", "points" or "ratio".
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    # What the page calls the check, in a few words; `{}` as in `title`.
    name: str = "{}"

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("give at_most or at_least, one of the two.")

    def is_kept(self, value: float) -> bool:
        if self.at_most is not None:
            return value - self.at_most <= _ROUNDING
        return float(self.at_least or 0.0) - value <= _ROUNDING


@dataclass(frozen=True)
class Measured:
    """The result of a check; its value is None if it could not be measured."""

    value: float | None
    # A note for the reader.
    detail: str = ""
    # Replaces `{}` in the title of the limit; by default the end of the check's name.
    title: str = ""


@cache
def read_limits(path: Path = LIMITS) -> tuple[Limit, ...]:
    """Read the limits, fields of [`Limit`] by pattern; the first pattern that matches a check applies."""
    return tuple(
        make_settings(Limit, {"pattern": pattern, **fields}, f"{path}, {pattern}")
        for pattern, fields in read_mapping(path).items()
    )


def find_limit(name: str, limits: Sequence[Limit]) -> Limit:
    for limit in limits:
        if fnmatchcase(name, limit.pattern):
            return limit
    raise KeyError(f"no limit is stated for the check {name!r}; add one to {LIMITS.name}.")


def name_check(check: str) -> str:
    return find_limit(check, read_limits()).name.format(check.rpartition(".")[2].replace("_", " "))


def judge(measured: Mapping[str, Measured], limits: Sequence[Limit] | None = None) -> list[dict[str, Any]]:
    """Compare the result of every check with its limit, by default that of `limits.yaml`."""
    limits = read_limits() if limits is None else limits
    return [_judge(name, found, find_limit(name, limits)) for name, found in measured.items()]


def _judge(name: str, found: Measured, limit: Limit) -> dict[str, Any]:
    status = NOT_MEASURED if found.value is None else PASS if limit.is_kept(found.value) else FAIL
    fields = {key: value for key, value in asdict(limit).items() if key in ("unit", "at_most", "at_least")}
    title = limit.title.format(found.title or name.rpartition(".")[2])
    return {"name": name, "title": title, "value": found.value, **fields, "status": status, "detail": found.detail}


def select(verdicts: Sequence[Mapping[str, Any]], patterns: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the verdicts that fail a run; a check that a pattern names, and `any` check at all, must be measured."""
    patterns = list(patterns)
    named = [pattern for pattern in patterns if pattern != ANY]
    if ANY in patterns and all(verdict["status"] == NOT_MEASURED for verdict in verdicts):
        return list(verdicts)
    return [
        verdict
        for verdict in verdicts
        if (verdict["status"] == FAIL and ANY in patterns)
        or (verdict["status"] != PASS and any(fnmatchcase(verdict["name"], pattern) for pattern in named))
    ]


def find_unknown_patterns(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    names = list(names)
    return [pattern for pattern in patterns if pattern != ANY and not filter_names(names, pattern)]


def read_audit(path: Path) -> dict[str, Any]:
    remedy = "give the audit.json of an earlier audit"
    try:
        found = read_json_object(path, remedy)
        for verdict in found["verdicts"]:
            verdict["name"], verdict["status"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: holds no verdicts; {remedy}.") from error
    return found


def require_same_pairs(earlier: Mapping[str, Any], run: Mapping[str, Any], num_pairs: int) -> None:
    """Raise unless an earlier audit drew the same pairs; otherwise the models cannot be compared."""
    names = ("split", "pairs", "seed")
    now = {**{name: run[name] for name in names}, "num_pairs": num_pairs}
    try:
        before = {name: earlier["run"][name] for name in names}
        before["num_pairs"] = earlier["num_pairs"] + len(earlier["skipped"])
    except (KeyError, TypeError) as error:
        raise ValueError("the earlier audit does not say which pairs it drew; audit that model again.") from error
    if different := [name for name, value in now.items() if before[name] != value]:
        changes = "; ".join(f"{name} was {before[name]!r}, is {now[name]!r}" for name in different)
        raise ValueError(f"the earlier audit is of other pairs ({changes}); audit both models on the same.")


def find_regressions(
    verdicts: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the checks that passed in an earlier audit and do not pass now, are missing or were not measured."""
    now = {verdict["name"]: verdict for verdict in verdicts}
    passed = [verdict for verdict in earlier if verdict["status"] == PASS]
    gone = {"status": NOT_MEASURED, "value": None}
    found = [now.get(verdict["name"], {**verdict, **gone}) for verdict in passed]
    return [verdict for verdict in found if verdict["status"] != PASS]


def show_value(value: float | None, unit: str) -> str:
    """Format a value in its unit: shares in percent, differences of shares in points."""
    if value is None:
        return "n/a"
    number = f"{100 * value:.1f}" if unit in ("share", "points") else f"{value:.3g}"
    return number + _SIGNS.get(unit, "")


def show_limit(verdict: Mapping[str, Any]) -> str:
    is_upper = verdict["at_most"] is not None
    limit = show_value(verdict["at_most"] if is_upper else verdict["at_least"], verdict["unit"])
    return f"{'at most' if is_upper else 'at least'} {limit}"
