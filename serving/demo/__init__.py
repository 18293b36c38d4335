"""A page to try a reward model: `sdiareward demo` on this machine, `space_app.py` as a Space.

- `turns` checks uploads and recordings and builds dialogues from them.
- `results` scores dialogues, their beginnings and the shortcut checks (`shortcut_checks`) in one batch.
- `rendering` renders the results as HTML, with the figure.
- `app` is the page, with Gradio; the only module that imports it.
"""

from typing import Any


try:
    # On a ZeroGPU Space it must be imported before torch, and so before any module of the page.
    import spaces as _spaces
except ModuleNotFoundError:
    _spaces = None


def on_gpu(function: Any) -> Any:
    """Request a device for each call of a function on a ZeroGPU Space; elsewhere, return the function unchanged."""
    return function if _spaces is None else _spaces.GPU(function)
