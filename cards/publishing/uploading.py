"""Publish a plan in one commit.

- `create_commit` with all files, not the many commits of `upload_folder`: a reader never sees half a data set. A push
  that is run again sends no file twice: the Hub is asked for each hash (LFS) or chunk (Xet) first.
- The files are read in place: nothing is copied, and no folder is walked.
- Gates and privacy are set before the first file is sent.
- The commit names its parent, so a commit in between is never overwritten.
- Finally each hash is compared with those of the commit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.common.redaction import redact

from .hub_errors import PublishError, explain_error, redact_logs
from .plan import RepositoryPlan
from .preflight import check_plan, find_secret


if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.hf_api import GitRefs, RepoFile

# Files of an earlier push with these endings would be loaded with, or instead of, the new ones.
_LOADED_TOGETHER = (".parquet", ".safetensors", ".safetensors.index.json")


@dataclass(frozen=True)
class PushOptions:
    """How a plan is published.

    Args:
        private (`bool`): Make the repository private, also an existing public one.
        gated (`str`, *optional*): Require readers to ask for access, which is granted `"auto"` or `"manual"`.
        revision (`str`): Branch to commit to; created from `main` if missing.
        create_pr (`bool`): Propose the commit as a pull request.
        message (`str`): First line of the commit.
        tag (`str`, *optional*): Tag of the commit.
        prune (`bool`): Delete, in the same commit, files of the repository that are not in the plan.
    """

    private: bool = False
    gated: Literal["auto", "manual"] | None = None
    revision: str = "main"
    create_pr: bool = False
    message: str = "Publish with sdiareward"
    tag: str | None = None
    prune: bool = False

    def __post_init__(self) -> None:
        if self.create_pr and (self.private or self.gated or self.tag):
            raise ValueError("a pull request changes files only; omit private, gated and tag, or create_pr.")
        if not self.message.strip():
            raise ValueError("the commit has no message; give it one.")
        if found := find_secret(self.message.encode()):
            raise ValueError(f"the commit's message seems to hold {found}; remove it, and revoke it.")


@dataclass(frozen=True)
class Pushed:
    """The result of a push.

    Args:
        url (`str`): Page of the repository.
        commit (`str`): Hash of the commit that holds the plan.
        is_changed (`bool`): Whether the commit is new.
        pull_request_url (`str`, *optional*): Page of the pull request.
        notices (`list[str]`): Messages for the user: warnings of the Hub, files that stay though not planned.
    """

    url: str
    commit: str
    is_changed: bool
    pull_request_url: str | None = None
    notices: list[str] = field(default_factory=list)


def publish(plan: RepositoryPlan, repo_id: str, options: PushOptions | None = None) -> Pushed:
    """Publish a plan at the endpoint of `huggingface_hub`, with its token.

    The same call resumes an interrupted push: no file that arrived is sent again.

    Args:
        plan (`RepositoryPlan`): The files of the repository.
        repo_id (`str`): `ORG/name`, or a name in the account of the token.
        options (`PushOptions`, *optional*): Options of the push.

    Returns:
        `Pushed`: The result.

    Raises:
        ValueError: The plan must not be published (`preflight.check_plan`).
        FileNotFoundError: A file of the plan is gone.
        PublishError: The Hub rejects the push or cannot be reached; the message is one line without secrets.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HTTPError

    secrets = [token] if (token := get_token()) else []
    check_plan(plan, secrets)
    with redact_logs(secrets), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            pushed = _Push(plan, repo_id, options or PushOptions()).run()
        # The library raises RuntimeError for failures of its threads, ValueError for wrong names.
        except (HTTPError, OSError, RuntimeError, ValueError) as error:
            # Without the cause, whose message may hold secrets.
            raise PublishError(redact(explain_error(error, f"{plan.repo_type} {repo_id}"), secrets)) from None
    # UserWarning: the Hub's warnings about the card; others concern libraries.
    texts = [str(warning.message) for warning in warned if issubclass(warning.category, UserWarning)]
    notices = [redact(" ".join(text.split()), secrets) for text in texts]
    return Pushed(**{**vars(pushed), "notices": [*notices, *pushed.notices]})


class _Push:
    """One push to one repository, step by step."""

    def __init__(self, plan: RepositoryPlan, repo_id: str, options: PushOptions):
        from huggingface_hub import HfApi

        self._api: HfApi = HfApi(library_name="sdiareward")
        self._plan = plan
        self._options = options
        # First, so that an unknown token is reported as such.
        account = self._api.whoami()["name"]
        self._where: dict[str, Any] = {
            "repo_id": repo_id if "/" in repo_id else f"{account}/{repo_id}",
            "repo_type": plan.repo_type,
        }

    def run(self) -> Pushed:
        from huggingface_hub import CommitOperationAdd

        self._open_repository()
        refs = self._api.list_repo_refs(**self._where)
        head = self._open_branch(refs)
        is_tagged = self._is_tagged(refs, head)
        operations, kept = self._make_operations(head)
        commit = self._api.create_commit(
            operations=operations,
            commit_message=self._options.message,
            revision=self._options.revision,
            create_pr=self._options.create_pr,
            parent_commit=head,
            **self._where,
        )
        self._verify(commit.oid, [operation for operation in operations if isinstance(operation, CommitOperationAdd)])
        if self._options.tag and not is_tagged:
            self._api.create_tag(tag=self._options.tag, revision=commit.oid, **self._where)
        elif is_tagged and commit.oid != head:
            raise ValueError(f"published as {commit.oid}, but the tag stays at {head}; choose another.")
        notices = [f"{path} is in the repository but not in the plan, and stays" for path in kept]
        return Pushed(str(commit.repo_url), commit.oid, commit.oid != head, commit.pr_url, notices)

    def _open_repository(self) -> None:
        """Create the repository if it is missing; set gate and privacy before it holds a file."""
        from huggingface_hub.errors import RepositoryNotFoundError

        options = self._options
        changes: dict[str, Any] = {}
        try:
            info = self._api.repo_info(**self._where)
        except RepositoryNotFoundError:
            if options.create_pr:
                raise
            sdk = self._plan.space_sdk
            # None: the organization's default, which may be private.
            self._api.create_repo(private=options.private or None, space_sdk=sdk, exist_ok=True, **self._where)
            changes["gated"] = options.gated
        else:
            changes["private"] = True if options.private and not info.private else None
            changes["gated"] = options.gated if options.gated != getattr(info, "gated", None) else None
        if changes := {name: value for name, value in changes.items() if value is not None}:
            self._api.update_repo_settings(**changes, **self._where)

    def _open_branch(self, refs: GitRefs) -> str:
        """Create the branch if it is missing; return its commit."""
        name = self._options.revision
        if any(tag.name == name for tag in refs.tags):
            raise ValueError(f"{name!r} is a tag, which cannot move; give a branch as revision.")
        is_new = not name.startswith("refs/") and all(branch.name != name for branch in refs.branches)
        if is_new and not self._options.create_pr:
            self._api.create_branch(branch=name, exist_ok=True, **self._where)
        return str(self._api.repo_info(revision=name, **self._where).sha)

    def _is_tagged(self, refs: GitRefs, head: str) -> bool:
        """Return whether the branch has the tag; raise if another commit has it."""
        tags = {tag.name: tag.target_commit for tag in refs.tags}
        found = tags.get(self._options.tag or "")
        if found not in (None, head):
            raise ValueError(f"tag {self._options.tag!r} is already at commit {found}; choose another.")
        return found is not None

    def _make_operations(self, head: str) -> tuple[list[CommitOperationAdd | CommitOperationDelete], list[str]]:
        """Return the operations of the commit, and files that stay though not planned."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        planned = {file.path_in_repo: file.source for file in self._plan.files}
        others = sorted(self._list_files(head).keys() - planned.keys() - {".gitattributes"})
        additions = [CommitOperationAdd(path, source) for path, source in planned.items()]
        if self._options.prune:
            return [*additions, *map(CommitOperationDelete, others)], []
        clashing = [path for path in others if path.endswith(_LOADED_TOGETHER)]
        if clashing:
            raise ValueError(
                f"the repository holds {len(clashing)} data files that are not planned and would be loaded with the "
                f"new ones ({clashing[0]}, ...); delete them in the same commit with --prune."
            )
        return list(additions), others

    def _list_files(self, revision: str) -> Mapping[str, RepoFile]:
        from huggingface_hub.hf_api import RepoFile

        tree = self._api.list_repo_tree(recursive=True, revision=revision, **self._where)
        return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}

    def _verify(self, commit: str, additions: list[CommitOperationAdd]) -> None:
        """Compare each file's hash with the Hub's: a `.gitignore` in the repository silently omits files."""
        from huggingface_hub.utils.sha import git_hash

        found = self._list_files(commit)
        for addition in additions:
            entry = found.get(addition.path_in_repo)
            if entry is not None and entry.lfs:
                is_equal = entry.lfs.sha256 == addition.upload_info.sha256.hex()
            elif entry is not None:
                with addition.as_file() as file:
                    is_equal = entry.blob_id == git_hash(file.read())
            if entry is None or not is_equal:
                state = "missing from" if entry is None else "not the planned one in"
                raise ValueError(f"{addition.path_in_repo} is {state} commit {commit}; look at the repository's page.")
