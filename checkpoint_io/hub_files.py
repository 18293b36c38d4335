"""Get the files of a checkpoint that is named by its repository on the Hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sdiareward.common.local_paths import require_local
from sdiareward.common.user_errors import UserError


class ModelNotFoundError(UserError, FileNotFoundError):
    """A model is neither in a folder nor in the cache, and the Hub does not have it."""


def require_model(model: str) -> None:
    """Raise `ModelNotFoundError` for a path that is not a folder; a possible repository name passes."""
    try:
        require_local(model)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{error} A model is the folder of a checkpoint, or a Hub id.") from error


def fetch_snapshot(model: str, patterns: Sequence[str]) -> Path:
    """Fetch some files of a repository on the Hub, from the cache where they are in it; return their folder."""
    require_model(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=list(patterns)))
    except LocalEntryNotFoundError as error:
        raise _make_error(model) from error
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise ModelNotFoundError(
            f"{model}: is neither a folder here nor a repository on the Hub that can be read; correct the name, or "
            "log in (hf auth login) if it is private."
        ) from error


def list_checkpoint_tensors(model: str) -> set[str]:
    from huggingface_hub import constants

    from sdiareward.loading_sdiareward import list_tensors

    if Path(model).is_dir():
        return list_tensors(model)
    fetch_snapshot(model, ["config.json"])
    try:
        return list_tensors(model)
    except FileNotFoundError as error:
        # Without the Hub, what is not in the cache looks like what is not in the repository.
        if constants.HF_HUB_OFFLINE:
            raise _make_error(model) from error
        raise


def _make_error(model: str) -> ModelNotFoundError:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "there is no connection"
    return ModelNotFoundError(
        f"{model}: is no folder here; the Hub cannot be reached ({why}), and the model is not, or not whole, in the "
        f"cache ({constants.HF_HUB_CACHE}): connect and run again, or give the folder of a checkpoint."
    )
