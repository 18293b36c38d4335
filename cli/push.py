"""`sdiareward push`: publish a data set, a model, the metric or the demo on the Hub."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sdiareward.common.hub import make_revision_field
from sdiareward.common.user_errors import UserError, format_user_error


if TYPE_CHECKING:
    from sdiareward.cards.push import RepositoryPlan


_REPO = {"positional": True, "help": "ORG/NAME on the Hub; a name alone is in the account of the token"}


@dataclass(kw_only=True)
class PushArguments:
    """How to publish; there is no flag for a token, which would stay in the shell's history."""

    yes: bool = field(default=False, metadata={"help": "publish; without it, only print the plan"})
    preview: Path | None = field(
        default=None,
        metadata={
            "metavar": "DIR",
            "help": "write the card, its pictures and the list of files as they would be published into this new or "
            "empty folder",
        },
    )
    private: bool = field(default=False, metadata={"help": "make the repository private"})
    revision: str = field(default="main", metadata={"help": "branch, created if missing"})
    create_pr: bool = field(default=False, metadata={"help": "propose the files as a pull request"})
    message: str | None = field(default=None, metadata={"help": "first line of the commit"})
    tag: str | None = field(default=None, metadata={"help": "tag of the commit, such as v0.1.0"})
    prune: bool = field(default=False, metadata={"help": "delete the repository's other files"})


@dataclass(kw_only=True)
class GatedArguments(PushArguments):
    source: Path = field(metadata={"positional": True, "help": "folder to publish"})
    repo: str = field(metadata=_REPO)
    gated: Literal["auto", "manual"] | None = field(
        default=None, metadata={"help": "let readers request access, granted in this way"}
    )


@dataclass(kw_only=True)
class DatasetArguments(GatedArguments):
    """What to publish of a data set: `source` is its folder, as `dataset_builder build` writes it."""

    metadata: Path | None = field(
        default=None, metadata={"help": "folder of its metadata release, which is published too"}
    )


@dataclass(kw_only=True)
class ModelArguments(GatedArguments):
    """What to publish of a model: `source` is the folder of its checkpoint."""

    results: Path | None = field(
        default=None, metadata={"help": "results.json of its evaluation (default: the checkpoint's)"}
    )
    base_model: str | None = field(default=None, metadata={"help": "its base on the Hub (default: from about.md)"})
    dataset: list[str] = field(
        default_factory=list,
        metadata={
            "action": "append",
            "help": "training data on the Hub; may be repeated (default: from about.md)",
        },
    )
    head_only: bool = field(default=False, metadata={"help": "publish the head alone; the base must be unchanged"})


@dataclass(kw_only=True)
class MetricArguments(PushArguments):
    repo: str = field(metadata=_REPO)


@dataclass(kw_only=True)
class SpaceArguments(PushArguments):
    repo: str = field(metadata=_REPO)
    model: str | None = field(
        default=None, metadata={"help": "model on the Hub that it loads (default: the package's)"}
    )
    model_revision: str | None = make_revision_field("model", "that model")
    hardware: str = field(default="cpu-basic", metadata={"help": "hardware suggested to the Hub"})


def push_dataset(args: DatasetArguments) -> None:
    from sdiareward.cards.push import plan_dataset

    _push(args, args.repo, lambda: plan_dataset(args.source, repo_id=args.repo, metadata=args.metadata))


def push_model(args: ModelArguments) -> None:
    from sdiareward.cards.push import plan_model

    chosen = {name: getattr(args, name) for name in ("results", "base_model", "head_only")}
    # The card's examples load the version that is being published.
    revision = args.tag or (args.revision if args.revision != "main" else None)
    chosen |= {"revision": revision, "datasets": args.dataset}
    _push(args, args.repo, lambda: plan_model(args.source, repo_id=args.repo, **chosen))


def push_metric(args: MetricArguments) -> None:
    from sdiareward.cards.push import plan_metric

    _push(args, args.repo, lambda: plan_metric(args.repo))


def push_space(args: SpaceArguments) -> None:
    from sdiareward.cards.push import plan_space

    _push(args, args.repo, lambda: plan_space(args.model, hardware=args.hardware))


def _push(args: PushArguments, repo: str, make_plan: Callable[[], RepositoryPlan]) -> None:
    from sdiareward.cards.push import PublishError, check_plan, publish, render_plan, write_preview

    names = ("private", "gated", "revision", "create_pr", "message", "tag", "prune")
    try:
        plan = make_plan()
        listing = render_plan(plan, repo)
        print(listing)
        if args.preview is not None:
            print(f"Card: {write_preview(plan, listing, args.preview)}")
        if not args.yes:
            check_plan(plan)
            print("Nothing was sent. To publish: the same command with --yes")
            return
        pushed = publish(plan, repo, **{name: getattr(args, name) for name in names if hasattr(args, name)})
    except (UserError, OSError, ValueError, PublishError) as error:
        raise UserError(format_user_error(error) or str(error)) from None
    for path in pushed.kept:
        print(f"sdiareward: notice: {path} is in the repository but not in the plan, and stays", file=sys.stderr)
    print(f"{'commit' if pushed.is_changed else 'nothing new: commit'} {pushed.commit}")
    print(pushed.pull_request_url or pushed.url)
