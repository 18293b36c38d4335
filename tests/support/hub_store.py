"""What a Hub keeps: repositories with commits, branches, tags and pull requests, large files by hash, accounts.

Only what the clients of `huggingface_hub`, `datasets`, `transformers` and `evaluate` ask for; in memory.
"""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import yaml


# The Hub's own `.gitattributes` sends these through LFS, and everything of more than 10 MB.
LFS_SUFFIXES = {".arrow", ".flac", ".gz", ".mp3", ".ogg", ".parquet", ".png", ".safetensors", ".wav", ".zip"}
LFS_BYTES = 10 * 2**20
CREATED = "2026-01-01T00:00:00.000Z"
# Of the licences that the Hub knows, those that a card of ours may name.
LICENSES = {
    *("apache-2.0", "bsd-3-clause", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-sa-3.0"),
    *("cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-2.0", "gpl-2.0", "gpl-3.0", "mit", "other", "pddl", "unknown"),
}
SDKS = {"docker", "gradio", "static", "streamlit"}
COLORS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}


class HubError(Exception):
    """An answer other than success, as the Hub words it."""

    def __init__(self, status, message, code=None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Blob:
    """A version of a file; what went through LFS has its hash here and its content in `HubStore.objects`."""

    size: int
    content: bytes | None = None
    sha256: str | None = None

    @property
    def oid(self):
        text = self.content
        if self.sha256:
            text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()

    def describe(self, path):
        entry = {"type": "file", "path": path, "size": self.size, "oid": self.oid}
        if self.sha256:
            entry["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return entry


@dataclass
class Account:
    name: str
    organizations: tuple = ()
    can_write: bool = True


@dataclass
class Repository:
    kind: str
    id: str
    is_private: bool = False
    gated: str | bool = False
    sdk: str | None = None
    granted: set = field(default_factory=set)
    commits: dict = field(default_factory=dict)
    messages: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)
    tags: dict = field(default_factory=dict)
    pull_requests: dict = field(default_factory=dict)

    def __post_init__(self):
        self.branches["main"] = self.add_commit({".gitattributes": Blob(0, b"")}, None, "initial commit")

    def add_commit(self, files, parent, message):
        listing = json.dumps([parent, message, sorted((path, blob.oid) for path, blob in files.items())])
        commit = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[commit], self.messages[commit] = files, message
        return commit

    def find(self, revision):
        """Return the commit that a branch, tag, pull request or hash stands for."""
        pulls = {f"refs/pr/{number}": commit for number, commit in self.pull_requests.items()}
        commit = {**pulls, **self.tags, **self.branches}.get(revision, revision)
        if commit not in self.commits:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def files(self, revision):
        return self.commits[self.find(revision)]

    def file(self, revision, path):
        blob = self.files(revision).get(path)
        if blob is None:
            raise HubError(404, "Entry not found", "EntryNotFound")
        return blob

    def tree(self, revision, folder, recursive):
        """Return the entries below a folder, with the folders of it."""
        files, entries, prefix = self.files(revision), {}, f"{folder}/" if folder else ""
        for path, blob in sorted(files.items()):
            if path.startswith(prefix):
                parts = path.removeprefix(prefix).split("/")
                for depth in range(1, len(parts)):
                    parent = prefix + "/".join(parts[:depth])
                    if recursive or depth == 1:
                        entries[parent] = {"type": "directory", "path": parent, "oid": "0" * 40, "size": 0}
                if recursive or len(parts) == 1:
                    entries[path] = blob.describe(path)
        if folder and not entries:
            raise HubError(404, f"{folder} does not exist", "EntryNotFound")
        return list(entries.values())

    def info(self, revision):
        return {
            "id": self.id,
            "author": self.id.split("/")[0],
            "sha": self.find(revision),
            "private": self.is_private,
            "gated": self.gated,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "createdAt": CREATED,
            "lastModified": CREATED,
            "siblings": [{"rfilename": path} for path in sorted(self.files(revision))],
            **({"sdk": self.sdk} if self.kind == "space" else {}),
        }

    def commit(self, revision, lines, objects, as_pull_request):
        """Apply the lines of a commit; return its hash and the number of the pull request."""
        head = self.find(revision)
        header = lines[0]["value"]
        if header.get("parentCommit", head) != head:
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(self.commits[head])
        for line in lines[1:]:
            self._apply(files, line["key"], line["value"], objects)
        commit = self.add_commit(files, head, header["summary"])
        if not as_pull_request:
            self.branches[revision] = commit
            return commit, None
        number = len(self.pull_requests) + 1
        self.pull_requests[number] = commit
        return commit, number

    def _apply(self, files, key, value, objects):
        import base64

        path = value["path"]
        if key == "file":
            content = base64.b64decode(value["content"])
            files[path] = Blob(len(content), content)
        elif key == "lfsFile":
            if value["oid"] not in objects:
                raise HubError(400, f"Your push was rejected because an LFS pointer is missing: {path}")
            files[path] = Blob(len(objects[value["oid"]]), sha256=value["oid"])
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise HubError(404, "A file with this name doesn't exist", "EntryNotFound")
        else:
            raise HubError(400, f"Unknown operation {key}")


class HubStore:
    """All repositories and accounts of a Hub, and the large files."""

    def __init__(self):
        self.lock = threading.RLock()
        self.repositories = {}
        self.accounts = {}
        self.objects = {}
        self.parts = {}
        # Hash -> how often it was sent completely.
        self.times_sent = {}

    def add_account(self, token, name, *organizations, can_write=True):
        self.accounts[token] = Account(name, organizations, can_write)
        return token

    def account(self, authorization):
        """Return who asks, or None for nobody in particular."""
        if not authorization:
            return None
        account = self.accounts.get(authorization.removeprefix("Bearer "))
        if account is None:
            raise HubError(401, "Invalid credentials in Authorization header")
        return account

    def may_write(self, account, repo_id):
        namespace = repo_id.split("/")[0]
        return account is not None and account.can_write and namespace in (account.name, *account.organizations)

    def create(self, account, request):
        if account is None:
            raise HubError(401, "Invalid username or password.")
        kind, namespace = request.get("type", "model"), request.get("organization") or account.name
        repo_id = f"{namespace}/{request['name']}"
        if not self.may_write(account, repo_id):
            raise HubError(403, f'You don\'t have the rights to create a {kind} under the namespace "{namespace}"')
        if (kind, repo_id) in self.repositories:
            raise HubError(409, f"You already created this {kind} repo")
        if kind == "space" and request.get("sdk") not in SDKS:
            raise HubError(400, f'"sdk" must be one of {sorted(SDKS)}')
        is_private = request.get("visibility") == "private"
        repository = Repository(kind, repo_id, is_private=is_private, sdk=request.get("sdk"))
        self.repositories[kind, repo_id] = repository
        return repository

    def open(self, account, kind, repo_id, need="info"):
        """Return a repository for `"info"`, to read `"content"`, to `"propose"` or to `"write"`."""
        repository = self.repositories.get((kind, repo_id))
        is_owner = self.may_write(account, repo_id)
        if repository is None or (repository.is_private and not is_owner):
            raise HubError(401 if account is None else 404, "Repository not found", "RepoNotFound")
        is_open = not repository.gated or is_owner or (account is not None and account.name in repository.granted)
        if need == "content" and not is_open:
            message = f"Access to {kind} {repo_id} is restricted. You must have access to it and be authenticated."
            raise HubError(401 if account is None else 403, message, "GatedRepo")
        if need in ("write", "propose") and account is None:
            raise HubError(401, "Invalid username or password.")
        if need == "write" and not is_owner:
            raise HubError(403, "Authorization error.")
        return repository

    def receive(self, sha256, content):
        """Keep a large file that arrived whole."""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise HubError(400, "the content does not have this hash")
        with self.lock:
            self.objects[sha256] = content
            self.times_sent[sha256] = self.times_sent.get(sha256, 0) + 1

    def all_content(self):
        """Return everything that was ever published, in one piece."""
        small = [
            blob.content
            for repository in self.repositories.values()
            for files in repository.commits.values()
            for blob in files.values()
            if blob.content
        ]
        messages = [m.encode() for repository in self.repositories.values() for m in repository.messages.values()]
        return b"\n".join([*small, *messages, *self.objects.values()])


def upload_mode(path, size):
    """Tell whether a file goes through LFS."""
    return "lfs" if size > LFS_BYTES or PurePosixPath(path).suffix in LFS_SUFFIXES else "regular"


def validate_card(content, kind):
    """Return what the Hub says against the YAML of a card, and what it warns of."""
    if not content.startswith("---\n"):
        return [], ["empty or missing yaml metadata in repo card"]
    try:
        metadata = yaml.safe_load(content.split("---\n", 2)[1]) or {}
    except yaml.YAMLError as error:
        return [f"invalid yaml: {error}"], []
    licenses = metadata.get("license", [])
    names = licenses if isinstance(licenses, list) else [licenses]
    errors = [f'"license" must be one of {sorted(LICENSES)}, not {name}' for name in names if name not in LICENSES]
    if kind == "space":
        if metadata.get("sdk") not in SDKS:
            errors.append(f'"sdk" must be one of {sorted(SDKS)}')
        errors += [f'"{key}" must be one of {sorted(COLORS)}' for key in _unknown_colors(metadata)]
        if len(metadata.get("short_description", "")) > 60:
            errors.append('"short_description" length must be less than or equal to 60 characters long')
    errors += ['"configs" need a "config_name" each' for c in metadata.get("configs", []) if "config_name" not in c]
    return errors, []


def _unknown_colors(metadata):
    return [key for key in ("colorFrom", "colorTo") if metadata.get(key, "gray") not in COLORS]
