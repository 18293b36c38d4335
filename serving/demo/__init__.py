"""The page on which anyone can try a reward model: `sdiareward demo` on this machine, `space_app.py` as a Space.

- `turns` takes what is uploaded or recorded and makes dialogues of it, every limit checked.
- `judging` scores dialogues, their beginnings and the shortcut checks (`shortcut_checks`) in one batch.
- `rendering` writes the results as HTML in which everything that came from outside is escaped; `growth_plot` draws.
- `app` is the page itself, with Gradio; the only module that imports it.
"""

from typing import Any


try:
    # Before torch, whose devices it stands in for on a ZeroGPU Space; so it comes before any module of the page.
    import spaces as _spaces
except ModuleNotFoundError:
    _spaces = None


def on_gpu(function: Any) -> Any:
    """Have a ZeroGPU Space give a device to each call of a function; elsewhere, return the function as it is."""
    return function if _spaces is None else _spaces.GPU(function)
