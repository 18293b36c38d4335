"""`build`: sources -> splits -> pairs -> Parquet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from . import BuilderArguments, finish


@dataclass(kw_only=True)
class BuildArguments(BuilderArguments):
    config: Path = field(metadata={"help": "YAML file: the fields of BuildConfig"})
    output_dir: str | None = field(default=None, metadata={"help": "folder to write instead of the config's"})
    num_workers: int | None = field(default=None, metadata={"help": "processes"})
    engine: Literal["datasets", "ray"] | None = field(
        default=None, metadata={"help": "what runs the pipeline of long recordings and makes the pairs"}
    )


def run(args: BuildArguments) -> int:
    from ..builder import build
    from ..settings import read_build_config

    overrides = {"output_dir": args.output_dir, "num_workers": args.num_workers, "engine": args.engine}
    config = read_build_config(args.config, overrides)
    return finish(config.output_dir, build(config, dry_run=args.dry_run), args.strict)
