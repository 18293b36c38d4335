"""Make HTML from templates: data are escaped, and an undefined name is an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import jinja2


def make_html_environment(*folders: Path) -> jinja2.Environment:
    """Return an environment of templates; of two with one name the earlier folder's is taken."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
