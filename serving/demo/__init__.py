"""A page to try a reward model: `sdiareward demo` on this machine, `space_app.py` as a Space."""

from typing import Any


try:
    # On a ZeroGPU Space it must be imported before torch, and so before any module of the page.
    import spaces as _spaces
except ModuleNotFoundError:
    _spaces = None


def on_gpu(function: Any) -> Any:
    """Request a device for each call of a function on a ZeroGPU Space; elsewhere, return it unchanged."""
    return function if _spaces is None else _spaces.GPU(function)
