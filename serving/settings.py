"""Settings of the server: model, address, replicas, limits, API key. Does not import torch or Ray."""

from __future__ import annotations

import hmac
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from sdiareward.scoring.model_spec import ModelSpec

API_KEY_ENV = "SDIAREWARD_API_KEY"
_SHORTEST_KEY = 16
_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class Limits:
    max_body_bytes: int = 32 * 2**20
    max_dialogues: int = 64
    max_turns: int | None = None  # If fewer than the 16 of any dialogue.
    max_turn_s: float | None = None  # If less than the 60 s of any turn.
    max_in_flight: int = 128  # Times `max_body_bytes`, it bounds the memory of bodies.
    max_queued: int = 64
    body_timeout_s: float = 30.0  # For a body to arrive.
    request_timeout_s: float = 120.0  # For the model, waiting included.
    retry_after_s: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; give a positive, finite number.")


@dataclass(frozen=True, kw_only=True)
class Replicas:
    minimum: int = 1
    maximum: int | None = None
    num_cpus: float = 1.0
    num_gpus: float | None = None
    num_threads: int | None = None  # Of PyTorch on a CPU; by default an equal part of the cores.
    max_batch_size: int = 8
    batch_wait_s: float = 0.005
    object_store_bytes: int = 256 * 2**20  # Shared memory through which requests travel.

    def __post_init__(self) -> None:
        for name in ("minimum", "num_threads", "max_batch_size", "object_store_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; give at least 1.")
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"at most {self.maximum} replicas but at least {self.minimum} are asked for; swap them.")
        for name in ("batch_wait_s", "num_cpus", "num_gpus"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is {value}; give 0 or more.")


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    model: ModelSpec
    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    replicas: Replicas = field(default_factory=Replicas)
    api_key: ApiKey | None = None
    drain_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _LAST_PORT:
            raise ValueError(f"port is {self.port}; give one up to {_LAST_PORT}, or 0 for any that is free.")
        if not 0 <= self.drain_timeout_s < math.inf:
            raise ValueError(f"drain_timeout_s is {self.drain_timeout_s}; give a number of seconds, 0 or more.")


class ApiKey:
    """A key that can be compared, but is neither printed nor logged."""

    def __init__(self, key: str):
        if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(
                f"the API key has {len(key)} characters; give at least {_SHORTEST_KEY} printable ASCII ones without "
                "blanks, for instance from `openssl rand -hex 32`."
            )
        self._key = key.encode()

    def __repr__(self) -> str:
        return "ApiKey(...)"

    def matches(self, sent: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self._key, sent.encode("utf-8", "surrogateescape"))


def read_api_key(path: str | Path | None = None) -> ApiKey | None:
    """Read the key from a file or, without one, from the environment variable `SDIAREWARD_API_KEY`."""
    if path is not None:
        return ApiKey(Path(path).read_text(encoding="utf-8").strip())
    return ApiKey(os.environ[API_KEY_ENV].strip()) if API_KEY_ENV in os.environ else None
