"""Check a plan before anything is sent: no pickles, no secrets in texts, no missing files.

`huggingface_hub` itself refuses paths that leave the repository, and the Hub scans what arrives for secrets; by then
they have left this machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .plan import PlannedFile, RepositoryPlan


# What runs its own code when it is loaded.
_PICKLES = {".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth"}
# Numbers and recordings, which are not searched.
_BINARY = {".parquet", ".safetensors"}
_SECRETS = {
    "an access token of the Hub": re.compile(rb"hf_[A-Za-z0-9]{30,}"),
    "a private key": re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"),
}


def check_plan(plan: RepositoryPlan, secrets: Sequence[str] = ()) -> None:
    """Raise unless all files of a plan may be published.

    Args:
        plan (`RepositoryPlan`): What would be published.
        secrets (`Sequence[str]`): Texts that must not be in any file, for instance the token in use.

    Raises:
        ValueError: The plan is empty, a file is a pickle, or a text seems to hold a token or a private key.
        FileNotFoundError: A file of the plan is gone.
    """
    if not plan.files:
        raise ValueError("there is nothing to publish: the plan holds no files.")
    known = [secret.encode() for secret in secrets if secret]
    for file in plan.files:
        _check_file(file, known)


def _check_file(file: PlannedFile, known: Sequence[bytes]) -> None:
    suffix = Path(file.path_in_repo).suffix.lower()
    if suffix in _PICKLES:
        raise ValueError(f"{file.path_in_repo}: {suffix} files can run code when loaded; save as safetensors.")
    if isinstance(file.source, Path) and not file.source.is_file():
        raise FileNotFoundError(f"{file.source}: no longer a file, but {file.path_in_repo} is made from it.")
    if suffix in _BINARY:
        return
    content = file.source if isinstance(file.source, bytes) else file.source.read_bytes()
    if found := find_secret(content, known):
        raise ValueError(f"{file.path_in_repo}: seems to hold {found}; remove it from the file, and revoke it.")


def find_secret(content: bytes, known: Sequence[bytes] = ()) -> str | None:
    """Return the kind of secret in a text, or None.

    Args:
        content (`bytes`): Anything that would be published.
        known (`Sequence[bytes]`): Secrets, for instance the token in use.
    """
    if any(secret in content for secret in known):
        return "the token in use"
    return next((name for name, pattern in _SECRETS.items() if pattern.search(content)), None)
