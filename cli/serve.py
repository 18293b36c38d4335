"""`sdiareward serve`: answer requests for rewards over HTTP."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import InputError


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    from sdiareward.serving.settings import API_KEY_ENV

    parser.epilog = "SIGTERM ends it: what was taken is answered, new requests are refused, the exit status is 0."
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub id")
    parser.add_argument("--prompt-file", type=Path, help="system prompts in place of the model's, as in `score`")
    parser.add_argument("--dtype", help="of the backbone, such as bfloat16 (default: the checkpoint's)")
    parser.add_argument("--device", help="such as cpu (default: GPUs if there are any)")
    parser.add_argument("--batch-tokens", type=int, help="tokens in one forward pass")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    key = f"file with the key that clients must show (default: the variable {API_KEY_ENV}, if set)"
    parser.add_argument("--api-key-file", type=Path, help=key)
    drain = "how long answering may take at the end (default: %(default)g)"
    parser.add_argument("--drain-timeout-s", type=float, default=60.0, help=drain)
    _add_replicas(parser.add_argument_group("copies of the model"))
    _add_limits(parser.add_argument_group("what is refused"))


def _add_replicas(group: Any) -> None:
    from sdiareward.serving.settings import Replicas

    group.add_argument("--num-replicas", type=int, default=Replicas.minimum, help="copies (default: %(default)s)")
    group.add_argument("--max-replicas", type=int, help="add copies under load, up to so many")
    group.add_argument("--gpus-per-replica", type=float, help="default: 1 if there are any; a fraction shares one")
    cpus = "cores that Ray reserves for each (default: %(default)g)"
    group.add_argument("--cpus-per-replica", type=float, default=Replicas.num_cpus, help=cpus)
    group.add_argument("--threads", type=int, help="of PyTorch in each on a CPU (default: an equal part of the cores)")
    size = "requests scored together (default: %(default)s)"
    group.add_argument("--max-batch-size", type=int, default=Replicas.max_batch_size, help=size)
    wait = "how long a free copy waits for more of them (default: %(default)g)"
    group.add_argument("--batch-wait-s", type=float, default=Replicas.batch_wait_s, help=wait)
    store = "shared memory through which requests travel (default: %(default)s)"
    group.add_argument("--object-store-mib", type=int, default=Replicas.object_store_bytes // _MIB, help=store)


def _add_limits(group: Any) -> None:
    from sdiareward.serving.settings import Limits

    body = "largest request (default: %(default)g)"
    group.add_argument("--max-body-mib", type=float, default=Limits.max_body_bytes / _MIB, help=body)
    in_flight = "requests at once; more get 503 (default: %(default)s)"
    group.add_argument("--max-in-flight", type=int, default=Limits.max_in_flight, help=in_flight)
    queued = "requests that may wait for a copy; more get 503 (default: %(default)s)"
    group.add_argument("--max-queued", type=int, default=Limits.max_queued, help=queued)
    dialogues = "dialogues in a request (default: %(default)s)"
    group.add_argument("--max-dialogues", type=int, default=Limits.max_dialogues, help=dialogues)
    group.add_argument("--max-turns", type=int, help="turns of a dialogue (default: as many as the model takes)")
    group.add_argument("--max-turn-s", type=float, help="seconds of a turn (default: as many as a turn may have)")
    slow = "how long a body may take to arrive (default: %(default)g)"
    group.add_argument("--body-timeout-s", type=float, default=Limits.body_timeout_s, help=slow)
    answer = "how long the model may take, waiting included (default: %(default)g)"
    group.add_argument("--request-timeout-s", type=float, default=Limits.request_timeout_s, help=answer)


def run(args: argparse.Namespace) -> int:
    """Serve until told to end; return the exit status."""
    from sdiareward.scoring.model_spec import ScoringError
    from sdiareward.serving.service import serve_model

    try:
        settings = _settings(args)
    except (ValueError, OSError) as error:
        # What was never there cannot be put back: no hindrance on the way, but input that cannot be worked on.
        raise InputError(str(error)) from None
    try:
        serve_model(settings, lambda url: print(f"sdiareward: {args.model} at {url}, docs at {url}/docs", flush=True))
    except (ScoringError, ValueError, OSError) as error:
        raise InputError(str(error)) from error
    except KeyboardInterrupt:
        print("sdiareward: interrupted before it served", file=sys.stderr)
        return 130
    return 0


def _settings(args: argparse.Namespace) -> ServiceSettings:
    from sdiareward.pairs.prompts import read_prompts
    from sdiareward.scoring.model_spec import ModelSpec
    from sdiareward.serving.settings import Limits, Replicas, ServiceSettings, read_api_key

    prompts = read_prompts(args.prompt_file) if args.prompt_file else None
    limits = {name: getattr(args, name) for name in _LIMITS}
    return ServiceSettings(
        model=ModelSpec(args.model, prompts, args.dtype, args.device, batch_tokens=args.batch_tokens),
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
