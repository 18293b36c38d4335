"""`sdiareward audit`: perturb and attack pairs, and measure how much the rewards of a model move."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt

from sdiareward.common.user_errors import UserError
from sdiareward.evaluation.arguments import PairsArguments
from sdiareward.scoring.arguments import ModelArguments


if TYPE_CHECKING:
    from sdiareward.audit.run import AuditJob, Auditor

_ALL, _NONE = "all", "none"
# Arguments that the job takes under their names.
_AS_THEY_ARE = ("split", "train_split", "num_pairs", "sounds_dir", "seed", "audio_root", "baseline_data")


@Parameter(name="*")
@dataclass(kw_only=True)
class AuditArguments(ModelArguments, PairsArguments):
    """What to audit on what.

    Args:
        dataset: Folder or Hub id of pairs, or a .json, .jsonl or .parquet file.
        output_dir: Folder for audit.html, audit.md, audit.json and every reward.
        render: Write the page from this audit.json, beside it or in --output_dir; needs no model and no data.
        split: Split to audit on; test by default; a single file has no splits.
        num_pairs: Pairs to draw, over subsets, recordings and synthesizers; 0 for all.
        nuisances: Perturbations to apply, all or none.
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
    num_pairs: NonNegativeInt = 60
    nuisances: list[str] = field(default_factory=lambda: [_ALL])
    attacks: list[str] = field(default_factory=lambda: [_ALL])
    sounds_dir: str | None = None
    parts: list[str] = field(default_factory=lambda: [_ALL])
    seed: int = 0
    fail_on: list[str] = field(default_factory=list)
    against: Path | None = None


def audit(args: AuditArguments | None = None) -> int:
    """Perturb and attack pairs, and measure how much the rewards of a model move.

    The same command resumes a run that was killed; docs/audit.md explains every check.
    """
    args = args or AuditArguments()
    if args.render is not None:
        return _render(args.render, args)
    given = {"--dataset": args.dataset, "--output_dir": args.output_dir}
    missing = [name for name, value in given.items() if value is None]
    if args.dataset is None or args.output_dir is None:
        raise UserError(
            f"an audit needs {' and '.join(missing)}; or give --render FILE to write the page of an earlier audit."
        )
    return _audit(args, args.dataset, args.output_dir)


def _render(path: Path, args: AuditArguments) -> int:
    from sdiareward.audit.page import write_page
    from sdiareward.audit.verdicts import read_audit, require_same_pairs

    _require_checks(args.fail_on)
    audit, against = read_audit(path), None if args.against is None else read_audit(args.against)
    if against is not None:
        require_same_pairs(against, audit["run"], audit["num_pairs"] + len(audit["skipped"]))
    earlier = None if against is None else against["verdicts"]
    folder = args.output_dir or path.parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        page = write_page(folder, audit, earlier)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: lacks {error} of the page; it comes from another version, audit the model again."
        ) from error
    print(f"Page: {page}")
    return _report_failures(audit, args.fail_on, earlier)


def _audit(args: AuditArguments, data: str, output_dir: Path) -> int:
    from sdiareward.audit.run import Auditor
    from sdiareward.audit.verdicts import read_audit, require_same_pairs

    job = _make_job(args, data, output_dir)
    against = None if args.against is None else read_audit(args.against)
    auditor = Auditor(job)
    if auditor.notice is not None:
        print(f"sdiareward: notice: {auditor.notice}", file=sys.stderr)
    if against is not None:
        require_same_pairs(against, auditor.run, len(auditor.sample))
    audit, earlier = auditor.audit(), None if against is None else against["verdicts"]
    _write(auditor, audit, earlier)
    return _report_failures(audit, args.fail_on, earlier)


def _make_job(args: AuditArguments, data: str, output_dir: Path) -> AuditJob:
    from sdiareward.audit.run import PARTS, AuditJob
    from sdiareward.perturbations.attacks import ATTACKS
    from sdiareward.perturbations.registry import PERTURBATIONS

    _require_checks(args.fail_on)
    return AuditJob(
        args.make_spec(),
        data,
        output_dir,
        nuisances=_choose_names("--nuisances", args.nuisances, PERTURBATIONS),
        attacks=_choose_names("--attacks", args.attacks, ATTACKS),
        parts=_choose_names("--parts", args.parts, PARTS),
        **{name: getattr(args, name) for name in _AS_THEY_ARE},
    )


def _require_checks(patterns: Sequence[str]) -> None:
    from sdiareward.audit.checks import check_names
    from sdiareward.audit.verdicts import find_unknown_patterns

    if unknown := find_unknown_patterns(patterns, check_names()):
        raise UserError(f"--fail-on: there is no check {unknown[0]!r}; the checks are {', '.join(check_names())}.")


def _choose_names(flag: str, names: Sequence[str], known: Mapping[str, Any] | Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in (*known, _ALL, _NONE)]
    if unknown:
        raise UserError(f"{flag}: {unknown[0]!r} is none of {', '.join(known)}, {_ALL}, {_NONE}.")
    return tuple(name for name in known if name in names or _ALL in names)


def _write(auditor: Auditor, audit: dict[str, Any], earlier: Sequence[Mapping[str, Any]] | None) -> None:
    from sdiareward.audit.page import write_page
    from sdiareward.audit.run import split_details
    from sdiareward.audit.summary import render_audit
    from sdiareward.common.files import write_file

    folder = auditor.folder
    short, details = split_details(audit)
    for name, content in (("conditions.json", details), ("audit.json", short)):
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_file(folder / name, text + "\n")
    write_file(folder / "audit.md", render_audit(audit, earlier))
    page = write_page(folder, audit, earlier)
    print(render_audit(audit, earlier))
    print(f"Page: {page}")


def _report_failures(
    audit: Mapping[str, Any], patterns: Sequence[str], earlier: Sequence[Mapping[str, Any]] | None
) -> int:
    """Print the checks that must not fail and did; return the exit status."""
    from sdiareward.audit.verdicts import find_regressions, select, show_limit, show_value

    lost = [] if earlier is None else find_regressions(audit["verdicts"], earlier)
    failed = {verdict["name"]: verdict for verdict in [*select(audit["verdicts"], patterns), *lost]}
    gone = {verdict["name"] for verdict in lost}
    for name, verdict in failed.items():
        value = "not measured" if verdict["value"] is None else show_value(verdict["value"], verdict["unit"])
        before = "; the earlier audit passed it" if name in gone else ""
        print(f"sdiareward: {name}: {value}, limit {show_limit(verdict)}{before}", file=sys.stderr)
    return int(bool(failed))
