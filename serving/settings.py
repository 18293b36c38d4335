"""What a server is told: which model, how many copies, what it refuses. Nothing here imports torch or Ray."""

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
    """Say what the server refuses.

    Args:
        max_body_bytes (`int`, *optional*, defaults to 32 MiB): Largest body of a request.
        max_dialogues (`int`, *optional*, defaults to 64): Dialogues in a request.
        max_turns (`int`, *optional*): Turns of a dialogue, if fewer than a dialogue may have anyway.
        max_turn_s (`float`, *optional*): Seconds of a turn, if fewer than a turn may have anyway.
        max_in_flight (`int`, *optional*, defaults to 128): Requests at once, from their first byte to the answer's
            last. Times `max_body_bytes` this bounds what bodies take in memory.
        max_queued (`int`, *optional*, defaults to 64): Requests that may wait for a copy of the model.
        body_timeout_s (`float`, *optional*, defaults to 30.0): How long a body may take to arrive.
        request_timeout_s (`float`, *optional*, defaults to 120.0): How long the model may take, waiting included.
        retry_after_s (`int`, *optional*, defaults to 1): What a client that is turned away is told to wait.

    Raises:
        ValueError: A limit is not positive.
    """

    max_body_bytes: int = 32 * 2**20
    max_dialogues: int = 64
    max_turns: int | None = None
    max_turn_s: float | None = None
    max_in_flight: int = 128
    max_queued: int = 64
    body_timeout_s: float = 30.0
    request_timeout_s: float = 120.0
    retry_after_s: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; give a positive number.")


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Say how many copies of the model there are and what each gets.

    Args:
        minimum (`int`, *optional*, defaults to 1): Copies.
        maximum (`int`, *optional*): Copies that may be added under load; by default none.
        num_cpus (`float`, *optional*, defaults to 1.0): Cores that Ray reserves for each.
        num_gpus (`float`, *optional*): GPUs of each; by default 1 where the cluster has some.
        num_threads (`int`, *optional*): Threads of PyTorch in each on a CPU; by default an equal part of the cores.
        max_batch_size (`int`, *optional*, defaults to 8): Requests that are scored together.
        batch_wait_s (`float`, *optional*, defaults to 0.005): How long a copy that is free waits for more of them.
        object_store_bytes (`int`, *optional*, defaults to 256 MiB): Shared memory through which requests travel.

    Raises:
        ValueError: A number is out of range.
    """

    minimum: int = 1
    maximum: int | None = None
    num_cpus: float = 1.0
    num_gpus: float | None = None
    num_threads: int | None = None
    max_batch_size: int = 8
    batch_wait_s: float = 0.005
    object_store_bytes: int = 256 * 2**20

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
    """Say everything that a server has to know.

    Args:
        model ([`ModelSpec`]): What scores.
        host (`str`, *optional*, defaults to `"127.0.0.1"`): Address to listen at.
        port (`int`, *optional*, defaults to 8000): Port to listen at; 0 takes a free one.
        limits ([`Limits`], *optional*): What is refused.
        replicas ([`Replicas`], *optional*): Copies of the model.
        api_key (`ApiKey`, *optional*): What a client must show; without it everyone is served.
        drain_timeout_s (`float`, *optional*, defaults to 60.0): How long the server may go on answering at its end.

    Raises:
        ValueError: There is no such port, or a time is negative or endless.
    """

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
    """Hold a key that can be compared, but neither printed nor logged.

    Args:
        key (`str`): The key.

    Raises:
        ValueError: It is too short to be a secret, or could not be sent in a header.
    """

    def __init__(self, key: str):
        if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(
                f"the API key has {len(key)} characters; give at least {_SHORTEST_KEY} printable ASCII ones without "
                "blanks, for instance from `openssl rand -hex 32`."
            )
        self._key = key.encode()

    def __repr__(self) -> str:
        return "ApiKey(...)"

    def matches(self, shown: str) -> bool:
        """Return whether this is the key, in a time that does not tell how much of it is right."""
        return hmac.compare_digest(self._key, shown.encode("utf-8", "surrogateescape"))


def read_api_key(path: str | Path | None = None) -> ApiKey | None:
    """Read the key from a file or, without one, from the environment variable `SDIAREWARD_API_KEY`.

    Args:
        path (`str` or `Path`, *optional*): File with the key alone.

    Returns:
        [`ApiKey`]: None if neither names one.

    Raises:
        OSError: The file cannot be read.
        ValueError: The key is empty or too short.
    """
    if path is not None:
        return ApiKey(Path(path).read_text(encoding="utf-8").strip())
    return ApiKey(os.environ[API_KEY_ENV].strip()) if API_KEY_ENV in os.environ else None
