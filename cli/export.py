"""`sdiareward export`: write a checkpoint in the layout of the authors' code or of vLLM."""

from __future__ import annotations

import argparse
from pathlib import Path

from .convert import add_tensor_arguments, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("source", help="folder or Hub id of a checkpoint")
    parser.add_argument("output_dir", type=Path, help="folder of the result; a stopped export goes on in it")
    parser.add_argument("--layout", required=True, choices=("official", "vllm"), help="whose layout")
    add_tensor_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Export a checkpoint; return the exit status."""
    from sdiareward.checkpoint_io.convert import export_checkpoint

    return write(export_checkpoint, args, {"layout": args.layout})
