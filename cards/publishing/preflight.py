"""Check a plan before anything is sent: no pickles, no secrets, no missing files.

`huggingface_hub` itself refuses paths that leave the repository, and the Hub scans what arrives for secrets; by then
they have left this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from .plan import PlannedFile, RepositoryPlan


# What runs its own code when it is loaded.
_PICKLES = {".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth"}
# Name, beginning, form. The beginning is searched for first: a regular expression over the gigabytes of a data set
# would take minutes.
_SECRETS = (
    ("an access token of the Hub", b"hf_", re.compile(rb"hf_[A-Za-z0-9]{30,}")),
    ("a private key", b"-----BEGIN ", re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----")),
)
_CHUNK_BYTES = 8 * 2**20
# Longer than any secret, so that one on the border of two chunks is whole in one of them.
_OVERLAP_BYTES = 1024
_ROWS = 100


def check_plan(plan: RepositoryPlan, secrets: Sequence[str] = ()) -> None:
    from tqdm import tqdm

    if not plan.files:
        raise ValueError("there is nothing to publish: the plan holds no files.")
    for file in plan.files:
        _check_file(file)
    known = [secret.encode() for secret in secrets if secret]
    # `disable=None`: no bar without a terminal.
    with tqdm(total=plan.total_bytes, desc="check", unit="B", unit_scale=True, leave=False, disable=None) as bar:
        for file in plan.files:
            for content in chain(_read_chunks(file.source), _read_texts(file)):
                if found := find_secret(content, known):
                    raise ValueError(
                        f"{file.path_in_repo}: seems to hold {found}; remove it from the file, and revoke it."
                    )
            bar.update(file.size_bytes)


def _check_file(file: PlannedFile) -> None:
    suffix = Path(file.path_in_repo).suffix.lower()
    if suffix in _PICKLES:
        raise ValueError(f"{file.path_in_repo}: {suffix} files can run code when loaded; save as safetensors.")
    if isinstance(file.source, Path) and not file.source.is_file():
        raise FileNotFoundError(f"{file.source}: no longer a file, but {file.path_in_repo} is made from it.")


def _read_chunks(source: Path | bytes) -> Iterator[bytes]:
    """Yield the content in chunks, each with the end of the one before."""
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        end = b""
        while chunk := file.read(_CHUNK_BYTES):
            yield end + chunk
            end = chunk[-_OVERLAP_BYTES:]


def _read_texts(file: PlannedFile) -> Iterator[bytes]:
    """Yield the text columns of a Parquet file, which are compressed in its bytes."""
    if not isinstance(file.source, Path) or file.source.suffix != ".parquet":
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file.source)
    except pa.ArrowInvalid:
        # Not Parquet: the bytes are searched.
        return
    with table:
        leaves = [table.schema.column(index) for index in range(len(table.schema))]
        columns = [leaf.path for leaf in leaves if leaf.logical_type.type in ("STRING", "JSON", "ENUM")]
        for batch in table.iter_batches(batch_size=_ROWS, columns=columns) if columns else ():
            yield json.dumps(batch.to_pylist(), ensure_ascii=False, default=str).encode()


def find_secret(content: bytes, known: Sequence[bytes] = ()) -> str | None:
    if any(secret in content for secret in known):
        return "the token in use"
    for name, beginning, pattern in _SECRETS:
        position = content.find(beginning)
        while position >= 0:
            if pattern.match(content, position):
                return name
            position = content.find(beginning, position + 1)
    return None
