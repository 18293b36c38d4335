"""The tests that `transformers` runs on its models, from its source distribution, because the wheel lacks them.

`make` unpacks it into `build/transformers-tests`; `SDIAREWARD_TRANSFORMERS_TESTS` names another folder. Three modules
that it lacks too are replaced: the mixins of exporting and generation are empty, and our recordings serve as files.
"""

import importlib
import os
import sys
import types
from pathlib import Path

import pytest
import transformers
from support.paths import FIXTURES, ROOT


SOURCE = Path(os.environ.get("SDIAREWARD_TRANSFORMERS_TESTS") or ROOT / "build" / "transformers-tests")
TRANSFORMERS_MARKS = (
    *("accelerate_tests", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "torch_compile_test"),
)
RECORDINGS = sorted(str(path) for path in (FIXTURES / "audio").glob("*.wav"))[:2]
_PACKAGE = "transformers_tests"


def load_common_tests(name):
    """Return the module of common tests `name`, such as `"test_modeling_common"`; skip where it is not unpacked."""
    folder = SOURCE / "tests"
    if not (folder / f"{name}.py").is_file():
        reason = f"{folder} is not there; unpack it with: make build/transformers-tests/.unpacked"
        pytest.skip(reason, allow_module_level=True)
    assert f"\nVersion: {transformers.__version__}\n" in (SOURCE / "PKG-INFO").read_text(encoding="utf-8")
    _add(_PACKAGE, __path__=[str(folder)])
    for module, mixin in (
        ("exporters.test_export", "ExportTesterMixin"),
        ("generation.test_utils", "GenerationTesterMixin"),
    ):
        _add(f"{_PACKAGE}.{module.partition('.')[0]}", __path__=[])
        _add(f"{_PACKAGE}.{module}", **{mixin: type(mixin, (), {})})
    _add("fetch_hub_objects_for_ci", url_to_local_path=lambda url: url)
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _add(name, **attributes):
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(attributes)
