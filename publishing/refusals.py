"""Refuse a plan that must not be published: paths that leave the repository, pickles, secrets, files that are gone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .plan import PlannedFile, RepositoryPlan


# What loads by running whatever code it holds.
_PICKLES = {".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth"}
# Name, how it begins, what it looks like. The beginning is searched for first: a regular expression over the gigabytes
# of a data set would take minutes.
_SECRETS = (
    ("an access token of the Hub", b"hf_", re.compile(rb"hf_[A-Za-z0-9]{30,}")),
    ("a private key", b"-----BEGIN ", re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----")),
)
_CHUNK_BYTES = 8 * 2**20
# More than any secret is long, so that one on the border of two chunks is whole in one of them.
_OVERLAP_BYTES = 1024
_ROWS = 100


def check_plan(plan: RepositoryPlan, secrets: Sequence[str] = ()) -> None:
    """Read all that would be published and refuse what must not be.

    Args:
        plan (`RepositoryPlan`): What would be published.
        secrets (`Sequence[str]`): Texts that must not be in any file, for instance the token in use.

    Raises:
        ValueError: The plan is empty; a path leaves the repository, is given twice or is also a folder; a file is a
            pickle, or looks as if it held a token or a private key.
        FileNotFoundError: A file of the plan is gone.
    """
    from tqdm import tqdm

    if not plan.files:
        raise ValueError("there is nothing to publish: the plan holds no files.")
    _check_paths([file.path_in_repo for file in plan.files])
    for file in plan.files:
        _check_file(file)
    known = tuple(secret.encode() for secret in secrets if secret)
    # `disable=None`: no bar where nobody watches.
    with tqdm(total=plan.total_bytes, desc="check", unit="B", unit_scale=True, leave=False, disable=None) as bar:
        for file in plan.files:
            for chunk in _chunks(file.source):
                bar.update(max(0, len(chunk) - _OVERLAP_BYTES))
                _refuse_secret(file, chunk, known)
            for texts in _texts(file):
                _refuse_secret(file, texts, known)


def _refuse_secret(file: PlannedFile, content: bytes, known: Sequence[bytes]) -> None:
    if found := find_secret(content, known):
        raise ValueError(f"{file.path_in_repo}: holds {found}, it seems; take it out, and revoke it.")


def _check_paths(paths: Sequence[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        parts = path.split("/")
        inside = not any(part in ("", ".", "..") for part in parts) and path.isprintable() and path == path.strip()
        if not inside or "\\" in path or re.match(r"[A-Za-z]:", path):
            raise ValueError(f"{path!r}: not a path in a repository; give one relative to its root, without '..'.")
        if {".git", ".cache"} & set(map(str.lower, parts)):
            raise ValueError(f"{path!r}: folders named .git and .cache cannot be published; leave it out.")
        if path in seen:
            raise ValueError(f"{path!r}: planned twice; leave one of the files out.")
        seen.add(path)
    folders = {folder for path in paths for folder in _parents(path)}
    for path in sorted(folders & seen):
        raise ValueError(f"{path!r}: planned both as a file and as a folder; rename one.")


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _check_file(file: PlannedFile) -> None:
    suffix = Path(file.path_in_repo).suffix.lower()
    if suffix in _PICKLES:
        raise ValueError(f"{file.path_in_repo}: {suffix} files can run code when loaded; save as safetensors.")
    if isinstance(file.source, Path) and not file.source.is_file():
        raise FileNotFoundError(f"{file.source}: not a file any more, but {file.path_in_repo} is to be made from it.")


def _chunks(source: Path | bytes) -> Iterator[bytes]:
    """Yield the content in pieces, each beginning with the end of the one before."""
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        end = b""
        while piece := file.read(_CHUNK_BYTES):
            yield end + piece
            end = piece[-_OVERLAP_BYTES:]


def _texts(file: PlannedFile) -> Iterator[bytes]:
    """Yield the columns of text of a Parquet file, which its compressed pages do not show."""
    if not isinstance(file.source, Path) or file.source.suffix != ".parquet":
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file.source)
    except pa.ArrowInvalid:
        # Whatever it is, its bytes were searched.
        return
    with table:
        leaves = [table.schema.column(index) for index in range(len(table.schema))]
        columns = [leaf.path for leaf in leaves if leaf.logical_type.type in ("STRING", "JSON", "ENUM")]
        for batch in table.iter_batches(batch_size=_ROWS, columns=columns) if columns else ():
            yield json.dumps(batch.to_pylist(), ensure_ascii=False, default=str).encode()


def find_secret(content: bytes, known: Sequence[bytes] = ()) -> str | None:
    """Return what kind of secret a content holds, if any.

    Args:
        content (`bytes`): Anything that would be published.
        known (`Sequence[bytes]`): Secrets, for instance the token in use.
    """
    if any(secret in content for secret in known):
        return "the token in use"
    for name, beginning, pattern in _SECRETS:
        position = content.find(beginning)
        while position >= 0:
            if pattern.match(content, position):
                return name
            position = content.find(beginning, position + 1)
    return None
