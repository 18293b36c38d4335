"""Make `load_dataset("sdiareward", "modality", data_dir=...)` work: importing this module registers the builder.

From then on the bare name `"sdiareward"` means the builder, in this process. Without `data_dir` it reads the folder
`sdiareward` of the working directory, as the bare name did before: the same rows, with their audio left encoded. Other
forms (`"./sdiareward"`, an absolute path, `"owner/sdiareward"` on the Hub) are not affected.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import datasets
import datasets.packaged_modules

from . import sdiareward as builder_module


NAME = "sdiareward"
_TABLE = "_PACKAGED_DATASETS_MODULES"


def register() -> None:
    """Enter the builder in the table of `datasets`, which is not a public interface."""
    known = getattr(datasets.packaged_modules, _TABLE, None)
    if not isinstance(known, dict):
        raise RuntimeError(
            f"datasets {datasets.__version__} has no table datasets.packaged_modules.{_TABLE}, in which builders are "
            "entered by name; use the class sdiareward.dataset_builder.formats.sdiareward.SDiaReward instead, "
            "or install datasets 5.2."
        )
    source = Path(builder_module.__file__).read_bytes()
    known[NAME] = (builder_module.__name__, hashlib.sha256(source).hexdigest())


register()
