"""Check the packages of the stages' components, and the error for a component that cannot be loaded."""

from __future__ import annotations

from importlib.util import find_spec

from sdiareward.common.user_errors import UserError

from .settings import COMPONENTS, PipelineSettings


class ComponentError(UserError):
    """Raised when a component cannot be loaded: no recording can be processed, and the run ends."""


def require_packages(settings: PipelineSettings) -> None:
    """Check that the packages of all chosen components are installed, without importing them.

    Raises:
        ComponentError: Some are not; names all of them and what to install.
    """
    missing = []
    for stage in COMPONENTS:
        chosen = settings.stage(stage)
        if chosen.package and not _is_installed(chosen.package[0]):
            others = [component.name for component in COMPONENTS[stage] if component.name != chosen.name]
            choice = f" or choose {' or '.join(map(repr, others))}" if others else ""
            missing.append(f"{stage} {chosen.name!r} needs `pip install {chosen.package[1]}`{choice}")
    if missing:
        raise ComponentError(f"not installed: {'; '.join(missing)}.")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # A parent package is missing.
        return False
