"""`sdiareward convert`: write a released checkpoint of the authors as a checkpoint of this package."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .arguments import TensorArguments


@dataclass(kw_only=True)
class ConvertArguments(TensorArguments):
    source: str = field(
        metadata={
            "positional": True,
            "help": "folder or Hub id of a checkpoint of the authors or this package, or of a backbone, which gets a "
            "new head",
        }
    )
    output_dir: Path = field(metadata={"positional": True, "help": "new or empty folder of the result"})
    pooling_mode: str | None = field(
        default=None, metadata={"help": "last_token where it applies; the other two are recognised by their tensors"}
    )
    prompt_file: Path | None = field(
        default=None,
        metadata={
            "help": "system prompts the checkpoint was trained with: YAML or JSON from criterion to text, or one text "
            "for all"
        },
    )
    max_turn_s: float | None = field(
        default=None, metadata={"help": "seconds of each turn that the model hears (default: the checkpoint's)"}
    )


def run(args: ConvertArguments) -> None:
    from transformers.utils.logging import disable_progress_bar

    from sdiareward.checkpoint_io.convert import convert_checkpoint
    from sdiareward.pairs.prompts import read_prompts

    disable_progress_bar()
    fields: dict[str, Any] = {"pooling_mode": args.pooling_mode, "max_turn_s": args.max_turn_s}
    fields["prompts"] = args.prompt_file and read_prompts(args.prompt_file)
    given = {name: value for name, value in fields.items() if value is not None}
    options: dict[str, Any] = {"dtype": args.dtype, "max_shard_size": args.max_shard_size}
    print(convert_checkpoint(args.source, args.output_dir, **options, **given))
