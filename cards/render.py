"""Render the model card and the README's tables from result files: `python -m sdiareward.cards.render`.

No number of theirs is typed by hand: those in the README stand between markers and are replaced whole.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sdiareward.common.files import write_file

from .model_card import ModelRelease, render_model_repository_card, tables


_ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("examples/human.json", "examples/synthetic.json")


def render_model_card(checkpoint: Path) -> str:
    """Render the card of a checkpoint of this repository, with the results and the record that lie beside it."""
    files = ("results.json", "run.json")
    results, run = (json.loads((checkpoint / name).read_text(encoding="utf-8")) for name in files)
    return render_model_repository_card(ModelRelease(checkpoint, results=results, run=run))


def not_measured(benchmark: str) -> str:
    """Return what stands in the place of the numbers of a benchmark that was not run."""
    return f"Not measured yet: `python -m benchmarks.{benchmark}` does it."


def render_readme(readme: str, blocks: dict[str, str]) -> str:
    """Replace what stands between `<!-- NAME -->` and `<!-- /NAME -->` by `blocks[NAME]`.

    Raises:
        ValueError: The README has no such block.
    """
    for name, text in blocks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, found, rest = readme.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the README has no block {name!r}; put {begin.strip()} and {end} into it.")
        readme = f"{before}{begin}{text}\n{end}{after}"
    return readme


def score_examples(checkpoint: Path) -> str:
    """Return what the README's example prints with this checkpoint."""
    from sdiareward.pairs.dialogue_files import read_dialogue
    from sdiareward.scoring.scorer import Scorer

    dialogues = [read_dialogue(_ROOT / name) for name in EXAMPLES]
    return format_rewards(Scorer.from_pretrained(checkpoint).score(dialogues, criterion="modality"))


def format_rewards(rewards: list[float]) -> str:
    """Write rewards as the README shows them."""
    return ", ".join(f"{reward:+.2f}" for reward in rewards)


def main() -> None:
    """Render the card of `checkpoints/nano` and the README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=_ROOT / "checkpoints" / "nano")
    checkpoint = parser.parse_args().checkpoint
    write_file(checkpoint / "README.md", render_model_card(checkpoint))
    blocks = {
        "results": tables((checkpoint / "results.md").read_text(encoding="utf-8")),
        "example": f"```text\n{score_examples(checkpoint)}\n```",
    }
    readme = _ROOT / "README.md"
    write_file(readme, render_readme(readme.read_text(encoding="utf-8"), blocks))


if __name__ == "__main__":
    main()
