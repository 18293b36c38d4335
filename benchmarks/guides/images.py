"""Draw pictures as SVG: badges of facts, the accuracy on held-out synthesizers and by family, the time on a GPU.

`NAME.svg.jinja` beside this file reads the result files as the templates of the guides do. The text is the same on
every machine, so that a test compares it with the file in `docs/images`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from sdiareward.common.package_files import PACKAGE

from .rendering import make_environment, read_result


IMAGES = PACKAGE / "docs" / "images"


def render_images() -> dict[Path, str]:
    """Return the text of every picture by its file."""
    environment = make_environment()
    badge = environment.get_template("badge.svg.jinja")
    images = {f"badge_{name}": badge.render(label=name, value=value) for name, value in list_badges().items()}
    for name in ("held_out", "families", "gpu_parts"):
        images[name] = environment.get_template(f"{name}.svg.jinja").render(read=read_result)
    return {IMAGES / f"{name}.svg": f"{text}\n" for name, text in images.items()}


def list_badges() -> dict[str, str]:
    """Return what the badges say: the licence of the code and the versions of Python, from `pyproject.toml`."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # The first licence is that of the code, the others are those of recordings and weights.
    code_license = project["license"].split(" AND ")[0]
    return {"license": code_license, "python": project["requires-python"].removeprefix(">=") + "+"}
