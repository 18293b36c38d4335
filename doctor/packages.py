"""Versions of what the package needs, compared with what it asks for and with what it was tested with; and imports.

What it asks for stands in the metadata of the installation. What it was tested with is `constraints.txt`, which
travels in the package.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from sdiareward.common.optional_dependencies import EXTRAS
from sdiareward.common.package_files import CONSTRAINTS
from sdiareward.common.version import __version__

from .findings import FAILED, PASSED, SKIPPED, WARNING, Check, Outcome, Settings, reason_of


if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version

_DISTRIBUTION = "sdiareward"
# What the core requires, and the module of each that is imported; as in pyproject.toml, which a test compares.
CORE: dict[str, str] = {
    "torch": "torch",
    "transformers": "transformers",
    "datasets": "datasets",
    "huggingface_hub": "huggingface_hub",
    "numpy": "numpy",
    "safetensors": "safetensors.torch",
    "soundfile": "soundfile",
    "soxr": "soxr",
    "pyyaml": "yaml",
    "tqdm": "tqdm",
    "filelock": "filelock",
}
# What was used to run the tests.
_TESTED_PYTHON = (3, 11)
_MIN_PYTHON = (3, 11)
_MAX_LISTED = 8
_REINSTALL = {
    "torch": "install the build of torch for this machine, see https://pytorch.org/get-started/locally/",
    "soundfile": "the wheels of soundfile bring libsndfile: pip install --force-reinstall soundfile; where there is "
    "none for this machine, install libsndfile with the system's package manager",
}


def version_checks() -> list[Check]:
    """Return the checks of versions: Python, this package, its core, its extras."""
    checks = [Check("versions", "python", _python), Check("versions", _DISTRIBUTION, _own)]
    checks += [Check("versions", name, partial(_distribution, name)) for name in CORE]
    return checks + [Check("versions", f"extra {name}", partial(_extra, name)) for name in EXTRAS]


def import_checks() -> list[Check]:
    """Return the checks that import the core, each named `import MODULE`."""
    return [Check("imports", import_of(name), partial(_import, name)) for name in CORE]


def import_of(distribution: str) -> str:
    """Return the name of the check that imports a distribution of the core."""
    return f"import {CORE[distribution]}"


def _python(_: Settings) -> Outcome:
    found = ".".join(map(str, sys.version_info[:3]))
    details = {"implementation": sys.implementation.name, "bits": 64 if sys.maxsize > 2**32 else 32}
    least, tested = (".".join(map(str, version)) for version in (_MIN_PYTHON, _TESTED_PYTHON))
    if sys.version_info < _MIN_PYTHON:
        return Outcome(FAILED, found, f"use Python {least} or later", details=details)
    same = sys.version_info[:2] == _TESTED_PYTHON
    return Outcome(PASSED, found if same else f"{found}; tested with {tested}", details=details)


def _own(_: Settings) -> Outcome:
    from sdiareward.common.provenance import describe_run

    revision = describe_run()["git_revision"]
    found = __version__ if revision is None else f"{__version__}, revision {revision[:12]}"
    details = {"revision": revision}
    installed = _installed(_DISTRIBUTION)
    if installed == __version__:
        return Outcome(PASSED, found, details=details)
    if installed is None:
        found += "; runs without being installed, so what it requires is not known"
        return Outcome(WARNING, found, "pip install it", details=details)
    return Outcome(WARNING, f"{found}, but {installed} is what was installed", "install it again", details=details)


def _distribution(name: str, _: Settings) -> Outcome:
    from packaging.version import Version

    installed = _installed(name)
    required = {req.name.lower(): req for req in _requirements()}.get(name.lower())
    tested = tested_versions().get(_normal(name))
    details = {"version": installed, "tested": tested, "required": str(required.specifier) if required else None}
    if installed is None:
        return Outcome(FAILED, "not installed", f"pip install {name}", details=details)
    if required is not None and not required.specifier.contains(installed, prereleases=True):
        remedy = f'pip install "{required.name}{required.specifier}"'
        return Outcome(FAILED, f"{installed}; needed is {required.specifier}", remedy, details=details)
    if tested is None or Version(installed).public == tested:
        return Outcome(PASSED, installed, details=details)
    found = f"{installed}; tested with {tested}"
    if _series(Version(installed)) > _series(Version(tested)):
        return Outcome(WARNING, found, f"if something fails, try pip install {name}=={tested}", details=details)
    return Outcome(PASSED, found, details=details)


def _series(version: Version) -> tuple[int, ...]:
    """Return the part of a version within which nothing should break: the first number, for 0.x the first two."""
    return version.release[:1] if version.major else version.release[:2]


def _extra(name: str, _: Settings) -> Outcome:
    required = _requirements(name)
    if not required:
        return Outcome(SKIPPED, "what is installed does not know it", f"install {_DISTRIBUTION} again")
    found: dict[str, str | None] = {req.name: _installed(req.name) for req in required}
    missing = [each for each, version in found.items() if version is None]
    low = [
        f"{req.name} {version}, needed is {req.specifier}"
        for req in required
        if (version := found[req.name]) is not None and not req.specifier.contains(version, prereleases=True)
    ]
    install = f'pip install "{_DISTRIBUTION}[{name}]"'
    if missing:
        return Outcome(SKIPPED, f"not installed: {', '.join(missing)}", f"if wanted, {install}", details=found)
    if low:
        return Outcome(WARNING, "; ".join(low), install, details=found)
    if len(found) > _MAX_LISTED:
        return Outcome(PASSED, f"all {len(found)} packages are installed", details=found)
    return Outcome(PASSED, ", ".join(f"{each} {version}" for each, version in found.items()), details=found)


def _import(name: str, _: Settings) -> Outcome:
    try:
        module: Any = import_module(CORE[name])
    # Libraries that cannot be loaded raise what they like.
    except (Exception, SystemExit) as error:
        remedy = _REINSTALL.get(name, f"pip install --force-reinstall {name}")
        return Outcome(FAILED, reason_of(error), remedy)
    return Outcome(PASSED, "works", details={"module": module.__name__})


def tested_versions() -> dict[str, str]:
    """Return the versions that the tests ran with, by the normal form of a distribution's name."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_normal(name): version.strip() for name, version in pairs}


def _normal(name: str) -> str:
    """Return the form of a name in which two are compared, as packaging does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements(extra: str = "") -> list[Requirement]:
    """Return what the installation of this package asks for: in its core, or in an extra beyond the core."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    return [req for req in map(Requirement, lines) if _is_of(req, extra)]


def _is_of(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    if not extra:
        return marker is None or marker.evaluate({"extra": ""})
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
