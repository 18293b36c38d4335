"""Make `load_dataset("sdiareward", "modality", data_dir=...)` work: importing this module registers the builder.

From then on the bare name `"sdiareward"` means the builder, in this process. Without `data_dir` it reads the folder
`sdiareward` of the working directory, as the bare name did before: the same rows, with their audio left encoded. Other
forms (`"./sdiareward"`, an absolute path, `"owner/sdiareward"` on the Hub) are not affected.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

# Not a public interface; a version without it raises here.
from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

from . import sdiareward as builder_module


_SOURCE = Path(builder_module.__file__).read_bytes()
_PACKAGED_DATASETS_MODULES["sdiareward"] = (builder_module.__name__, hashlib.sha256(_SOURCE).hexdigest())
