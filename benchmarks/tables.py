"""Put the tables of result files between their markers in the README, and render the card of `checkpoints/nano`.

python -m benchmarks.tables
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.validity import RESULTS, format_share
from sdiareward.auditing.verdicts import NOT_MEASURED, PASS
from sdiareward.cards.model_card import ModelRelease, render_model_card
from sdiareward.common.files import write_file
from sdiareward.common.package import NANO, PACKAGE
from sdiareward.common.tables import render_markdown_table
from sdiareward.evaluation.summary import ALL_LEFT_OUT, ALL_SEEN


_CAPTION = (
    "Pairwise accuracy in percent with 95% intervals; a tie is wrong. These intervals are percentiles of a bootstrap, "
    "which from few recordings cover less ([table](docs/evaluate.md))."
)
_SHOWN = {
    "`modality`, hibari against a game that training never heard": ("unseen", "modality", "drascula", "hibari"),
    "`joint`, last answer from another conversation, the same game": (
        *("unseen", "joint", "context: last_answer", "recorded"),
    ),
    "`modality`, hibari against a game of the training": ("known", "modality", "amazon_queen", "hibari"),
    "`joint`, last answer from another conversation": ("known", "joint", "context: last_answer", "recorded"),
    "`joint`, transcript of another dialogue": ("known", "joint", "context: transcript", "recorded"),
    "`colloquialness`, scripts that counting does not solve": ("known", "colloquialness", "balanced", "all"),
}


def read_result(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def render_nano(results: Mapping[str, Any], validity: Mapping[str, Any]) -> str:
    kinds = {
        ("modality", ALL_LEFT_OUT): f"`modality`, held out of training: {', '.join(results['left_out_synthesizers'])}",
        ("modality", ALL_SEEN): "`modality`, synthesizers seen in training",
        ("colloquialness", ALL_LEFT_OUT): "`colloquialness`, held out of training",
        ("colloquialness", ALL_SEEN): "`colloquialness`, seen in training",
    }
    rows = {(row["criterion"], row["synthesizer"]): row for row in results["by_synthesizer"]}
    return _render_table(
        ["model", "acoustic", "text"], "nano", [(title, rows[key]) for key, title in kinds.items()]
    ) + (f"\n\n{_CAPTION} {_describe_audit('nano', validity)}")


def render_small(validity: Mapping[str, Any]) -> str:
    shown = []
    for title, (part, *key) in _SHOWN.items():
        rows = {(row["criterion"], row["kind"], row["voices"]): row for row in validity[part]}
        shown.append((title, rows[tuple(key)]))
    table = _render_table(["small", "nano", "acoustic", "text"], "small", shown)
    return f"{table}\n\n{_CAPTION} {_describe_audit('small', validity)}"


def _render_table(scorers: list[str], model: str, rows: list[tuple[str, Mapping[str, Any]]]) -> str:
    lines = [
        [
            title,
            row["num_pairs"],
            row[scorers[0]]["num_groups"],
            *(
                f"**{format_share(row[name])}**" if not place else format_share(row[name])
                for place, name in enumerate(scorers)
            ),
        ]
        for title, row in rows
    ]
    titles = [
        {"model": model, "acoustic": "acoustic baseline", "text": "text baseline"}.get(name, name) for name in scorers
    ]
    return "\n".join(render_markdown_table(["pairs", "number", "recordings", *titles], lines))


def _describe_audit(model: str, validity: Mapping[str, Any]) -> str:
    statuses = [verdict["status"] for verdict in validity["audits"][model]["verdicts"]]
    measured = len(statuses) - statuses.count(NOT_MEASURED)
    return f"{model} passes {statuses.count(PASS)} of {measured} checks of the audit."


def render_readme(text: str) -> str:
    validity = read_result(RESULTS / "validity.json")
    tables = {"nano": render_nano(read_result(NANO / "results.json"), validity), "small": render_small(validity)}
    for name, table in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}{begin}{table}\n{end}{after}"
    return text


def render_nano_card() -> str:
    results, run = (read_result(NANO / name) for name in ("results.json", "run.json"))
    return render_model_card(ModelRelease(NANO, results=results, run=run))


def main() -> None:
    readme = PACKAGE / "README.md"
    write_file(readme, render_readme(readme.read_text(encoding="utf-8")))
    write_file(NANO / "README.md", render_nano_card())


if __name__ == "__main__":
    main()
