"""Render the model card and the README's tables from result files: `python -m sdiareward.cards.render`.

No number of theirs is typed by hand: those in the README stand between markers and are replaced whole.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from string import Template
from typing import Any

from sdiareward.records import write_file
from sdiareward.reporting import ALL_LEFT_OUT, ALL_SEEN


_TEMPLATES = Path(__file__).resolve().parent
_ROOT = _TEMPLATES.parent
EXAMPLES = ("examples/human.json", "examples/synthetic.json")


def tables(results_md: str) -> str:
    """Return a report without its title, its headings one level lower."""
    return re.sub(r"^## ", "### ", results_md.split("\n", 1)[1], flags=re.MULTILINE).strip()


def render_model_card(checkpoint: Path) -> str:
    """Fill the model card's template from the files of a checkpoint that was trained and evaluated here."""
    from safetensors import safe_open

    config, results = (json.loads((checkpoint / name).read_text()) for name in ("config.json", "results.json"))
    with safe_open(checkpoint / "model.safetensors", "pt") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118 (not a mapping)
    of_modality = {row["synthesizer"] for row in results["by_synthesizer"] if row["criterion"] == "modality"}
    seen = of_modality - {ALL_SEEN, ALL_LEFT_OUT, *results["left_out_synthesizers"]}
    return Template((_TEMPLATES / "model_card.md").read_text(encoding="utf-8")).substitute(
        num_parameters=f"{sum(_product(shape) for shape in shapes):,}",
        size_mb=f"{(checkpoint / 'model.safetensors').stat().st_size / 1e6:.1f}",
        num_train=sum(results["baselines"]["acoustic"]["num_train"].values()),
        num_synthesizers=len(seen),
        max_turn_s=f"{config['max_turn_s']:g}",
        results=tables((checkpoint / "results.md").read_text(encoding="utf-8")),
    )


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
    from sdiareward.dialogue_files import read_dialogue
    from sdiareward.scoring import Scorer

    dialogues = [read_dialogue(_ROOT / name) for name in EXAMPLES]
    return format_rewards(Scorer.from_pretrained(checkpoint).score(dialogues, criterion="modality"))


def format_rewards(rewards: list[float]) -> str:
    """Write rewards as the README shows them."""
    return ", ".join(f"{reward:+.2f}" for reward in rewards)


def _product(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


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
