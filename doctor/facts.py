"""One page of facts: versions, extras, device, memory, ways to compute attention, audio formats."""

from __future__ import annotations

import os
import platform
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.common.optional_dependencies import EXTRAS
from sdiareward.common.package_files import CONSTRAINTS
from sdiareward.common.provenance import describe_run
from sdiareward.common.version import __version__

from .findings import FAILED, PASSED, SKIPPED, WARNING, Check, Outcome, Settings


if TYPE_CHECKING:
    import torch
    from packaging.requirements import Requirement

GIB = 2**30
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
_FORMATS = ("WAV", "FLAC", "OGG", "MP3")
# Packages whose module has another name.
_MODULES = {"pyyaml": "yaml"}


def list_fact_checks() -> list[Check]:
    """Return the checks that look at the installation and at the machine."""
    packages = [Check("packages", each.name, partial(_look_at_package, each)) for each in read_requirements()]
    extras = [Check("extras", f"extra {name}", partial(_look_at_extra, name)) for name in EXTRAS]
    return [
        Check("packages", "python", _look_at_python),
        Check("packages", "sdiareward", _look_at_sdiareward),
        *packages,
        *extras,
        Check("machine", "device", _look_at_device),
        Check("machine", "memory", _look_at_memory),
        Check("machine", "attention", _look_at_attention),
        Check("machine", "libsndfile", _look_at_libsndfile),
    ]


def read_requirements(extra: str = "") -> list[Requirement]:
    """Return what the installed package requires: its core, or what an extra adds to it."""
    from packaging.requirements import Requirement

    try:
        requirements = map(Requirement, metadata.requires("sdiareward") or [])
    except metadata.PackageNotFoundError:
        return []
    if not extra:
        return [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    marked = [each for each in requirements if each.marker is not None and "extra" in str(each.marker)]
    return [each for each in marked if each.marker is not None and each.marker.evaluate({"extra": extra})]


def read_tested_versions() -> dict[str, str]:
    """Return the versions that the tests ran with, by the canonical name of the package."""
    from packaging.utils import canonicalize_name

    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version.strip() for name, version in pairs}


def _look_at_python(_: Settings) -> Outcome:
    return Outcome(PASSED, f"{platform.python_version()}, {platform.platform()}")


def _look_at_sdiareward(_: Settings) -> Outcome:
    revision = describe_run()["git_revision"]
    found = __version__ if revision is None else f"{__version__}, revision {revision[:12]}"
    if (installed := _read_version("sdiareward")) != __version__:
        return Outcome(WARNING, f"{found}; installed is {installed or 'nothing'}", "install the package again")
    return Outcome(PASSED, found)


def _look_at_package(requirement: Requirement, _: Settings) -> Outcome:
    """Compare a package's version with the required and the tested one, and import it."""
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    name, installed = requirement.name, _read_version(requirement.name)
    tested = read_tested_versions().get(canonicalize_name(name))
    details = {"version": installed, "tested": tested, "required": str(requirement.specifier)}
    if not _is_met(requirement):
        found = f"{installed or 'not installed'}; {requirement.specifier} is required"
        return Outcome(FAILED, found, f'pip install "{name}{requirement.specifier}"', details=details)
    import_module(_MODULES.get(name, name.replace("-", "_")))
    is_tested = tested is None or Version(str(installed)).public == tested
    return Outcome(PASSED, str(installed) if is_tested else f"{installed}; tested with {tested}", details=details)


def _look_at_extra(name: str, _: Settings) -> Outcome:
    missing = [each.name for each in read_requirements(name) if not _is_met(each)]
    if missing:
        return Outcome(SKIPPED, f"lacks {', '.join(missing)}", f'if wanted, pip install "sdiareward[{name}]"')
    return Outcome(PASSED, "installed")


def _is_met(requirement: Requirement) -> bool:
    installed = _read_version(requirement.name)
    return installed is not None and requirement.specifier.contains(installed, prereleases=True)


def _read_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def select_device(settings: Settings) -> torch.device:
    """Return the `torch.device` that the model computes on."""
    import torch

    if settings.device is not None:
        return torch.device(settings.device)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _look_at_device(settings: Settings) -> Outcome:
    import torch

    device = select_device(settings)
    build = f"torch built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch built without CUDA"
    if device.type != "cuda":
        return Outcome(PASSED, f"{device}, {torch.get_num_threads()} threads of {os.cpu_count()} cores; {build}")
    found = torch.cuda.get_device_properties(device)
    capability = f"compute capability {found.major}.{found.minor}"
    return Outcome(PASSED, f"{device}: {found.name}, {found.total_memory / GIB:.1f} GiB, {capability}; {build}")


def read_available_memory_bytes() -> int | None:
    """Return the memory that programs can still use, or None where Linux does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _look_at_memory(_: Settings) -> Outcome:
    available = read_available_memory_bytes()
    return Outcome(PASSED, "unknown" if available is None else f"{available / GIB:.1f} GiB available")


def find_attention_problem(name: str, device_type: str) -> str | None:
    """Return why a way to compute attention cannot be used here, or None if it can.

    Args:
        name (`str`): One of `ATTENTIONS`.
        device_type (`str`): Where the model computes, such as `"cuda"`.
    """
    from transformers import utils

    from sdiareward.modeling_sdiareward import SDiaRewardModel

    if name == "flex_attention" and not SDiaRewardModel._supports_flex_attn:
        return "transformers does not offer it for Qwen2.5-Omni"
    if not name.startswith("flash"):
        return None
    is_available = getattr(utils, f"is_flash_attn_{name[-1]}_available")()
    if not is_available or device_type != "cuda":
        return "not installed (flash_attn), or not for this device; optional, for NVIDIA GPUs"
    return None


def _look_at_attention(settings: Settings) -> Outcome:
    import torch

    from sdiareward.scoring.packed_attention import has_varlen

    device = select_device(settings)
    problems = {name: find_attention_problem(name, device.type) for name in ATTENTIONS}
    usable = [name for name, problem in problems.items() if problem is None]
    if has_varlen(device.type, torch.bfloat16):
        usable.append("PyTorch's variable-length kernel")
    return Outcome(PASSED, f"usable: {', '.join(usable)}", details=problems)


def _look_at_libsndfile(_: Settings) -> Outcome:
    import soundfile

    missing = sorted(set(_FORMATS) - set(soundfile.available_formats()))
    version = soundfile.__libsndfile_version__
    if missing:
        return Outcome(WARNING, f"{version}; cannot read {', '.join(missing)}", "pip install --upgrade soundfile")
    return Outcome(PASSED, f"{version}; reads {', '.join(_FORMATS)}")
