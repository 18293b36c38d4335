"""`sdiareward convert`: write a released checkpoint of the authors as a checkpoint of ours."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .arguments import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("source", help="folder or Hub id of a checkpoint of the authors, or of ours")
    parser.add_argument("output_dir", type=Path, help="folder of the result; a stopped conversion goes on in it")
    parser.add_argument("--pooling-mode", help="last_token where it applies; the other two are seen from the tensors")
    parser.add_argument(
        "--prompt-file",
        type=Path,
        help="system prompt that the checkpoint was trained with: JSON from criterion to text, or a text for all",
    )
    parser.add_argument("--max-turn-s", type=float, help="seconds heard of each turn (default: the checkpoint's)")
    add_tensor_arguments(parser)


def add_tensor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every command has that writes tensors."""
    parser.add_argument("--dtype", help="dtype of the backbone, for instance bfloat16 (default: what is stored)")
    parser.add_argument("--max-shard-size", default="5GB", help="largest file of tensors (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Convert a checkpoint; return the exit status."""
    from transformers.utils.logging import disable_progress_bar

    from sdiareward.checkpoint_io.convert import convert_checkpoint
    from sdiareward.pairs.prompts import read_prompts

    disable_progress_bar()
    fields: dict[str, Any] = {"pooling_mode": args.pooling_mode, "max_turn_s": args.max_turn_s}
    try:
        fields["prompts"] = args.prompt_file and read_prompts(args.prompt_file)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    return write(convert_checkpoint, args, {name: value for name, value in fields.items() if value is not None})


def write(function: Callable[..., Path], args: argparse.Namespace, options: dict[str, Any]) -> int:
    """Write a checkpoint with a function of `conversion`; return the exit status."""
    options = {**options, "dtype": args.dtype, "max_shard_size": args.max_shard_size}
    try:
        print(function(args.source, args.output_dir, **options))
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    return 0
