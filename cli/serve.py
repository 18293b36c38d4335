"""`sdiareward serve`: answer requests for rewards over HTTP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.common.user_errors import UserError
from sdiareward.scoring.arguments import ModelArguments
from sdiareward.serving.settings import API_KEY_ENV, Limits, Replicas


if TYPE_CHECKING:
    from sdiareward.serving.settings import ServiceSettings

_MIB = 2**20
# Options that are a limit of the same name.
_LIMITS = (
    "max_in_flight",
    "max_queued",
    "max_dialogues",
    "max_turns",
    "max_turn_s",
    "body_timeout_s",
    "request_timeout_s",
)


@dataclass(kw_only=True)
class ServeArguments(ModelArguments):
    host: str = field(default="127.0.0.1", metadata={"help": "address to listen at"})
    port: int = field(default=8000, metadata={"help": "port to listen at; 0 takes a free one"})
    api_key_file: Path | None = field(
        default=None,
        metadata={"help": f"file with the key that clients must send (default: the variable {API_KEY_ENV}, if set)"},
    )
    drain_timeout_s: float = field(
        default=60.0, metadata={"help": "seconds to answer accepted requests after SIGTERM"}
    )
    num_replicas: int = field(default=Replicas.minimum, metadata={"help": "copies of the model"})
    max_replicas: int | None = field(
        default=None, metadata={"help": "largest number of copies; some are added under load"}
    )
    gpus_per_replica: float | None = field(
        default=None, metadata={"help": "GPUs of each copy; a fraction shares one (default: 1 if there are any)"}
    )
    cpus_per_replica: float = field(
        default=Replicas.num_cpus, metadata={"help": "cores that Ray reserves for each copy"}
    )
    threads: int | None = field(
        default=None,
        metadata={"help": "threads of PyTorch in each copy on a CPU (default: an equal share of the cores)"},
    )
    max_batch_size: int = field(default=Replicas.max_batch_size, metadata={"help": "requests in one batch"})
    batch_wait_s: float = field(
        default=Replicas.batch_wait_s, metadata={"help": "seconds that a free copy waits for a fuller batch"}
    )
    object_store_mib: int = field(
        default=Replicas.object_store_bytes // _MIB, metadata={"help": "shared memory for requests, in MiB"}
    )
    max_body_mib: float = field(
        default=Limits.max_body_bytes / _MIB,
        metadata={"help": "size of the largest request, in MiB"},
    )
    max_in_flight: int = field(
        default=Limits.max_in_flight, metadata={"help": "concurrent requests; further ones get 503"}
    )
    max_queued: int = field(
        default=Limits.max_queued, metadata={"help": "requests that wait for a copy; further ones get 503"}
    )
    max_dialogues: int = field(default=Limits.max_dialogues, metadata={"help": "dialogues in a request"})
    max_turns: int | None = field(default=None, metadata={"help": "turns of a dialogue (default: the model's limit)"})
    max_turn_s: float | None = field(
        default=None, metadata={"help": "seconds of a turn (default: the limit of a dialogue)"}
    )
    body_timeout_s: float = field(
        default=Limits.body_timeout_s, metadata={"help": "seconds for the body of a request to arrive"}
    )
    request_timeout_s: float = field(
        default=Limits.request_timeout_s, metadata={"help": "seconds for the model to answer, waiting included"}
    )


def run(args: ServeArguments) -> None:
    from sdiareward.common.local_ray import protect_ray

    protect_ray()
    try:
        settings = _make_settings(args)
    except UserError:
        raise
    except (ValueError, OSError) as error:
        # The general remedy for a missing file is to restore it, which is wrong here.
        raise UserError(str(error)) from None
    from sdiareward.serving.service import serve_model

    serve_model(settings, lambda url: print(f"sdiareward: {args.model} at {url}, docs at {url}/docs", flush=True))


def _make_settings(args: ServeArguments) -> ServiceSettings:
    from sdiareward.common.hub import fetch_snapshot
    from sdiareward.serving.settings import Limits, Replicas, ServiceSettings, read_api_key

    spec = args.make_spec()
    # Before Ray starts: its copies of the model would report only that they cannot.
    if not Path(spec.checkpoint).is_dir():
        fetch_snapshot(spec.checkpoint, ["config.json"])
    limits = {name: getattr(args, name) for name in _LIMITS}
    if not math.isfinite(args.max_body_mib):
        raise UserError(f"--max-body-mib is {args.max_body_mib}; give a positive, finite number.")
    return ServiceSettings(
        model=spec,
        host=args.host,
        port=args.port,
        limits=Limits(max_body_bytes=round(args.max_body_mib * _MIB), **limits),
        replicas=Replicas(
            minimum=args.num_replicas,
            maximum=args.max_replicas,
            num_cpus=args.cpus_per_replica,
            num_gpus=args.gpus_per_replica,
            num_threads=args.threads,
            max_batch_size=args.max_batch_size,
            batch_wait_s=args.batch_wait_s,
            object_store_bytes=args.object_store_mib * _MIB,
        ),
        api_key=read_api_key(args.api_key_file),
        drain_timeout_s=args.drain_timeout_s,
    )
