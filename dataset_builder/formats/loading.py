"""Make `load_dataset("sdiareward", "modality", data_dir=...)` work: importing this module registers the builder.

In this process, the bare name `"sdiareward"` then means the builder. Without `data_dir` it reads the folder
`sdiareward` in the working directory, like the bare name before: the same rows, with encoded audio. Other forms
(`"./sdiareward"`, an absolute path, `"owner/sdiareward"` on the Hub) are not affected.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

# Not a public interface; this raises if a version lacks it.
from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

from . import sdiareward as builder_module


_SOURCE = Path(builder_module.__file__).read_bytes()
_PACKAGED_DATASETS_MODULES["sdiareward"] = (builder_module.__name__, hashlib.sha256(_SOURCE).hexdigest())
