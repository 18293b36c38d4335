"""Fail on a card or guide that does not say what the result files say: `python -m sdiareward.cards.check`.

Everything that a renderer of this package wrote is rendered again and compared: the README's blocks, the card of the
committed checkpoint, and the blocks of every guide. A block that nobody renders is an error too: its numbers would be
typed by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .render import render_model_card, render_readme, score_examples, tables


_ROOT = Path(__file__).resolve().parent.parent
_DOCS = _ROOT / "docs"
_NANO = _ROOT / "checkpoints" / "nano"
_BLOCK = re.compile(r"^<!-- (\w+) -->\n(.*?)^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+\.\d+")
_EMPTY = "NOBODY RENDERS THIS"
# Commands that a test runs, not numbers.
_NOT_RENDERED = {"data.md": {"walkthrough"}}
# Rewards computed on the spot: from one processor to another they may differ by this much.
_SCORED = {"README.md": {"example"}, "quickstart.md": {"score"}}
_SCORE_TOLERANCE = 0.02
Render = Callable[[str], str]


@dataclass(frozen=True)
class Rendered:
    """A committed file and what renders it.

    Args:
        path (`Path`): The file.
        renders (`tuple[Callable, ...]`): Each makes, of the file's text, the text with its own part rendered again.
        is_whole (`bool`): Whether they render all of it, or its blocks.
    """

    path: Path
    renders: tuple[Render, ...]
    is_whole: bool = False


def list_rendered() -> list[Rendered]:
    """Return every file of this repository that has rendered parts.

    A module `cards/render_*.py` renders the guide that its `GUIDE` names, by its `render_guide(text) -> text`, or
    several by what its `GUIDES` says of each; one without either renders `docs/NAME.md` by each
    `render_NAME(text) -> text`.
    """
    by_guide: dict[Path, list[Render]] = {}
    for module_path in sorted(Path(__file__).resolve().parent.glob("render_*.py")):
        for guide, render in _guides_of(import_module(f"sdiareward.cards.{module_path.stem}")):
            by_guide.setdefault(guide, []).append(render)
    guides = [Rendered(path, tuple(renders)) for path, renders in by_guide.items()]
    card = Rendered(_NANO / "README.md", (lambda text: render_model_card(_NANO),), is_whole=True)
    return [Rendered(_ROOT / "README.md", (_render_readme,)), card, *guides]


def _guides_of(module: Any) -> list[tuple[Path, Render]]:
    if hasattr(module, "GUIDES"):
        return list(module.GUIDES.items())
    if hasattr(module, "GUIDE"):
        return [(module.GUIDE, module.render_guide)]
    renders = ((path, getattr(module, f"render_{path.stem}", None)) for path in sorted(_DOCS.glob("*.md")))
    return [(path, render) for path, render in renders if render is not None]


def _render_readme(text: str) -> str:
    results = tables((_NANO / "results.md").read_text(encoding="utf-8"))
    return render_readme(text, {"results": results, "example": f"```text\n{score_examples(_NANO)}\n```"})


def find_problems(rendered: Rendered) -> Iterator[str]:
    """Yield what is wrong with a file, one line each.

    Args:
        rendered (`Rendered`): The file and its renderers.
    """
    text = rendered.path.read_text(encoding="utf-8")
    name, shown = rendered.path.name, {} if rendered.is_whole else _blocks(text)
    # Emptied first: what a renderer fills again is what it renders.
    again = render_readme(text, dict.fromkeys(shown, _EMPTY))
    for render in rendered.renders:
        again = render(again)
    for block, content in _blocks(again).items() if shown else ():
        is_empty = content.strip() == _EMPTY
        if is_empty and block not in _NOT_RENDERED.get(name, ()):
            yield f"block {block!r} is rendered by nothing"
        if is_empty or (block in _SCORED.get(name, ()) and _agree(shown[block], content)):
            again = render_readme(again, {block: shown[block].removesuffix("\n")})
    yield from _difference(text, again)


def _blocks(text: str) -> dict[str, str]:
    return dict(_BLOCK.findall(text))


def _agree(shown: str, computed: str) -> bool:
    """Tell whether two texts differ in nothing but the last digits of their numbers."""
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(computed), strict=False)
    is_same_text = _NUMBER.sub("#", shown) == _NUMBER.sub("#", computed)
    return is_same_text and all(abs(float(a) - float(b)) <= _SCORE_TOLERANCE for a, b in pairs)


def _difference(text: str, again: str) -> Iterator[str]:
    """Yield the first line that differs."""
    for number, (old, new) in enumerate(zip_longest(text.splitlines(), again.splitlines(), fillvalue=""), start=1):
        if old != new:
            yield f"line {number} reads {_short(old)}; the result files say {_short(new)}"
            return


def _short(line: str) -> str:
    return repr(line if len(line) <= 100 else f"{line[:97]}...")


def find_unknown_guides() -> Iterator[Path]:
    """Yield guides that have blocks and no renderer."""
    known = {rendered.path for rendered in list_rendered()}
    for path in sorted(_DOCS.glob("*.md")):
        blocks = set(_blocks(path.read_text(encoding="utf-8")))
        if blocks - _NOT_RENDERED.get(path.name, set()) and path not in known:
            yield path


def main() -> int:
    """Check all files and return the exit status: 1 if any says something else than the result files."""
    problems = [
        f"{rendered.path.relative_to(_ROOT)}: {problem}"
        for rendered in list_rendered()
        for problem in find_problems(rendered)
    ]
    problems += [f"{path.relative_to(_ROOT)}: has blocks, but no cards/render_*.py" for path in find_unknown_guides()]
    for problem in problems:
        sys.stderr.write(f"{problem}. Render it again; numbers are never typed.\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
