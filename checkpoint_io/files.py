"""The files of a checkpoint: names, saving, and the remote code.

`python -m sdiareward.checkpoint_io.files` (`make nano-code`) copies the remote code into the repository's checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import read_json_object
from sdiareward.common.hub import explain_unreachable, fetch_snapshot
from sdiareward.common.package import NANO, PACKAGE


if TYPE_CHECKING:
    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# The cross-validation results of this head.
FOLDS = "folds.json"
# The small model only; its base is assembled from packages.
SMALL_PROJECTION = "projection.safetensors"
# The remote code, for machines without this package.
REMOTE_CODE = (
    "audio_sdiareward.py",
    "chat_sdiareward.py",
    "configuration_sdiareward.py",
    "loading_sdiareward.py",
    "modeling_sdiareward.py",
    "pipeline_sdiareward.py",
    "pooling_sdiareward.py",
    "processing_sdiareward.py",
)
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    return read_json_object(path, "give the folder of a complete checkpoint of this package")


def list_weight_files(checkpoint: Path) -> list[str]:
    """Return the names of the weight files of a complete model: a single file, or the files in its index."""
    if (checkpoint / WEIGHTS).is_file() or not (checkpoint / WEIGHTS_INDEX).is_file():
        return [WEIGHTS]
    return sorted(set(read_json(checkpoint / WEIGHTS_INDEX)["weight_map"].values()))


def iter_tensors(checkpoint: Path, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and slice of each tensor in these files; a slice is read when it is indexed."""
    from safetensors import SafetensorError, safe_open

    for path in (find_file(checkpoint, name) for name in names):
        try:
            with safe_open(path, "np") as file:
                yield from ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118 (not a mapping)
        except SafetensorError as error:
            raise ValueError(f"{path}: not safetensors ({error}); save it again.") from error


def find_file(checkpoint: Path, name: str) -> Path:
    if Path(name).name != name:
        raise ValueError(f"{checkpoint}: its index names {name!r}, which is not in this folder.")
    if not (checkpoint / name).is_file():
        raise FileNotFoundError(f"{checkpoint / name}: not found; give the folder of a complete checkpoint.")
    return checkpoint / name


def list_checkpoint_tensors(model: str) -> set[str]:
    """Return the tensor names of a checkpoint in a folder or on the Hub."""
    from huggingface_hub import constants

    from sdiareward.loading_sdiareward import list_tensors

    if Path(model).is_dir():
        return list_tensors(model)
    fetch_snapshot(model, ["config.json"])
    try:
        return list_tensors(model)
    except FileNotFoundError as error:
        # Offline, a file that is not cached looks like one that is not in the repository.
        if constants.HF_HUB_OFFLINE:
            raise explain_unreachable(model) from error
        raise


def save_checkpoint(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, output_dir: str | Path, *, compact: bool = False
) -> None:
    """Save a model and its processor; `compact` stores the backbone in float16, the configuration keeps float32."""
    state_dict = model.state_dict()
    if compact:
        state_dict = {name: t.half() if name.startswith("model.") else t for name, t in state_dict.items()}
    model.save_pretrained(output_dir, state_dict=state_dict)
    processor.save_pretrained(output_dir)


def write_remote_code(folder: Path) -> None:
    for name in REMOTE_CODE:
        target = folder / name
        # Writing would follow a symbolic link.
        target.unlink(missing_ok=True)
        target.write_bytes((PACKAGE / name).read_bytes())


if __name__ == "__main__":
    write_remote_code(NANO)
