"""HTML from templates: whatever comes from data is escaped, and what a template lacks is an error.

Marks that turn the direction of text (`U+202E` and its like) are removed: the text after them would be read backwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .escaping import remove_overrides


if TYPE_CHECKING:
    import jinja2


def make_html_environment(*folders: Path) -> jinja2.Environment:
    """Return an environment that reads the templates of some folders.

    Args:
        *folders (`Path`): Where they lie; of two templates of one name the earlier folder's is taken.
    """
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: Any) -> Any:
    """Take marks out of words that would have the words after them shown backwards; markup is of our making."""
    return remove_overrides(value) if type(value) is str else value
