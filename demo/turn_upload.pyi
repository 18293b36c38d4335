"""An upload button that leaves nothing on disk beside the files that it gives."""

from __future__ import annotations

from typing import Any

import gradio

from gradio.events import Dependency

class TurnUpload(gradio.UploadButton):
    """Give the paths of what was uploaded, of whatever type it is.

    Gradio's own (6.31) also writes an empty file for each upload, which nobody deletes, and refuses a wrong suffix in a
    message that passes; a line beside the turns says it better.
    """

    # What the browser runs is the parent's.
    is_template = True

    def preprocess(self, payload: Any) -> list[str]:
        """Return the paths; Gradio has made sure that they are of uploads."""
        return [file.path for file in payload or ()]
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block
    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component