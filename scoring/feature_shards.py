"""Store matrices by key in safetensors shards that many processes may write and read at once.

- A shard holds one matrix, the features one below the other; its metadata list the rows of each. It gets its name when
  it is complete, so there is no index beside it that a kill could leave out of date.
- A writer gives its shards unique names. A key that two writers computed is in two shards and counts once.
- Shards are mapped into memory: a lookup reads its rows alone. The checksum of a shard is compared once, before.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from sdiareward.common.files import write_file
from sdiareward.common.run_identity import claim_run_dir


logger = logging.getLogger(__name__)
_TENSOR = "features"
# A kill loses at most one shard or one interval of work.
_SHARD_BYTES = 64 * 2**20
_SHARD_INTERVAL_S = 60.0
# Writing a shard takes seconds: an unfinished one of this age belongs to a process that was killed.
_ABANDONED_S = 3600.0


class _Place(NamedTuple):
    shard: str
    start: int
    stop: int


class FeatureShards:
    """A folder of features by key; `identity.json` has what all of them have in common."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], dtype: torch.dtype):
        self.folder = folder
        self.identity = identity
        self.dtype = dtype
        self._places: dict[str, _Place] = {}
        self._known: set[str] = set()
        self._matrices: dict[str, torch.Tensor] = {}
        self.refresh()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> torch.Tensor:
        """Return the rows of a feature, shape `(num_rows, width)`, mapped from its file; read-only."""
        place = self._places[key]
        return self._load_matrix(place.shard)[place.start : place.stop]

    def __getstate__(self) -> dict[str, Any]:
        # A memory map cannot be sent to another process, which opens the shard again.
        return {**self.__dict__, "_matrices": {}}

    def num_rows(self, key: str) -> int:
        place = self._places[key]
        return place.stop - place.start

    def refresh(self) -> None:
        """Find the shards that other processes have finished since."""
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name not in self._known:
                self._known.add(path.name)
                self._places.update(_read_places(path))

    def write(self, features: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Write features as they are computed, shard by shard; an error or an interrupt keeps the earlier ones."""
        claim_run_dir(self.folder, self.identity)
        self._remove_abandoned()
        waiting: dict[str, torch.Tensor] = {}
        num_bytes, since = 0, time.monotonic()
        try:
            for key, rows in features:
                waiting[key] = self._to_stored(key, rows)
                num_bytes += waiting[key].nbytes
                if num_bytes >= _SHARD_BYTES or time.monotonic() - since > _SHARD_INTERVAL_S:
                    self._write_shard(waiting)
                    waiting, num_bytes, since = {}, 0, time.monotonic()
        finally:
            if waiting:
                self._write_shard(waiting)
            self.refresh()

    def _to_stored(self, key: str, rows: torch.Tensor) -> torch.Tensor:
        stored = rows.to(self.dtype)
        if not bool(torch.isfinite(stored).all()):
            raise ValueError(
                f"feature {key}: holds {rows.abs().max().item():g}, which is not finite in {self.dtype}; store it in "
                "another dtype, or check the model if it is NaN."
            )
        return stored

    def _write_shard(self, features: Mapping[str, torch.Tensor]) -> None:
        matrix = torch.cat(list(features.values()))
        metadata = {"keys": " ".join(features)}
        if len(matrix) > len(features):
            metadata["num_rows"] = " ".join(str(len(rows)) for rows in features.values())
        metadata["crc32"] = _compute_checksum(matrix, metadata)
        name = f"{uuid.uuid4().hex}.safetensors"
        # As bytes: files that the library writes can be read by their owner only.
        write_file(self.folder / name, save({_TENSOR: matrix}, metadata))

    def _remove_abandoned(self) -> None:
        for path in self.folder.glob(".*.safetensors.tmp"):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink(missing_ok=True)

    def _load_matrix(self, shard: str) -> torch.Tensor:
        if shard not in self._matrices:
            with safe_open(self.folder / shard, framework="pt") as file:
                self._matrices[shard] = file.get_tensor(_TENSOR)
        return self._matrices[shard]


def _read_places(path: Path) -> dict[str, _Place]:
    """Return where each feature of a shard lies; none of a damaged one, which is logged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if not {"keys", "crc32"} <= set(metadata):
                raise ValueError(f"{path}: is no shard of a feature cache; remove it from the folder.")
            checksum, matrix = metadata.pop("crc32"), file.get_tensor(_TENSOR)
            # In an older version it was that of the matrix alone.
            is_whole = checksum == _compute_checksum(matrix, metadata) or checksum == _compute_checksum(matrix, {})
    except SafetensorError:
        is_whole = False
    if not is_whole:
        logger.warning("%s: is damaged; it is not read, and its features are computed again.", path)
        return {}
    keys = metadata["keys"].split()
    lengths = [int(length) for length in metadata.get("num_rows", "").split()] or [1] * len(keys)
    places, start = {}, 0
    for key, length in zip(keys, lengths, strict=True):
        places[key] = _Place(path.name, start, start + length)
        start += length
    return places


def _compute_checksum(matrix: torch.Tensor, metadata: Mapping[str, str]) -> str:
    header = json.dumps(metadata, sort_keys=True).encode() if metadata else b""
    return str(zlib.crc32(header, zlib.crc32(matrix.view(torch.uint8).numpy().data)))
