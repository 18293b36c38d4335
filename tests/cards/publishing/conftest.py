from types import SimpleNamespace
from unittest.mock import create_autospec

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError


class FakeHub:
    """The methods of `HfApi` that a push calls; `calls` has their names and arguments in order."""

    def __init__(self):
        self.calls, self.branches, self.tags = [], {}, {}
        self.is_private, self.gated = False, False
        self.failing = {}

    def answer(self, name, given):
        self.calls.append((name, given))
        if name in self.failing:
            response = httpx2.Response(self.failing[name], request=httpx2.Request("POST", "http://hub"))
            raise HfHubHTTPError(f"{name} is refused", response=response)
        return getattr(self, name)(**given)

    def called(self, name):
        return [given for called, given in self.calls if called == name]

    def files(self, revision="main"):
        return self.branches[revision][1]

    def whoami(self):
        return {"name": "ann"}

    def repo_info(self, repo_id, repo_type, revision="main"):
        if not self.branches:
            response = httpx2.Response(404, request=httpx2.Request("GET", "http://hub"))
            raise RepositoryNotFoundError("Repository not found", response=response)
        return SimpleNamespace(private=self.is_private, gated=self.gated, sha=self.branches[revision][0])

    def create_repo(self, private, **_):
        self.is_private = bool(private)
        self.branches["main"] = ("c0", {})

    def update_repo_settings(self, repo_id, repo_type, private=None, gated=None):
        self.is_private, self.gated = private or self.is_private, gated or self.gated

    def list_repo_refs(self, **_):
        branches = [SimpleNamespace(name=name) for name in self.branches]
        tags = [SimpleNamespace(name=name, target_commit=commit) for name, commit in self.tags.items()]
        return SimpleNamespace(branches=branches, tags=tags)

    def create_branch(self, branch, **_):
        self.branches[branch] = self.branches["main"]

    def list_repo_files(self, revision, **_):
        return list(next(files for commit, files in self.branches.values() if commit == revision))

    def create_commit(self, repo_id, operations, revision, create_pr, **_):
        head, files = self.branches[revision]
        files = dict(files)
        for operation in operations:
            if isinstance(operation, CommitOperationAdd):
                with operation.as_file() as file:
                    files[operation.path_in_repo] = file.read()
            else:
                del files[operation.path_in_repo]
        if files != self.branches[revision][1]:
            head = f"c{len(self.calls)}"
            self.branches["refs/pr/1" if create_pr else revision] = (head, files)
        url = f"http://hub/{repo_id}"
        return SimpleNamespace(oid=head, repo_url=url, pr_url=f"{url}/discussions/1" if create_pr else None)

    def create_tag(self, tag, revision, **_):
        self.tags[tag] = revision


@pytest.fixture
def hub(monkeypatch):
    """Return a Hub without repositories that checks the names of its arguments."""
    hub = FakeHub()
    names = [name for name in vars(FakeHub) if name[0] != "_" and hasattr(HfApi, name)]
    for name in names:
        spec = create_autospec(
            getattr(HfApi, name), side_effect=lambda _, _name=name, **given: hub.answer(_name, given)
        )
        monkeypatch.setattr(HfApi, name, spec)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "aB3" * 11)
    return hub
