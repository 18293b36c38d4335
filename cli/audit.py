"""`sdiareward audit`: perturb and attack pairs, and measure how much the rewards of a model move."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.common.user_errors import UserError
from sdiareward.evaluation.arguments import PairsArguments
from sdiareward.scoring.arguments import ModelArguments


if TYPE_CHECKING:
    from sdiareward.audit.run import Auditor
    from sdiareward.audit.verdicts import Verdicts

_ALL, _NONE = "all", "none"
# Arguments that the job takes under their names.
_AS_THEY_ARE = ("split", "train_split", "num_pairs", "sounds_dir", "seed", "audio_root", "baseline_data")


@dataclass(kw_only=True)
class AuditArguments(ModelArguments, PairsArguments):
    data: str | None = field(
        default=None,
        metadata={
            "flag": "dataset",
            "help": "folder or Hub id of pairs, or a .json, .jsonl or .parquet file",
        },
    )
    output_dir: Path | None = field(
        default=None, metadata={"help": "folder for audit.html, audit.md, audit.json and every reward"}
    )
    render: Path | None = field(
        default=None,
        metadata={
            "metavar": "FILE",
            "help": "write the page from this audit.json, beside it or in --output_dir; needs no model and no data",
        },
    )
    split: str | None = field(
        default=None, metadata={"help": "split to audit on (default: test; a single file has no splits)"}
    )
    num_pairs: int = field(
        default=60,
        metadata={"help": "pairs to draw, over subsets, recordings and synthesizers; 0 for all", "minimum": 0},
    )
    nuisances: list[str] = field(
        default_factory=lambda: [_ALL], metadata={"metavar": "NAME", "help": "perturbations to apply, all or none"}
    )
    attacks: list[str] = field(
        default_factory=lambda: [_ALL], metadata={"metavar": "NAME", "help": "attacks to try, all or none"}
    )
    sounds_dir: str | None = field(
        default=None,
        metadata={
            "metavar": "FOLDER",
            "help": "folder of recordings, in folders named after their sounds, to use instead of synthetic ones",
        },
    )
    parts: list[str] = field(
        default_factory=lambda: [_ALL], metadata={"metavar": "PART", "help": "parts of the audit, or all"}
    )
    seed: int = field(default=0, metadata={"help": "seed of the draw, of noise and of intervals"})
    fail_on: list[str] = field(
        default_factory=list,
        metadata={
            "metavar": "NAME",
            "help": "exit with 1 if one of these checks fails: patterns such as 'attack.*', or any",
        },
    )
    against: Path | None = field(
        default=None,
        metadata={
            "metavar": "FILE",
            "help": "exit with 1 if a check fails that passed in this audit.json of an earlier audit",
        },
    )


def run(args: AuditArguments) -> int:
    """Audit a model, or render an earlier audit; return the exit status."""
    from sdiareward.audit.report import render_audit_page, write_audit
    from sdiareward.audit.verdicts import find_unknown_patterns, list_checks, read_audit, require_same_pairs
    from sdiareward.common.files import write_file

    if unknown := find_unknown_patterns(args.fail_on):
        raise UserError(f"--fail-on: there is no check {unknown[0]!r}; the checks are {', '.join(list_checks())}.")
    against = None if args.against is None else read_audit(args.against)
    earlier = None if against is None else against["verdicts"]
    if args.render is not None:
        audit, folder = read_audit(args.render), args.output_dir or args.render.parent
        if against is not None:
            require_same_pairs(against, audit["run"], audit["num_pairs"] + len(audit["skipped"]))
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "audit.html", render_audit_page(audit, earlier))
    else:
        auditor = _make_auditor(args)
        folder = auditor.output_dir
        if auditor.notice is not None:
            print(f"sdiareward: notice: {auditor.notice}", file=sys.stderr)
        if against is not None:
            require_same_pairs(against, auditor.run, len(auditor.sample))
        audit = auditor.audit()
        print(write_audit(folder, audit, earlier))
    print(f"Page: {folder / 'audit.html'}")
    return _report_failures(audit["verdicts"], args.fail_on, earlier)


def _make_auditor(args: AuditArguments) -> Auditor:
    from sdiareward.audit.run import PARTS, Auditor
    from sdiareward.perturbations.attacks import ATTACKS
    from sdiareward.perturbations.registry import PERTURBATIONS

    given = {"--dataset": args.data, "--output_dir": args.output_dir}
    if args.data is None or args.output_dir is None:
        missing = " and ".join(name for name, value in given.items() if value is None)
        raise UserError(f"an audit needs {missing}; or give --render FILE to write the page of an earlier audit.")
    return Auditor(
        args.make_spec(),
        args.data,
        args.output_dir,
        nuisances=_choose_names("--nuisances", args.nuisances, PERTURBATIONS),
        attacks=_choose_names("--attacks", args.attacks, ATTACKS),
        parts=_choose_names("--parts", args.parts, PARTS),
        **{name: getattr(args, name) for name in _AS_THEY_ARE},
    )


def _choose_names(flag: str, names: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    known = tuple(known)
    if unknown := [name for name in names if name not in (*known, _ALL, _NONE)]:
        raise UserError(f"{flag}: {unknown[0]!r} is none of {', '.join(known)}, {_ALL}, {_NONE}.")
    return tuple(name for name in known if name in names or _ALL in names)


def _report_failures(verdicts: Verdicts, patterns: Sequence[str], earlier: Verdicts | None) -> int:
    """Print the checks that must not fail and did; return the exit status."""
    from sdiareward.audit.verdicts import find_regressions, select, show_limit, show_value

    lost = [] if earlier is None else find_regressions(verdicts, earlier)
    failed = {verdict["name"]: verdict for verdict in [*select(verdicts, patterns), *lost]}
    for name, verdict in failed.items():
        value = "not measured" if verdict["value"] is None else show_value(verdict["value"], verdict["unit"])
        before = "; the earlier audit passed it" if any(name == each["name"] for each in lost) else ""
        print(f"sdiareward: {name}: {value}, limit {show_limit(verdict)}{before}", file=sys.stderr)
    return int(bool(failed))
