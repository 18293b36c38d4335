"""`sdiareward audit`: change pairs in ways that must not matter or must not pay, and see what a model's rewards do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.locks import lock_folder
from sdiareward.common.package_files import NANO

from .arguments import InputError, count


if TYPE_CHECKING:
    from sdiareward.audit.run import AuditJob, Auditor

_ALL, _NONE = "all", "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.epilog = "The same command goes on where a run was killed; docs/audit.md explains every check."
    parser.add_argument("--model", default=str(NANO), help="checkpoint folder or Hub id (default: the package's nano)")
    forms = "folder or Hub id of pairs, or a .json, .jsonl or .parquet file"
    parser.add_argument("--data", "--dataset", required=True, help=forms)
    written = "folder for audit.html, audit.md, audit.json and every reward"
    parser.add_argument("--output_dir", "--output-dir", type=Path, required=True, help=written)
    parser.add_argument("--split", default="test", help="to audit on (default: %(default)s)")
    fitted = "split that baselines and left-out heads are fitted on (default: %(default)s)"
    parser.add_argument("--train_split", "--train-split", default="train", help=fitted)
    _add_scope(parser.add_argument_group("how much"))
    _add_checks(parser.add_argument_group("exit status 1"))
    group = parser.add_argument_group("model")
    group.add_argument("--dtype", help="of the backbone, such as bfloat16 (default: the checkpoint's)")
    group.add_argument("--device", help="such as cuda:0 (default: an accelerator if there is one)")
    group.add_argument("--batch_tokens", "--batch-tokens", type=int, help="tokens in one forward pass")


def _add_scope(group: Any) -> None:
    drawn = "pairs to draw, spread over subsets, recordings and synthesizers; 0 for all (default: %(default)s)"
    group.add_argument("--num_pairs", "--num-pairs", type=count, default=60, help=drawn)
    for name in ("nuisances", "attacks"):
        group.add_argument(f"--{name}", nargs="+", default=[_ALL], metavar="NAME", help=f"{name} to try, all or none")
    pasted = "folder with recordings in folders named after their sounds, in place of made ones: docs/audit.md"
    group.add_argument("--sounds_dir", "--sounds-dir", metavar="FOLDER", help=pasted)
    group.add_argument("--parts", nargs="+", metavar="PART", help="of the audit (default: all but left_out)")
    heads = "also train heads without one synthesizer or source at a time, on this backbone (default: the model's own)"
    group.add_argument("--left_out", "--left-out", nargs="?", const="", metavar="BACKBONE", help=heads)
    group.add_argument(
        "--seed", type=int, default=0, help="of the draw, of noise, of intervals (default: %(default)s)"
    )


def _add_checks(group: Any) -> None:
    named = "checks that must pass, as patterns such as 'attack.*', or any: no check may fail"
    group.add_argument("--fail-on", "--fail_on", nargs="+", default=[], metavar="NAME", help=named)
    earlier = "audit.json of an earlier audit: what passed there must pass here"
    group.add_argument("--against", type=Path, metavar="FILE", help=earlier)


def run(args: argparse.Namespace) -> int:
    """Audit a model; return the exit status."""
    with lock_folder(args.output_dir):
        return _audit(args)


def _audit(args: argparse.Namespace) -> int:
    from sdiareward.audit.run import Auditor
    from sdiareward.audit.verdicts import read_audit, require_same_pairs

    earlier = None
    try:
        job = _job(args)
        against = None if args.against is None else read_audit(args.against)
        auditor = Auditor(job)
        if against is not None:
            require_same_pairs(against, auditor.run, len(auditor.sample))
            earlier = against["verdicts"]
        audit = auditor.audit()
    except KeyboardInterrupt:
        print(f"sdiareward: interrupted; the same command goes on in {args.output_dir}", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    _write(auditor, audit, earlier)
    return _fail(audit, args.fail_on, earlier)


def _job(args: argparse.Namespace) -> AuditJob:
    """Return the job, or raise if a name in it is unknown."""
    from sdiareward.audit.checks import check_names
    from sdiareward.audit.run import DEFAULT_PARTS, PARTS, AuditJob
    from sdiareward.audit.verdicts import unknown_patterns
    from sdiareward.perturbations.attacks import ATTACKS
    from sdiareward.perturbations.registry import PERTURBATIONS
    from sdiareward.scoring.model_spec import ModelSpec

    if unknown := unknown_patterns(args.fail_on, check_names()):
        raise InputError(f"--fail-on: there is no check {unknown[0]!r}; the checks are {', '.join(check_names())}.")
    parts = _named("--parts", args.parts or list(DEFAULT_PARTS), PARTS)
    if args.left_out is not None and "left_out" not in parts:
        parts = (*parts, "left_out")
    return AuditJob(
        ModelSpec(args.model, dtype=args.dtype, device=args.device, batch_tokens=args.batch_tokens),
        args.data,
        args.output_dir,
        nuisances=_named("--nuisances", args.nuisances, PERTURBATIONS),
        attacks=_named("--attacks", args.attacks, ATTACKS),
        parts=parts,
        left_out_model=args.left_out or None,
        **{name: getattr(args, name) for name in ("split", "train_split", "num_pairs", "sounds_dir", "seed")},
    )


def _named(flag: str, names: Sequence[str], known: Mapping[str, Any] | Sequence[str]) -> tuple[str, ...]:
    """Return the names that a flag gives, in the order of the package."""
    unknown = [name for name in names if name not in (*known, _ALL, _NONE)]
    if unknown:
        raise InputError(f"{flag}: {unknown[0]!r} is none of {', '.join(known)}, {_ALL}, {_NONE}.")
    return tuple(name for name in known if name in names or _ALL in names)


def _write(auditor: Auditor, audit: dict[str, Any], earlier: Sequence[Mapping[str, Any]] | None) -> None:
    """Write the results in three forms and print the one that a terminal shows."""
    from sdiareward.audit.page import write_page
    from sdiareward.audit.run import split_details
    from sdiareward.audit.summary import render_audit
    from sdiareward.common.escaping import escape_terminal
    from sdiareward.common.files import write_file

    folder = auditor.folder
    short, details = split_details(audit)
    for name, content in (("conditions.json", details), ("audit.json", short)):
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_file(folder / name, text + "\n")
    write_file(folder / "audit.md", render_audit(audit, earlier))
    page = write_page(folder, audit, auditor.examples(), earlier)
    print(escape_terminal(render_audit(audit, earlier)))
    print(f"Page: {page}")


def _fail(audit: Mapping[str, Any], patterns: Sequence[str], earlier: Sequence[Mapping[str, Any]] | None) -> int:
    """Say what must not have failed, and return the exit status."""
    from sdiareward.audit.verdicts import regressions, select, show_limit, show_value

    lost = [] if earlier is None else regressions(audit["verdicts"], earlier)
    failed = {verdict["name"]: verdict for verdict in [*select(audit["verdicts"], patterns), *lost]}
    gone = {verdict["name"] for verdict in lost}
    for name, verdict in failed.items():
        value = "not measured" if verdict["value"] is None else show_value(verdict["value"], verdict["unit"])
        before = "; the earlier audit passed it" if name in gone else ""
        print(f"sdiareward: {name}: {value}, limit {show_limit(verdict)}{before}", file=sys.stderr)
    return int(bool(failed))
