"""List the tensors of a checkpoint in a folder or on the Hub."""

from __future__ import annotations

from pathlib import Path

from sdiareward.common.hub import explain_unreachable, fetch_snapshot


def list_checkpoint_tensors(model: str) -> set[str]:
    from huggingface_hub import constants

    from sdiareward.loading_sdiareward import list_tensors

    if Path(model).is_dir():
        return list_tensors(model)
    fetch_snapshot(model, ["config.json"])
    try:
        return list_tensors(model)
    except FileNotFoundError as error:
        # Without the Hub, what is not in the cache looks like what is not in the repository.
        if constants.HF_HUB_OFFLINE:
            raise explain_unreachable(model) from error
        raise
