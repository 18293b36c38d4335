"""`sdiareward audit`: perturb and attack pairs, and measure how much the rewards of a model change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from sdiareward.common.errors import UserError
from sdiareward.evaluation.arguments import PairsArguments
from sdiareward.scoring.model_spec import ModelArguments


if TYPE_CHECKING:
    from sdiareward.auditing.run import Auditor
    from sdiareward.auditing.verdicts import Verdicts


@Parameter(name="*")
@dataclass(kw_only=True)
class AuditArguments(ModelArguments, PairsArguments):
    """What to audit on what.

    Args:
        dataset: Table (CSV, TSV, JSON, JSON lines, Parquet), folder or Hub id of pairs.
        output_dir: Folder for audit.html, audit.md, audit.json and every reward.
        render: Write the page from this audit.json, beside it or in --output_dir; needs no model and no data.
        split: Split to audit on; test by default; a single file has no splits.
        max_samples: Number of pairs to audit, drawn evenly from subsets, recordings and synthesizers.
        perturbations: Perturbations to apply, all or none.
        attacks: Attacks to try, all or none.
        sounds_dir: Folder of recordings, in folders named after their sounds, to use instead of synthetic ones.
        parts: Parts of the audit, or all.
        seed: Seed of the draw, of noise and of intervals.
        fail_on: Exit with 1 if one of these checks fails: patterns such as 'attack.*', or any.
        against: Exit with 1 if a check fails that passed in this audit.json of an earlier audit.
    """

    dataset: str | None = None
    output_dir: Path | None = None
    render: Path | None = None
    split: str | None = None
    max_samples: PositiveInt = 60
    perturbations: list[str] = field(default_factory=lambda: ["all"])
    attacks: list[str] = field(default_factory=lambda: ["all"])
    sounds_dir: str | None = None
    parts: list[str] = field(default_factory=lambda: ["all"])
    seed: int = 0
    fail_on: list[str] = field(default_factory=list)
    against: Path | None = None


def audit(args: AuditArguments | None = None) -> int:
    """Perturb and attack pairs, and measure how much the rewards of a model change.

    The same command resumes a killed run; docs/audit.md explains every check.

    Keys of --config without a flag: baseline_data, baseline_revision, train_split.
    """
    from sdiareward.auditing.report import render_audit_page, write_audit
    from sdiareward.auditing.verdicts import find_unknown_patterns, list_checks, read_audit, require_same_pairs
    from sdiareward.common.files import write_file

    args = args or AuditArguments()
    if unknown := find_unknown_patterns(args.fail_on):
        raise UserError(f"--fail_on: there is no check {unknown[0]!r}; the checks are {', '.join(list_checks())}.")
    against = None if args.against is None else read_audit(args.against)
    earlier = None if against is None else against["verdicts"]
    if args.render is not None:
        found, folder = read_audit(args.render), args.output_dir or args.render.parent
        if against is not None:
            require_same_pairs(against, found["run"], found["num_pairs"] + len(found["skipped"]))
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "audit.html", render_audit_page(found, earlier))
    else:
        auditor = _make_auditor(args)
        folder = auditor.output_dir
        for notice in auditor.notices:
            print(f"sdiareward: notice: {notice}", file=sys.stderr)
        if against is not None:
            require_same_pairs(against, auditor.run, len(auditor.sample))
        found = auditor.audit()
        print(write_audit(folder, found, earlier))
    print(f"Page: {folder / 'audit.html'}")
    return _report_failures(found["verdicts"], args.fail_on, earlier)


def _make_auditor(args: AuditArguments) -> Auditor:
    from sdiareward.auditing.run import Auditor, choose_names

    given = {"--dataset": args.dataset, "--output_dir": args.output_dir}
    if args.dataset is None or args.output_dir is None:
        missing = " and ".join(name for name, value in given.items() if value is None)
        raise UserError(f"an audit needs {missing}; or give --render FILE to write the page of an earlier audit.")
    options = {each.name: getattr(args, each.name) for each in fields(Auditor) if hasattr(args, each.name)}
    options |= choose_names(perturbations=args.perturbations, attacks=args.attacks, parts=args.parts)
    return Auditor(**{**options, "model": args.make_spec(), "data": args.dataset})


def _report_failures(verdicts: Verdicts, patterns: Sequence[str], earlier: Verdicts | None) -> int:
    """Print the checks that must not fail and did; return the exit status."""
    from sdiareward.auditing.verdicts import find_regressions, select, show_limit, show_value

    lost = [] if earlier is None else find_regressions(verdicts, earlier)
    failed = {verdict["name"]: verdict for verdict in [*select(verdicts, patterns), *lost]}
    for name, verdict in failed.items():
        value = "not measured" if verdict["value"] is None else show_value(verdict["value"], verdict["unit"])
        before = "; the earlier audit passed it" if any(name == each["name"] for each in lost) else ""
        print(f"sdiareward: {name}: {value}, limit {show_limit(verdict)}{before}", file=sys.stderr)
    return int(bool(failed))
