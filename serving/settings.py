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
    body_timeout_s: float = 30.0  # For a body to arrive.
    request_timeout_s: float = 120.0  # For the model, waiting included.
    retry_after_s: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; give a positive, finite number.")


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    model: ModelSpec
    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    api_key: ApiKey | None = None
    drain_timeout_s: float = 60.0
    num_replicas: int = 1  # More than one run on Ray.
    max_replicas: int | None = None
    cpus_per_replica: float = 1.0
    gpus_per_replica: float | None = None
    num_threads: int | None = None  # Of PyTorch on a CPU, in each replica.

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _LAST_PORT:
            raise ValueError(f"port is {self.port}; give one up to {_LAST_PORT}, or 0 for any that is free.")
        if not 0 <= self.drain_timeout_s < math.inf:
            raise ValueError(f"drain_timeout_s is {self.drain_timeout_s}; give a number of seconds, 0 or more.")
        for name, least in {"num_replicas": 1, "num_threads": 1, "cpus_per_replica": 0, "gpus_per_replica": 0}.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} is {value}; give at least {least}.")
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(
                f"at most {self.max_replicas} replicas but at least {self.num_replicas} are asked for; swap them."
            )

    @property
    def is_on_ray(self) -> bool:
        return self.num_replicas > 1 or self.max_replicas is not None


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
