"""Write the page of a comparison: one HTML file with the verdict first, and its figures beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.common.files import write_file
from sdiareward.common.html import make_html_environment
from sdiareward.common.package_files import COMPARISON_PAGE, EVALUATION_PAGE
from sdiareward.pairs.systems import System

from ..report.examples import Collector, EmbedAudio
from ..report.pieces import FILTERS, hash_content, make_picture
from ..results_files import name_model
from .figures import draw_figures
from .measures import COVARIATES
from .results import ScoredDialogues


NUM_EXAMPLES = 10
SECTIONS = {
    "verdict": "Verdict",
    "pairs": "Wins",
    "ranking": "Ranking",
    "limits": "What limits it",
    "clearest": "Clearest dialogues",
    "closest": "Closest dialogues",
    "skipped": "Skipped",
    "provenance": "How this was made",
}


def write_page(
    folder: Path,
    report: Mapping[str, Any],
    scored: ScoredDialogues,
    systems: Sequence[System],
    embed_audio: EmbedAudio = "all",
) -> Path:
    """Write `index.html` and its figures; the same comparison gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    described = draw_figures(report, scored, folder)
    for stale in {path.stem for path in folder.glob("*.png")} - set(described):
        (folder / f"{stale}.png").unlink()
    figures = {
        name: {**texts, **make_picture((folder / f"{name}.png").read_bytes())} for name, texts in described.items()
    }
    clearest, closest = choose_examples(scored.rewards[report["criteria"][0]])
    collector = Collector(embed_audio)
    examples = {
        name: [_describe(scored, systems, row, report["criteria"][0], collector) for row in rows]
        for name, rows in (("clearest", clearest), ("closest", closest))
    }
    write_file(folder / "index.html", render_page(report, figures, examples, collector.clips))
    return folder / "index.html"


def choose_examples(rewards: NDArray[np.float64], num_examples: int = NUM_EXAMPLES) -> tuple[list[int], list[int]]:
    """Return the dialogues in which systems differ most, and those in which they differ least; none is in both."""
    order = np.argsort(-np.ptp(rewards, axis=1), kind="stable").tolist()
    num_clearest = min(num_examples, (len(order) + 1) // 2)
    num_closest = min(num_examples, len(order) - num_clearest)
    return order[:num_clearest], order[len(order) - num_closest :][::-1]


def _describe(
    scored: ScoredDialogues, systems: Sequence[System], row: int, criterion: str, collector: Collector
) -> dict[str, Any]:
    """Return a dialogue with words and recordings of every system, the best first."""
    name, rewards = scored.names[row], scored.rewards[criterion][row]
    sides = [
        {
            "system": systems[column].name,
            "reward": float(rewards[column]),
            "turns": collector.describe_side(systems[column].read(name), None),
        }
        for column in np.argsort(-rewards, kind="stable")
    ]
    return {"dialogue": name, "margin": float(np.ptp(rewards)), "sides": sides}


def render_page(
    report: Mapping[str, Any],
    figures: Mapping[str, Mapping[str, Any]],
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    clips: Mapping[str, str],
) -> str:
    """Render the page as HTML that requests nothing and escapes all data."""
    from markupsafe import Markup

    environment = make_html_environment(COMPARISON_PAGE, EVALUATION_PAGE)
    environment.filters |= FILTERS
    style = "".join(
        (folder / name).read_text(encoding="utf-8")
        for folder, name in ((EVALUATION_PAGE, "page.css"), (COMPARISON_PAGE, "comparison.css"))
    )
    script = (EVALUATION_PAGE / "page.js").read_text(encoding="utf-8")
    is_shown = {
        "ranking": report["ranking"],
        "closest": examples["closest"],
        "skipped": report["unmatched"] or report["skipped"],
    }
    page = environment.get_template("comparison.html").render(
        report=report,
        model=name_model(report["model"]),
        covariates=COVARIATES,
        figures=figures,
        examples=examples,
        clips=clips,
        sections=[(key, title) for key, title in SECTIONS.items() if is_shown.get(key, True)],
        settings=_list_settings(report),
        num_pairs=len(list(combinations(report["systems"], 2))),
        style=Markup(style),
        script=Markup(script),
        style_hash=hash_content(style),
        script_hash=hash_content(script),
    )
    return page + "\n"


def _list_settings(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = {f"system {name}": path for name, path in report["systems"].items()}
    found |= {name: report["identity"][name] for name in ("model", "dtype")}
    found |= {"match_level": "yes" if report["match_level"] else None}
    found |= {name: report[name] for name in ("num_bootstrap", "seed", "python")} | {"git": report["git_revision"]}
    found |= {name: version for name, version in report["versions"].items() if version}
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]
