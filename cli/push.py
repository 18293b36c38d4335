"""`sdiareward push`: publish a data set, a model, the metric or the demo on the Hub."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from sdiareward.common.commands import make_app
from sdiareward.common.errors import UserError, format_user_error
from sdiareward.common.files import lock_folder
from sdiareward.common.hub import resolve_revision


if TYPE_CHECKING:
    from sdiareward.cards.push import RepositoryPlan

Gated = Literal["auto", "manual"]


@Parameter(name="*", group="Publishing")
@dataclass(kw_only=True)
class PushArguments:
    """How to publish; there is no flag for a token, which would stay in the shell's history.

    Args:
        yes: Publish; without it, only print the plan.
        preview: New or empty folder for the card, its pictures and the list of files.
        private: Make the repository private.
        revision: Branch, created if missing.
        create_pr: Propose the files as a pull request.
        message: First line of the commit.
        tag: Tag of the commit, such as v0.1.0.
        prune: Delete the repository's other files.
    """

    yes: bool = False
    preview: Path | None = None
    private: bool = False
    revision: str = "main"
    create_pr: bool = False
    message: str | None = None
    tag: str | None = None
    prune: bool = False


PUSH = PushArguments()
PUSHES = make_app(
    "push",
    "Publish a data set, a model, the metric or the demo on the Hub.",
    help_epilogue="The token comes from HF_TOKEN or `hf auth login`. The same command resumes an interrupted push.",
)


@PUSHES.command
def dataset(
    source: Path, repo: str, /, *, gated: Gated | None = None, metadata: Path | None = None, push: PushArguments = PUSH
) -> None:
    """Publish Parquet shards and their card.

    Args:
        source: Folder of the data set, as `sdiareward build` writes it.
        repo: ORG/NAME on the Hub; a name alone is in the account of the token.
        gated: Require a request for access, granted at once (auto) or by you (manual).
        metadata: Folder of its metadata release, which is published too.
    """
    from sdiareward.cards.push import plan_dataset

    _push(push, repo, lambda: plan_dataset(source, repo_id=repo, metadata=metadata), gated)


@PUSHES.command
def model(
    source: Path,
    repo: str,
    /,
    *,
    gated: Gated | None = None,
    results: Path | None = None,
    base_model: str | None = None,
    datasets: list[str] | None = None,
    head_only: bool = False,
    push: PushArguments = PUSH,
) -> None:
    """Publish a checkpoint with its code and card.

    Args:
        source: Folder of the checkpoint.
        repo: ORG/NAME on the Hub; a name alone is in the account of the token.
        gated: Require a request for access, granted at once (auto) or by you (manual).
        results: results.json of its evaluation; the checkpoint's by default.
        base_model: Its base on the Hub; from about.md by default.
        datasets: Training data on the Hub; from about.md by default.
        head_only: Publish the head alone; the base must be unchanged.
    """
    from sdiareward.cards.push import plan_model

    # The card's examples load the version that is being published.
    chosen: dict[str, Any] = {"revision": push.tag or (push.revision if push.revision != "main" else None)}
    chosen |= {"results": results, "base_model": base_model, "datasets": datasets or [], "head_only": head_only}
    _push(push, repo, lambda: plan_model(source, repo_id=repo, **chosen), gated)


@PUSHES.command
def metric(repo: str, /, *, push: PushArguments = PUSH) -> None:
    """Publish the Space of the metric `esdr_accuracy`.

    Args:
        repo: ORG/NAME on the Hub; a name alone is in the account of the token.
    """
    from sdiareward.cards.push import plan_metric

    _push(push, repo, lambda: plan_metric(repo))


@PUSHES.command
def space(
    repo: str,
    /,
    *,
    model: str | None = None,
    model_revision: str | None = None,
    hardware: str = "cpu-basic",
    push: PushArguments = PUSH,
) -> None:
    """Publish the Space of the demo.

    Args:
        repo: ORG/NAME on the Hub; a name alone is in the account of the token.
        model: Model on the Hub that it loads; the package's by default.
        model_revision: Branch, tag or commit of that model; main by default.
        hardware: Hardware suggested to the Hub.
    """
    from sdiareward.cards.push import plan_space

    name = resolve_revision(model, model_revision)
    _push(push, repo, lambda: plan_space(name, hardware=hardware))


def _push(push: PushArguments, repo: str, make_plan: Callable[[], RepositoryPlan], gated: Gated | None = None) -> None:
    from sdiareward.cards.push import PublishError, check_plan, publish, render_plan, write_preview

    chosen = {name: value for name, value in vars(push).items() if name not in ("yes", "preview")}
    with lock_folder(push.preview) if push.preview is not None else nullcontext():
        try:
            plan = make_plan()
            listing = render_plan(plan, repo)
            print(listing)
            if push.preview is not None:
                print(f"Preview: {write_preview(plan, listing, push.preview)}")
            if not push.yes:
                check_plan(plan)
                print("Nothing was sent. To publish: the same command with --yes")
                return
            pushed = publish(plan, repo, gated=gated, **chosen)
        except (UserError, OSError, ValueError, PublishError) as error:
            raise UserError(format_user_error(error) or str(error)) from None
    for path in pushed.kept:
        print(f"sdiareward: notice: {path} is kept: it is in the repository, but not in the plan", file=sys.stderr)
    print(f"{'commit' if pushed.is_changed else 'nothing new: commit'} {pushed.commit}")
    print(pushed.pull_request_url or pushed.url)
