"""`sdiareward export`: write a checkpoint in the layout of the authors' code or of vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .arguments import TensorArguments


@dataclass(kw_only=True)
class ExportArguments(TensorArguments):
    source: str = field(metadata={"positional": True, "help": "folder or Hub id of a checkpoint"})
    output_dir: Path = field(metadata={"positional": True, "help": "new or empty folder of the result"})
    layout: Literal["official", "vllm"] = field(metadata={"help": "layout to write"})


def run(args: ExportArguments) -> None:
    from sdiareward.checkpoint_io.convert import export_checkpoint

    options: dict[str, Any] = {"dtype": args.dtype, "max_shard_size": args.max_shard_size}
    print(export_checkpoint(args.source, args.output_dir, layout=args.layout, **options))
