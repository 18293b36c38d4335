import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from support.repository_world import content_of, write_data


@pytest.fixture
def make_data(tmp_path):
    """Return a function writing `(split, row)` as a data set folder."""
    return lambda *rows, name="sdiareward": write_data(tmp_path / name, *rows)


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """Return a copy of the tiny checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))


@pytest.fixture
def change_json():
    def change(path, **values):
        content = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**content, **values}))

    return change


@pytest.fixture
def write_plan(tmp_path):
    """Return a function writing the files of a plan into a new folder."""

    def write(plan):
        for file in plan.files:
            path = tmp_path / "repository" / file.path_in_repo
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content_of(file))
        return tmp_path / "repository"

    return write


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

    def create_repo(self, private, exist_ok, **_):
        if "main" not in self.branches:
            self.is_private, self.branches["main"] = bool(private), ("c0", {})

    def update_repo_settings(self, repo_id, repo_type, private=None, gated=None):
        self.is_private, self.gated = private or self.is_private, gated or self.gated

    def list_repo_refs(self, **_):
        if not self.branches:
            response = httpx2.Response(404, request=httpx2.Request("GET", "http://hub"))
            raise RepositoryNotFoundError("Repository not found", response=response)
        return SimpleNamespace(tags=[SimpleNamespace(name=n, target_commit=at) for n, at in self.tags.items()])

    def create_branch(self, branch, exist_ok, **_):
        self.branches.setdefault(branch, self.branches["main"])

    def repo_info(self, revision, **_):
        return SimpleNamespace(sha=self.branches[revision][0])

    def list_repo_files(self, revision, **_):
        return list(next(files for commit, files in self.branches.values() if commit == revision))

    def create_commit(self, repo_id, operations, revision, create_pr, **_):
        head, files = self.branches[revision]
        files = dict(files)
        for operation in operations:
            if isinstance(operation, CommitOperationAdd):
                files[operation.path_in_repo] = content_of(operation)
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
    for name in [name for name in vars(FakeHub) if hasattr(HfApi, name) and name[0] != "_"]:
        spec = create_autospec(
            getattr(HfApi, name), side_effect=lambda _, _name=name, **given: hub.answer(_name, given)
        )
        monkeypatch.setattr(HfApi, name, spec)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "aB3" * 11)
    return hub
