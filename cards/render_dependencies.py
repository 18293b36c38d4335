"""Render the list of the pinned set: `python -m sdiareward.cards.render_dependencies`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table
from sdiareward.common.yaml_files import parse_yaml

from .dependencies import POLICY, RESULT
from .render import render_readme


GUIDE = Path(__file__).resolve().parent.parent / "docs" / "dependencies.md"


def render_guide(text: str) -> str:
    """Return the guide with its tables made of the list and of the policy."""
    packages = json.loads(RESULT.read_text(encoding="utf-8"))["packages"]
    policy = parse_yaml(POLICY.read_text(encoding="utf-8"), POLICY.name)
    rows = [[row["name"], row["version"], row["licence"], ", ".join(row["asked_for_by"])] for row in packages]
    exceptions = [[name, known["licence"], known["reason"]] for name, known in policy["exceptions"].items()]
    blocks = {
        "packages": render_table(["package", "version", "licence", "asked for by"], rows, num_left=4),
        "exceptions": render_table(["package", "licence", "why it is used"], exceptions, num_left=3),
    }
    return render_readme(text, {name: "\n".join(lines) for name, lines in blocks.items()})


def main() -> None:
    """Render the guide in its place."""
    argparse.ArgumentParser(prog="python -m sdiareward.cards.render_dependencies", description=__doc__).parse_args()
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
