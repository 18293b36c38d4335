"""`sdiareward push`: publish a data set, a model, the metric or the demo on the Hub."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sdiareward.common.escaping import escape_terminal

from .arguments import InputError


if TYPE_CHECKING:
    from sdiareward.publishing.plan import RepositoryPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands to its parser."""
    kinds = parser.add_subparsers(required=True, metavar="KIND", dest="kind")
    _add_dataset(kinds.add_parser("dataset", help="Parquet shards and their card", allow_abbrev=False))
    _add_model(kinds.add_parser("model", help="a checkpoint with its code and card", allow_abbrev=False))
    _add_metric(kinds.add_parser("metric", help="the Space of the metric `esdr_accuracy`", allow_abbrev=False))
    _add_space(kinds.add_parser("space", help="the Space of the demo", allow_abbrev=False))


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(plan=_plan_dataset)
    parser.add_argument("source", type=Path, help="folder of the data set, as `dataset_builder build` writes it")
    parser.add_argument("--metadata", type=Path, help="folder of its release without audio (default: made from it)")
    parser.add_argument(
        "--work-dir",
        type=Path,
        help="where shards are rewritten that may not go whole (SOURCE-publish; without --yes, nothing is kept)",
    )
    _add_options(parser, can_be_gated=True)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(plan=_plan_model)
    parser.add_argument("source", type=Path, help="folder of the checkpoint")
    parser.add_argument("--results", type=Path, help="results.json of its evaluation (default: the checkpoint's)")
    parser.add_argument("--base-model", help="its base on the Hub (default: what about.md names)")
    parser.add_argument(
        "--dataset",
        action="append",
        default=[],
        help="data set on the Hub that it was trained on; may be repeated (default: what about.md names)",
    )
    parser.add_argument("--head-only", action="store_true", help="publish the head alone; the base must be unchanged")
    _add_options(parser, can_be_gated=True)


def _add_metric(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(plan=_plan_metric)
    _add_options(parser, can_be_gated=False)


def _add_space(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(plan=_plan_space)
    parser.add_argument("--model", help="model on the Hub that it loads (default: the one of the package)")
    parser.add_argument("--hardware", default="cpu-basic", help="what the Hub suggests (default: %(default)s)")
    _add_options(parser, can_be_gated=False)


def _add_options(parser: argparse.ArgumentParser, *, can_be_gated: bool) -> None:
    """Add what every kind has; there is no flag for a token, which would stay in the shell's history."""
    parser.add_argument("repo", help="ORG/NAME on the Hub; a name alone is in the account of the token")
    parser.add_argument("--yes", action="store_true", help="publish; without it, only show what would be")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    if can_be_gated:
        parser.add_argument("--gated", choices=("auto", "manual"), help="have readers ask for access, granted so")
    parser.set_defaults(gated=None)
    parser.add_argument("--revision", default="main", help="branch, made if missing (default: %(default)s)")
    parser.add_argument("--create-pr", action="store_true", help="propose the files as a pull request")
    parser.add_argument("--message", help="first line of the commit")
    parser.add_argument("--tag", help="tag of the commit, for instance v0.1.0")
    parser.add_argument("--prune", action="store_true", help="delete what the repository holds besides these files")
    parser.epilog = "The token is that of HF_TOKEN or of `hf auth login`. A stopped push goes on by the same command."


def run(args: argparse.Namespace) -> int:
    """Show or publish a plan; return the exit status."""
    from sdiareward.common.redaction import redact
    from sdiareward.common.user_errors import RunBlockedError, format_user_error
    from sdiareward.publishing.hub_errors import PublishError
    from sdiareward.publishing.preflight import check_plan
    from sdiareward.publishing.uploading import PushOptions, publish

    names = ("private", "gated", "revision", "create_pr", "tag", "prune")
    chosen = {"message": args.message} if args.message else {}
    try:
        options = PushOptions(**{name: getattr(args, name) for name in names}, **chosen)
        with _work_folder(args):
            plan = args.plan(args)
            print(escape_terminal(_describe(plan, args.repo)))
            if not args.yes:
                check_plan(plan)
                print("Nothing was sent. To publish: the same command with --yes")
                return 0
            pushed = publish(plan, args.repo, options)
    except KeyboardInterrupt:
        print("sdiareward: interrupted; the same command goes on, and sends nothing twice", file=sys.stderr)
        return 130
    except (RunBlockedError, OSError, ValueError, PublishError) as error:
        raise InputError(redact(format_user_error(error) or str(error))) from None
    for notice in pushed.notices:
        print(escape_terminal(f"sdiareward: notice: {notice}"), file=sys.stderr)
    print(f"{'commit' if pushed.is_changed else 'nothing new: commit'} {pushed.commit}")
    print(pushed.pull_request_url or pushed.url)
    return 0


@contextmanager
def _work_folder(args: argparse.Namespace) -> Iterator[None]:
    """Let nobody else write where a data set is prepared; a mere look leaves nothing behind, unless told where."""
    if args.kind != "dataset" or not args.source.is_dir():
        yield
        return
    from sdiareward.common.locks import lock_folder

    source = args.source.resolve()
    if args.yes or args.work_dir:
        args.work_dir = args.work_dir or source.with_name(f"{source.name}-publish")
        with lock_folder(args.work_dir):
            yield
        return
    # Beside the source: of a large data set, it does not fit where temporary files usually go.
    with TemporaryDirectory(prefix=f".{source.name}-publish-", dir=source.parent) as folder:
        args.work_dir = Path(folder)
        yield


def _plan_dataset(args: argparse.Namespace) -> RepositoryPlan:
    from sdiareward.publishing.dataset_repository import plan_dataset

    return plan_dataset(args.source, metadata=args.metadata, repo_id=args.repo, work_dir=args.work_dir)


def _plan_model(args: argparse.Namespace) -> RepositoryPlan:
    from sdiareward.publishing.model_repository import plan_model

    chosen = {name: getattr(args, name) for name in ("results", "base_model", "head_only")}
    # What the card's examples load: the version that is being published.
    revision = args.tag or (args.revision if args.revision != "main" else None)
    return plan_model(args.source, repo_id=args.repo, revision=revision, datasets=args.dataset, **chosen)


def _plan_metric(args: argparse.Namespace) -> RepositoryPlan:
    from sdiareward.publishing.metric_repository import plan_metric

    return plan_metric(args.repo)


def _plan_space(args: argparse.Namespace) -> RepositoryPlan:
    from sdiareward.publishing.space_repository import plan_space

    return plan_space(args.model, hardware=args.hardware)


def _describe(plan: RepositoryPlan, repo: str) -> str:
    """Return the list of files with their sizes, and what the reader should know before publishing."""
    from tqdm import tqdm

    rows = sorted((file.path_in_repo, tqdm.format_sizeof(file.size_bytes, "B")) for file in plan.files)
    count = "1 file" if len(rows) == 1 else f"{len(rows)} files"
    rows.append(("total", tqdm.format_sizeof(plan.total_bytes, "B")))
    width = max(len(path) for path, _ in rows)
    lines = [f"{plan.repo_type} {repo}: {count}"]
    lines += [f"  {path:<{width}}  {size:>9}" for path, size in rows]
    return "\n".join(lines + [f"note: {note}" for note in plan.notes])
