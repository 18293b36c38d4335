"""Publish a plan in one commit.

- `create_commit` with all files, not the many commits of `upload_folder`: a reader never sees half a data set. A push
  that is run again sends no file twice: the Hub is asked for each hash (LFS) or chunk (Xet) first.
- Gates and privacy are set before the first file is sent.
- The commit names its parent, so a commit in between is never overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .plan import RepositoryPlan
from .preflight import check_plan, find_secret


if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.hf_api import GitRefs

# Files of an earlier push with these endings would be loaded with, or instead of, the new ones.
_LOADED_TOGETHER = (".parquet", ".safetensors", ".safetensors.index.json")
_REMEDIES = {
    401: "log in with `hf auth login` or set HF_TOKEN",
    403: "use a token with write access, or propose the change with --create-pr",
    404: "create it, or check the name and that the token may see it",
}


class PublishError(RuntimeError):
    """Raised when the Hub refuses or cannot be reached."""


@dataclass(frozen=True)
class PushOptions:
    private: bool = False  # Also makes an existing public repository private.
    gated: Literal["auto", "manual"] | None = None
    revision: str = "main"
    create_pr: bool = False
    message: str = "Publish with sdiareward"
    tag: str | None = None
    prune: bool = False  # Delete, in the same commit, files that are not in the plan.

    def __post_init__(self) -> None:
        if self.create_pr and (self.private or self.gated or self.tag):
            raise ValueError("a pull request changes files only; omit private, gated and tag, or create_pr.")
        if not self.message.strip():
            raise ValueError("the commit has no message; give it one.")
        if found := find_secret(self.message.encode()):
            raise ValueError(f"the commit's message seems to hold {found}; remove it, and revoke it.")


@dataclass(frozen=True)
class Pushed:
    url: str
    commit: str  # Holds the plan; an earlier one unless `is_changed`.
    is_changed: bool
    pull_request_url: str | None = None
    notices: list[str] = field(default_factory=list)


def publish(plan: RepositoryPlan, repo_id: str, options: PushOptions | None = None) -> Pushed:
    """Publish a plan; the same call resumes an interrupted push and sends no file again that has arrived."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HTTPError

    check_plan(plan, [token] if (token := get_token()) else [])
    try:
        return _push(HfApi(library_name="sdiareward"), plan, repo_id, options or PushOptions())
    # The library raises RuntimeError for failures of its threads, ValueError for wrong names.
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        remedy = _REMEDIES.get(status or 0, "correct that and run the same command again, which resumes")
        message = " ".join(str(error).split()).rstrip(".")
        raise PublishError(f"{plan.repo_type} {repo_id}: {message}; {remedy}.") from error


def _push(api: HfApi, plan: RepositoryPlan, repo_id: str, options: PushOptions) -> Pushed:
    # First, so that an unknown token is reported as such.
    account = api.whoami()["name"]
    full_id = repo_id if "/" in repo_id else f"{account}/{repo_id}"
    where: dict[str, Any] = {"repo_id": full_id, "repo_type": plan.repo_type}
    _open_repository(api, where, options, plan.space_sdk)
    refs = api.list_repo_refs(**where)
    head = _open_branch(api, where, options, refs)
    tagged = {tag.name: tag.target_commit for tag in refs.tags}.get(options.tag or "")
    if tagged not in (None, head):
        raise ValueError(f"tag {options.tag!r} is already at commit {tagged}; choose another.")
    operations, kept = _make_operations(plan, api.list_repo_files(revision=head, **where), options.prune)
    commit = api.create_commit(
        operations=operations,
        commit_message=options.message,
        revision=options.revision,
        create_pr=options.create_pr,
        parent_commit=head,
        **where,
    )
    if tagged and commit.oid != head:
        raise ValueError(f"published as {commit.oid}, but the tag stays at {head}; choose another.")
    if options.tag and not tagged:
        api.create_tag(tag=options.tag, revision=commit.oid, **where)
    notices = [f"{path} is in the repository but not in the plan, and stays" for path in kept]
    return Pushed(str(commit.repo_url), commit.oid, commit.oid != head, commit.pr_url, notices)


def _open_repository(api: HfApi, where: dict[str, Any], options: PushOptions, space_sdk: str | None) -> None:
    """Create the repository if it is missing; set gate and privacy before it holds a file."""
    from huggingface_hub.errors import RepositoryNotFoundError

    changes: dict[str, Any] = {"gated": options.gated}
    try:
        info = api.repo_info(**where)
    except RepositoryNotFoundError:
        if options.create_pr:
            raise
        # None: the organization's default, which may be private.
        api.create_repo(private=options.private or None, space_sdk=space_sdk, exist_ok=True, **where)
    else:
        changes["private"] = True if options.private and not info.private else None
        if options.gated == getattr(info, "gated", None):
            changes["gated"] = None
    if changes := {name: value for name, value in changes.items() if value is not None}:
        api.update_repo_settings(**changes, **where)


def _open_branch(api: HfApi, where: dict[str, Any], options: PushOptions, refs: GitRefs) -> str:
    """Create the branch if it is missing; return its commit."""
    name = options.revision
    if any(tag.name == name for tag in refs.tags):
        raise ValueError(f"{name!r} is a tag, which cannot move; give a branch as revision.")
    is_new = not name.startswith("refs/") and all(branch.name != name for branch in refs.branches)
    if is_new and not options.create_pr:
        api.create_branch(branch=name, exist_ok=True, **where)
    return str(api.repo_info(revision=name, **where).sha)


def _make_operations(
    plan: RepositoryPlan, present: list[str], is_pruned: bool
) -> tuple[list[CommitOperationAdd | CommitOperationDelete], list[str]]:
    """Return the operations of the commit, and files that stay though not planned."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    additions = [CommitOperationAdd(file.path_in_repo, file.source) for file in plan.files]
    others = sorted(set(present) - {file.path_in_repo for file in plan.files} - {".gitattributes"})
    if is_pruned:
        return [*additions, *map(CommitOperationDelete, others)], []
    if clashing := [path for path in others if path.endswith(_LOADED_TOGETHER)]:
        raise ValueError(
            f"the repository holds {len(clashing)} data files that are not planned and would be loaded with the "
            f"new ones ({clashing[0]}, ...); delete them in the same commit with --prune."
        )
    return list(additions), others
