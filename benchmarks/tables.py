"""Put the table of results between its markers in the README, and render the card of `checkpoints/nano`.

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


_CAPTION = (
    "Pairwise accuracy in percent (95% interval; too narrow for few recordings). 50% is chance, a tie is wrong. The "
    "baselines use the spectrum or the words only."
)
# Row of the README -> part, criterion, kind and voices in the result. What training did not hear comes first.
_SHOWN = {
    "person or hibari, in an unheard game": ("unseen", "modality", "drascula", "hibari"),
    "right or wrong last answer, in an unheard game": ("unseen", "joint", "context: last_answer", "recorded"),
    "person or hibari, in a training game": ("known", "modality", "amazon_queen", "hibari"),
    "right or wrong transcript": ("known", "joint", "context: transcript", "recorded"),
    "spoken or written style": ("known", "colloquialness", "balanced", "all"),
}
_SCORERS = {"small": "small", "nano": "nano", "acoustic": "acoustic baseline", "text": "text baseline"}


def read_result(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def render_results(validity: Mapping[str, Any]) -> str:
    lines = []
    for title, (part, *key) in _SHOWN.items():
        rows = {(row["criterion"], row["kind"], row["voices"]): row for row in validity[part]}
        row = rows[tuple(key)]
        shares = [format_share(row[name]) for name in _SCORERS]
        lines.append([title, row["num_pairs"], row["small"]["num_groups"], f"**{shares[0]}**", *shares[1:]])
    table = "\n".join(render_markdown_table(["pair", "number", "recordings", *_SCORERS.values()], lines))
    audits = " and ".join(f"{name} {_count_passed(validity['audits'][name])}" for name in ("small", "nano"))
    return f"{table}\n\n{_CAPTION} No training used the synthesizer hibari. Checks of the audit passed: {audits}."


def _count_passed(audit: Mapping[str, Any]) -> str:
    statuses = [verdict["status"] for verdict in audit["verdicts"]]
    return f"{statuses.count(PASS)} of {len(statuses) - statuses.count(NOT_MEASURED)}"


def render_readme(text: str) -> str:
    before, begin, rest = text.partition("<!-- results -->\n")
    _, end, after = rest.partition("<!-- /results -->")
    return f"{before}{begin}{render_results(read_result(RESULTS / 'validity.json'))}\n{end}{after}"


def render_nano_card() -> str:
    results, run = (read_result(NANO / name) for name in ("results.json", "run.json"))
    return render_model_card(ModelRelease(NANO, results=results, run=run))


def main() -> None:
    readme = PACKAGE / "README.md"
    write_file(readme, render_readme(readme.read_text(encoding="utf-8")))
    write_file(NANO / "README.md", render_nano_card())


if __name__ == "__main__":
    main()
