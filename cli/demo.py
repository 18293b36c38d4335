"""`sdiareward demo`: open the page on which a model can be tried, on this machine."""

from __future__ import annotations

import argparse

from .arguments import InputError


_PORT = 7860


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    model = "checkpoint folder or Hub id (default: what SDIAREWARD_MODEL names, or the package's nano checkpoint)"
    parser.add_argument("--model", help=model)
    parser.add_argument("--dtype", help="of the backbone, such as bfloat16 (default: the checkpoint's)")
    parser.add_argument("--device", help="such as cuda:0 (default: an accelerator if there is one)")
    parser.add_argument("--host", default="127.0.0.1", help="who may reach it (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, default=_PORT, help="port of the page (default: %(default)s)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    """Serve the page until it is interrupted; return the exit status."""
    from sdiareward.scoring.model_spec import ScoringError
    from sdiareward.serving.demo.app import build, launch

    try:
        page = build(model=args.model, dtype=args.dtype, device=args.device)
        launch(page, server_name=args.host, server_port=args.port, inbrowser=args.open)
    except (ScoringError, OSError) as error:
        raise InputError(str(error)) from error
    return 0
