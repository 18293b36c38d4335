"""Settings of the server: model, address, replicas, limits, API key. Does not import torch or Ray."""

from __future__ import annotations

import hmac
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, Port, PositiveInt


if TYPE_CHECKING:
    from sdiareward.scoring.model_spec import ModelSpec

API_KEY_ENV = "SDIAREWARD_API_KEY"
_SHORTEST_KEY = 16


@Parameter(name="*", group="Limits")
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may be; `max_in_flight` times `max_body_mib` bounds the memory of bodies.

    Args:
        max_body_mib: Size of the largest request, in MiB.
        max_dialogues: Dialogues in a request.
        max_turns: Turns of a dialogue; by default the 16 of any dialogue.
        max_turn_s: Seconds of a turn; by default the 60 of any turn.
        max_in_flight: Concurrent requests; further ones get 503.
        body_timeout_s: Seconds for the body of a request to arrive.
        request_timeout_s: Seconds for the model to answer, waiting included.
        retry_after_s: Seconds that a refused client is told to wait.
    """

    max_body_mib: float = 32.0
    max_dialogues: int = 64
    max_turns: int | None = None
    max_turn_s: float | None = None
    max_in_flight: int = 128
    body_timeout_s: float = 30.0
    request_timeout_s: float = 120.0
    retry_after_s: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; give a positive, finite number.")

    @property
    def max_body_bytes(self) -> int:
        return round(self.max_body_mib * 2**20)


@Parameter(name="*", group="Server")
@dataclass(frozen=True, kw_only=True)
class ServerArguments:
    """Where and on what the server runs.

    Args:
        host: Address to listen at.
        port: Port to listen at; 0 takes a free one.
        drain_timeout_s: Seconds to answer accepted requests after SIGTERM.
        num_replicas: Copies of the model; several run on Ray.
        max_replicas: Largest number of copies; Ray adds some under load.
        cpus_per_replica: Cores that Ray reserves for each copy.
        gpus_per_replica: GPUs of each copy; a fraction shares one; 1 by default if there are any.
        num_threads: Threads of PyTorch in each copy on a CPU; an equal share of the cores by default.
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    drain_timeout_s: NonNegativeFloat = 60.0
    num_replicas: PositiveInt = 1
    max_replicas: PositiveInt | None = None
    cpus_per_replica: NonNegativeFloat = 1.0
    gpus_per_replica: NonNegativeFloat | None = None
    num_threads: Annotated[PositiveInt | None, Parameter(name="--threads")] = None

    def __post_init__(self) -> None:
        if self.drain_timeout_s == math.inf:
            raise ValueError("drain_timeout_s is inf; give a number of seconds.")
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(
                f"at most {self.max_replicas} replicas but at least {self.num_replicas} are asked for; swap them."
            )

    @property
    def is_on_ray(self) -> bool:
        return self.num_replicas > 1 or self.max_replicas is not None


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(ServerArguments):
    model: ModelSpec
    limits: Limits = field(default_factory=Limits)
    api_key: ApiKey | None = None


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
