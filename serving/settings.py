"""Settings of the server: model, address, replicas, limits, API key. Does not import torch or Ray."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, Port, PositiveInt
from cyclopts.validators import Number

from sdiareward.chat_sdiareward import MAX_TURNS
from sdiareward.common.commands import YAML_ONLY
from sdiareward.pairs.schema import MAX_TURN_S


if TYPE_CHECKING:
    from sdiareward.scoring.model_spec import ModelSpec

API_KEY_ENV = "SDIAREWARD_API_KEY"
_SHORTEST_KEY = 16
_Finite = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]


@Parameter(name="*", group="Limits")
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may be; `max_in_flight` times `max_body_mib` bounds the memory of bodies.

    Args:
        max_body_mib: Size of the largest request, in MiB.
        max_dialogues: Dialogues in a request.
        max_turns: Turns of a dialogue, at most 16.
        max_turn_s: Seconds of a turn.
        max_in_flight: Concurrent requests; further ones get 503.
        body_timeout_s: Seconds for the body of a request to arrive.
        request_timeout_s: Seconds for the model to answer, waiting included.
        retry_after_s: Seconds that a refused client is told to wait.
    """

    max_body_mib: _Finite = 32.0
    max_dialogues: Annotated[PositiveInt, YAML_ONLY] = 64
    max_turns: Annotated[PositiveInt, YAML_ONLY] = MAX_TURNS
    max_turn_s: Annotated[_Finite, YAML_ONLY] = MAX_TURN_S
    max_in_flight: Annotated[PositiveInt, YAML_ONLY] = 128
    body_timeout_s: Annotated[_Finite, YAML_ONLY] = 30.0
    request_timeout_s: Annotated[_Finite, YAML_ONLY] = 120.0
    retry_after_s: Annotated[PositiveInt, YAML_ONLY] = 1

    @property
    def max_body_bytes(self) -> int:
        return round(self.max_body_mib * 2**20)


@Parameter(name="*", group="Server")
@dataclass(frozen=True, kw_only=True)
class ServerArguments:
    """Where and on what the server runs.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        drain_timeout_s: Seconds to answer accepted requests after SIGTERM.
        num_replicas: Copies of the model; several run on Ray.
        max_replicas: Largest number of copies; Ray adds some under load.
        cpus_per_replica: Cores that Ray reserves for each copy.
        gpus_per_replica: GPUs of each copy; a fraction shares one; 1 by default if there are any.
        num_threads: Threads of PyTorch in each copy on a CPU; an equal share of the cores by default.
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    drain_timeout_s: Annotated[_Finite, YAML_ONLY] = 60.0
    num_replicas: PositiveInt = 1
    max_replicas: Annotated[PositiveInt | None, YAML_ONLY] = None
    cpus_per_replica: Annotated[NonNegativeFloat, YAML_ONLY] = 1.0
    gpus_per_replica: Annotated[NonNegativeFloat | None, YAML_ONLY] = None
    num_threads: Annotated[PositiveInt | None, YAML_ONLY] = None

    def __post_init__(self) -> None:
        if self.most_replicas < self.num_replicas:
            raise ValueError(f"num_replicas is {self.num_replicas}; give at most max_replicas, {self.max_replicas}.")

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.num_replicas


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(ServerArguments):
    model: ModelSpec
    limits: Limits = Limits()
    api_key: str | None = field(default=None, repr=False)


def read_api_key(path: Path | None = None) -> str | None:
    """Read the key from a file or, without one, from the environment variable `SDIAREWARD_API_KEY`."""
    key = os.environ.get(API_KEY_ENV) if path is None else path.read_text(encoding="utf-8")
    if key is None:
        return None
    key = key.strip()
    if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        wanted = f"at least {_SHORTEST_KEY} printable ASCII ones without blanks, as from `openssl rand -hex 32`"
        raise ValueError(f"the API key has {len(key)} characters; give {wanted}.")
    return key
