"""`sdiareward serve`: answer requests for rewards over HTTP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.common.user_errors import UserError
from sdiareward.scoring.arguments import ModelArguments
from sdiareward.serving.settings import API_KEY_ENV, Limits


if TYPE_CHECKING:
    from sdiareward.serving.settings import ServiceSettings

_MIB = 2**20
# Options that are a limit of the same name.
_LIMITS = (
    "max_in_flight",
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
    num_replicas: int = field(default=1, metadata={"help": "copies of the model; several run on Ray"})
    max_replicas: int | None = field(
        default=None, metadata={"help": "largest number of copies; Ray adds some under load"}
    )
    gpus_per_replica: float | None = field(
        default=None, metadata={"help": "GPUs of each copy; a fraction shares one (default: 1 if there are any)"}
    )
    cpus_per_replica: float = field(default=1.0, metadata={"help": "cores that Ray reserves for each copy"})
    threads: int | None = field(
        default=None,
        metadata={"help": "threads of PyTorch in each copy on a CPU (default: an equal share of the cores)"},
    )
    max_body_mib: float = field(
        default=Limits.max_body_bytes / _MIB,
        metadata={"help": "size of the largest request, in MiB"},
    )
    max_in_flight: int = field(
        default=Limits.max_in_flight, metadata={"help": "concurrent requests; further ones get 503"}
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
    from sdiareward.serving.settings import Limits, ServiceSettings, read_api_key

    spec = args.make_spec()
    # Before anything is started.
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
        num_replicas=args.num_replicas,
        max_replicas=args.max_replicas,
        cpus_per_replica=args.cpus_per_replica,
        gpus_per_replica=args.gpus_per_replica,
        num_threads=args.threads,
        api_key=read_api_key(args.api_key_file),
        drain_timeout_s=args.drain_timeout_s,
    )
