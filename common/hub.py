"""Repositories on the Hub: the files of a model, and revisions. `ORG/NAME@COMMIT` names a repository at a commit.

Before a command runs, `resolve_revisions` replaces a name with a revision by that at its commit: all that loads or
records the name gets the commit with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import UserError


# What is read of a model.
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")
_AT_COMMIT = re.compile(r"((?:[\w.-]+/)?[\w.-]+)@([0-9a-f]{40})")
_SUFFIXES = (
    *(".csv", ".flac", ".gguf", ".json", ".jsonl", ".mp3", ".npz", ".ogg", ".parquet", ".safetensors", ".tsv", ".wav"),
    ".yaml",
)
# A name on the Hub, `ORG/NAME`, has one separator.
_MAX_SEPARATORS = 1
_WITH_REVISION = re.compile(r"[\w.-]+/[\w.-]+@(.+)")
_SMALLEST_FILE = {"model": "config.json", "dataset": "README.md"}
# Of which the cache has one, if it has a repository.
_KNOWN_FILES = ("config.json", "adapter_config.json", "README.md")
_TIMEOUT_S = 2.0


class ModelNotFoundError(UserError, FileNotFoundError):
    """A model is neither in a folder nor in the cache, and the Hub does not have it."""


def make_revision_field(what: str) -> Any:
    return field(default=None, metadata={"help": f"Branch, tag or commit of {what} on the Hub; main by default."})


@dataclass(kw_only=True)
class ModelRevision:
    revision: str | None = make_revision_field("the model")


@dataclass(kw_only=True)
class DatasetRevision:
    dataset_revision: str | None = make_revision_field("the data set")


# A revision, the option with the name that it is of, and the kind of its repository.
_REVISIONS = (
    ("revision", "model", "model"),
    ("revision", "model_name_or_path", "model"),
    ("dataset_revision", "dataset", "dataset"),
    ("baseline_revision", "baseline_data", "dataset"),
)


def resolve_revisions(arguments: Any) -> None:
    """Replace the names that have a revision by those at its commit."""
    for option, name, repo_type in _REVISIONS:
        if hasattr(arguments, name) and (revision := getattr(arguments, option, None)):
            if getattr(arguments, name) is None:
                raise UserError(f"--{option} is {revision!r} without --{name}; give both, or omit it.")
            setattr(arguments, name, resolve_revision(getattr(arguments, name), revision, repo_type))


def resolve_revision(name: Any, revision: str | None, repo_type: str = "model") -> Any:
    """Return the name of a repository at the commit of a revision; without a revision, the name."""
    if revision is None:
        return name
    if name is None or Path(name).exists() or name in ("nano", "small"):
        raise UserError(f"{name}: is not on the Hub, and has no revision {revision}; omit it, or give ORG/NAME.")
    return f"{name}@{fetch_snapshot(name, [_SMALLEST_FILE[repo_type]], revision, repo_type).name}"


def split_commit(name: str) -> tuple[str, str | None]:
    """Return the name of a repository, and its commit if the name has one."""
    found = _AT_COMMIT.fullmatch(name)
    return (name, None) if found is None or Path(name).exists() else (found[1], found[2])


def find_snapshot(name: str | Path) -> str:
    """Return the folder of a model at a commit; any other name, and any path, as it is.

    Raises:
        ModelNotFoundError: The name is neither a path nor a repository that can be read.
    """
    if split_commit(str(name))[1]:
        return str(fetch_snapshot(str(name), MODEL_FILES))
    require_model(str(name))
    return str(name)


def require_local(name: str) -> None:
    """Raise `FileNotFoundError` if a name that is not a file or folder here looks like a path, not like `ORG/NAME`."""
    path = Path(name)
    if path.exists() or "://" in name:
        return
    if found := _WITH_REVISION.fullmatch(name):
        raise FileNotFoundError(f"{name}: no such file or folder; give a revision as --revision {found[1]}.")
    near = _find_near(path)
    is_path = name.startswith((".", "~", "/")) or name.count("/") > _MAX_SEPARATORS or name.endswith("/")
    if is_path or name.endswith(_SUFFIXES) or near or ("/" in name and Path(path.parts[0]).is_dir()):
        hint = f"did you mean {near}?" if near else "correct the path, or give the name of a repository on the Hub."
        raise FileNotFoundError(f"{name}: no such file or folder; {hint}")


def _find_near(path: Path) -> str | None:
    """Return an existing path with similar names; None if a part has no similar one."""
    found = Path(path.anchor)
    for part in path.parts[len(found.parts) :]:
        try:
            names = [entry.name for entry in found.iterdir() if not entry.name.startswith(".")]
        except OSError:
            return None
        near = [part] if (found / part).exists() else get_close_matches(part, names, n=1, cutoff=0.8)
        if not near:
            return None
        found /= near[0]
    return str(found)


def require_model(model: str, repo_type: str = "model") -> None:
    """Raise `ModelNotFoundError` for a name that is neither a path nor a repository in the cache or on the Hub.

    Libraries would first try for a minute to reach the Hub.
    """
    name, _ = split_commit(model)
    near = [] if "/" in name or Path(name).exists() else get_close_matches(name, ("nano", "small"), 1, 0.75)
    if near == [name]:
        return
    if near:
        raise ModelNotFoundError(f"{name}: no such folder; did you mean {near[0]}?")
    try:
        require_local(name)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{error} A model is the folder of a checkpoint, or a Hub id.") from error
    if not Path(name).exists():
        _require_repository(name, repo_type)


@lru_cache
def _require_repository(name: str, repo_type: str) -> None:
    from huggingface_hub import HfApi, errors, try_to_load_from_cache

    try:
        if any(isinstance(try_to_load_from_cache(name, file, repo_type=repo_type), str) for file in _KNOWN_FILES):
            return
        HfApi().repo_info(name, repo_type=repo_type, timeout=_TIMEOUT_S)
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise _explain_missing(name) from error
    except errors.OfflineModeIsEnabled as error:
        raise explain_unreachable(name) from error
    # Which library makes the connection depends on the version.
    except Exception as error:
        if type(error).__name__ in ("ConnectError", "ConnectTimeout"):
            raise explain_unreachable(name) from error
        # Whether a slow or failing Hub has it, the loader finds out.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("httpx"):
            raise


def fetch_snapshot(model: str, patterns: Sequence[str], revision: str | None = None, repo_type: str = "model") -> Path:
    """Fetch some files of a repository on the Hub, from the cache where they are in it; return their folder."""
    require_model(model, repo_type)
    name, commit = split_commit(model)
    from huggingface_hub import errors, snapshot_download

    try:
        patterns, revision = list(patterns), commit or revision
        return Path(snapshot_download(name, allow_patterns=patterns, revision=revision, repo_type=repo_type))
    except errors.LocalEntryNotFoundError as error:
        raise explain_unreachable(model) from error
    except errors.RevisionNotFoundError as error:
        reason = f"has no revision {commit or revision!r}; give a branch, tag or commit that it has on the Hub."
        raise ModelNotFoundError(f"{name}: {reason}") from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise _explain_missing(model) from error


def _explain_missing(model: str) -> ModelNotFoundError:
    reason = "is neither a folder here nor a readable repository on the Hub; correct the name, or hf auth login."
    return ModelNotFoundError(f"{model}: {reason}")


def explain_unreachable(model: str) -> ModelNotFoundError:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "there is no connection"
    found = f"the Hub cannot be reached ({why}), and the model is not whole in {constants.HF_HUB_CACHE}"
    return ModelNotFoundError(f"{model}: is not a folder here; {found}: connect, or give the folder of a checkpoint.")
