"""Render README, guides, pictures and the card of `checkpoints/nano` from result files: `python -m benchmarks.guides`.

`--check` writes nothing and fails if a number differs from its result file, or if a block has no template, because
then its numbers were typed by hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from sdiareward.cards.model_card import ModelRelease, render_model_repository_card
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import write_file
from sdiareward.common.package_files import NANO, PACKAGE

from .images import render_images
from .rendering import find_blocks, list_guides, render_blocks, replace_blocks


EXAMPLES = ("examples/human.json", "examples/synthetic.json")
# Blocks without a template: tests/package runs their code and compares its output.
_RUN_BY_TESTS = {"data": {"walkthrough"}, "README": {"example"}, "quickstart": {"score"}}


def score_examples() -> str:
    """Return the output of the README's example."""
    from sdiareward.pairs.messages import read_dialogue
    from sdiareward.scoring.scorer import Scorer

    dialogues = [read_dialogue(PACKAGE / name) for name in EXAMPLES]
    rewards = Scorer.from_pretrained(NANO).score(dialogues, criterion="modality")
    return f"```text\n{', '.join(f'{reward:+.2f}' for reward in rewards)}\n```"


def run_quickstart() -> str:
    """Return the command of the quick start with its output."""
    from sdiareward.cli import main as run

    command = ["score", *EXAMPLES, "--criterion", "modality"]
    printed = io.StringIO()
    with contextlib.chdir(PACKAGE), contextlib.redirect_stdout(printed):
        run(command)
    return f"```console\n$ sdiareward {' '.join(command)}\n{printed.getvalue()}```"


def render_nano_card() -> str:
    """Render the card of `checkpoints/nano` from the results and the record of its run beside it."""
    results, run = (json.loads((NANO / name).read_text(encoding="utf-8")) for name in ("results.json", "run.json"))
    return render_model_repository_card(ModelRelease(NANO, results=results, run=run))


def write_guides() -> None:
    """Render every file in place."""
    write_file(NANO / "README.md", render_nano_card())
    blocks = {name: render_blocks(name) for name in list_guides()}
    blocks["README"]["example"] = score_examples()
    blocks["quickstart"] = {"score": run_quickstart()}
    paths = {**list_guides(), "quickstart": PACKAGE / "docs" / "quickstart.md"}
    for name, path in paths.items():
        write_file(path, replace_blocks(path.read_text(encoding="utf-8"), blocks[name]))
    for path, text in render_images().items():
        write_file(path, text)


def find_problems() -> Iterator[str]:
    """Yield one line for each file that differs from its result files."""
    templates = list_guides()
    for path in (PACKAGE / "README.md", *sorted((PACKAGE / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        blocks = render_blocks(path.stem) if path.stem in templates else {}
        for name in sorted(set(find_blocks(text)) - set(blocks) - _RUN_BY_TESTS.get(path.stem, set())):
            yield f"{path.relative_to(PACKAGE)}: block {name!r} has no template in benchmarks/guides"
        yield from find_difference(path, text, replace_blocks(text, blocks))
    card = NANO / "README.md"
    yield from find_difference(card, card.read_text(encoding="utf-8"), render_nano_card())
    for path, text in render_images().items():
        yield from find_difference(path, path.read_text(encoding="utf-8"), text)


def find_difference(path: Path, text: str, rendered: str) -> Iterator[str]:
    """Yield the first line that differs."""
    for number, (old, new) in enumerate(zip_longest(text.splitlines(), rendered.splitlines(), fillvalue=""), start=1):
        if old != new:
            name = path.relative_to(PACKAGE)
            yield f"{name}: line {number} reads {old[:100]!r}; the result files give {new[:100]!r}"
            return


@dataclass
class Arguments:
    """The arguments of the command line."""

    check: bool = field(default=False, metadata={"help": "write nothing; fail if a file would change"})


def main(argv: Sequence[str] | None = None) -> int:
    """Render or check the files and return the exit status: 1 if a check fails."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.guides", description=__doc__)
    if not args.check:
        write_guides()
        return 0
    problems = list(find_problems())
    for problem in problems:
        print(f"{problem}. Run `python -m benchmarks.guides`.", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
