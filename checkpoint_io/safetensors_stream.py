"""Rewrite safetensors files piece by piece: under other names, in other files, in another dtype.

`safetensors` writes a file from tensors that are all in memory. Here a file's header is written from the headers of
the files that its tensors come from, and the tensors are copied through a buffer of a few megabytes, so that the
memory needed does not depend on the checkpoint's size. Without a change of dtype nothing but bytes is touched.

Format: eight bytes with the header's length, the header (JSON: dtype, shape, offsets of each tensor), the tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


# What can be converted into each other: name in the format -> (name in torch, bytes of a value).
DTYPES = {"F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)}
_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000
_BUFFER_BYTES = 16 * 2**20


@dataclass(frozen=True)
class StoredTensor:
    """Say where a tensor lies.

    Args:
        path (`Path`): File.
        dtype (`str`): As the format names it, for instance `"BF16"`.
        shape (`tuple[int, ...]`): Shape.
        start (`int`): Place of its first byte in the file.
        num_bytes (`int`): Its size.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True)
class PlannedTensor:
    """Say what is to become of a stored tensor.

    Args:
        source (`StoredTensor`): Where it is.
        dtype (`str`): Its dtype in the new file.
        factor (`float`, *optional*, defaults to 1.0): What to multiply its values with.
    """

    source: StoredTensor
    dtype: str
    factor: float = 1.0

    @property
    def num_bytes(self) -> int:
        """Size in the new file."""
        if self.dtype == self.source.dtype:
            return self.source.num_bytes
        return math.prod(self.source.shape) * DTYPES[self.dtype][1]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name, from its header alone.

    Args:
        path (`Path`): The file.

    Raises:
        ValueError: The file is not in the format or ends before its last tensor does.
    """
    with path.open("rb") as file:
        file_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        prefix = file.read(_LENGTH.size)
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else _MAX_HEADER_BYTES
        try:
            is_there = length < min(_MAX_HEADER_BYTES, file_bytes)
            header = json.loads(file.read(length)) if is_there else None
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: is no safetensors file; download it again.")
    header.pop("__metadata__", None)
    base = _LENGTH.size + length
    try:
        tensors = {name: _stored(path, entry, base) for name, entry in header.items()}
    except (TypeError, LookupError, ValueError) as error:
        raise ValueError(
            f"{path}: is no safetensors file, its header is damaged ({error}); download it again."
        ) from error
    needed_bytes = max((tensor.start + tensor.num_bytes for tensor in tensors.values()), default=base)
    if file_bytes < needed_bytes:
        raise ValueError(f"{path}: has {file_bytes} bytes, its header asks for {needed_bytes}; download it again.")
    return tensors


def _stored(path: Path, entry: Mapping[str, Any], base: int) -> StoredTensor:
    (start, end), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), str(entry["dtype"])
    if not all(isinstance(value, int) and value >= 0 for value in (start, *shape, end - start)):
        raise ValueError(f"shape {shape}, from byte {start} to {end}")
    if dtype in DTYPES and math.prod(shape) * DTYPES[dtype][1] != end - start:
        raise ValueError(f"{end - start} bytes for shape {shape} of {dtype}")
    return StoredTensor(path, dtype, shape, base + start, end - start)


def write_tensors(
    path: Path, tensors: Mapping[str, PlannedTensor], on_bytes: Callable[[int], Any] = lambda num_bytes: None
) -> str:
    """Write a safetensors file, under a temporary name until it is whole.

    Args:
        path (`Path`): The new file.
        tensors (`Mapping[str, PlannedTensor]`): What to write, by its name in the new file.
        on_bytes (`Callable`, *optional*): Called with the number of bytes of each piece of a tensor written.

    Returns:
        `str`: SHA-256 of the file.
    """
    unfinished = path.with_name(f".{path.name}.tmp")
    header = _header(tensors)
    digest = hashlib.sha256(header)
    with unfinished.open("wb") as file:
        file.write(header)
        for tensor in tensors.values():
            for piece in _converted(tensor, _stored_pieces(tensor.source)):
                file.write(piece)
                digest.update(piece)
                on_bytes(len(piece))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(tensors: Mapping[str, PlannedTensor]) -> bytes:
    """Return what precedes the tensors in a file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.num_bytes
        header[name] = {"dtype": tensor.dtype, "shape": tensor.source.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    # Readers map the file into memory: the tensors shall begin at a multiple of eight bytes.
    encoded += b" " * (-len(encoded) % 8)
    return _LENGTH.pack(len(encoded)) + encoded


def _stored_pieces(tensor: StoredTensor) -> Iterator[bytearray]:
    with tensor.path.open("rb") as file:
        file.seek(tensor.start)
        left = tensor.num_bytes
        while left:
            piece = bytearray(min(left, _BUFFER_BYTES))
            if file.readinto(piece) != len(piece):
                raise ValueError(f"{tensor.path}: ended while it was read; is something else writing it?")
            left -= len(piece)
            yield piece


def _converted(tensor: PlannedTensor, pieces: Iterable[bytearray]) -> Iterator[bytes | bytearray]:
    if tensor.dtype == tensor.source.dtype and tensor.factor == 1.0:
        yield from pieces
        return
    import torch

    source_dtype, dtype = (getattr(torch, DTYPES[name][0]) for name in (tensor.source.dtype, tensor.dtype))
    for piece in pieces:
        values = torch.frombuffer(piece, dtype=source_dtype)
        if tensor.factor != 1.0:
            values = values.double() * tensor.factor
        yield values.to(dtype).view(torch.uint8).numpy().tobytes()
