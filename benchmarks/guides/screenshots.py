"""Take the pictures of the guides: `python -m benchmarks.guides.screenshots` writes `docs/images/*.png`.

Everything shown is real: the nano checkpoint on a few pairs of the bundled sample, which are built, evaluated and
compared first (minutes; a second run with the same `--work` takes seconds), and the audit and the card
beside the checkpoint. Needs the extras build, eval and demo, playwright and Debian's Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sdiareward.common.package_files import NANO, PACKAGE
from sdiareward.pairs.sampling import sample_rows


IMAGES = PACKAGE / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
MAX_BYTES = 250_000
# Relative to the folder of the work: these names are in the pictures.
MODEL, DATA, EVALUATION, STUDY = "checkpoints/nano", "runs/demo/sdiareward", "runs/demo/eval", "runs/demo/study"
SYSTEMS, COMPARISON, PREVIEW = "runs/demo/systems.parquet", "runs/demo/compare", "runs/preview"
_COMPARED = 30
# A card as the Hub shows it, roughly: one column of text, beside it the list of files.
_CARD_PAGE = """<!doctype html><meta charset="utf-8"><title>preview</title><style>
:root {{ color-scheme: light dark }}
body {{ display: flex; gap: 2rem; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; flex-wrap: wrap;
  font: 15px/1.5 system-ui, sans-serif }}
main {{ flex: 1 1 40rem; min-width: 0 }} aside {{ flex: 0 1 25rem; min-width: 0 }}
main > h1:first-child {{ margin-top: 0 }}
pre, table, img {{ display: block; max-width: 100%; overflow-x: auto }}
pre {{ background: #8882; padding: .6rem }} aside pre {{ margin: 0; white-space: pre-wrap }}
table {{ border-collapse: collapse }} th, td {{ border: 1px solid #8886; padding: .2rem .6rem }}
</style><main>{card}</main><aside><pre>{listing}</pre></aside>"""
_DATA_CONFIG = {
    "output_dir": DATA,
    "sources": [{"name": "sample", "limit": 60}, {"name": "colloquial_scripts", "limit": 40}],
    "synthesizers": {
        "modality": {"seen": ["world", "espeak-ng"], "left_out": ["hibari"], "per_dialogue": 1},
        "colloquialness": {"seen": ["espeak-ng"], "left_out": ["hibari"]},
    },
    "validation": 0.1,
    "test": 0.4,
    "seed": 0,
    "num_workers": 1,
}
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio")


def main() -> None:
    """Take all pictures, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES], help="pictures to take (default: all)")
    parser.add_argument("--work", type=Path, default=Path("runs/screenshots"), help="folder of the quick run")
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of the pictures")
    parser.add_argument("--phone", action="store_true", help="at the width of a phone, to look at")
    parser.add_argument("--dark", action="store_true", help="in dark mode, to look at")
    args = parser.parse_args()
    args.output = args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    os.chdir(args.work)
    with _browser("dark" if args.dark else "light", PHONE if args.phone else SIZE) as page:
        for name in args.names or PICTURES:
            PICTURES[name](page)
            path = args.output / f"{name}.png"
            page.screenshot(path=path)
            if path.stat().st_size > MAX_BYTES:
                raise SystemExit(
                    f"{path}: has {path.stat().st_size} bytes; a guide's picture has at most {MAX_BYTES}."
                )
            print(path)


@contextlib.contextmanager
def _browser(scheme: Any, size: Any) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(_FLAGS))
        page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
        page.set_default_timeout(120_000)
        yield page
        browser.close()


def _link_model() -> None:
    if not Path(MODEL).exists():
        Path(MODEL).parent.mkdir(parents=True, exist_ok=True)
        Path(MODEL).symlink_to(NANO)


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def _build() -> None:
    """Build a few pairs, once."""
    if not Path(DATA).exists():
        Path("data.yaml").write_text(yaml.safe_dump(_DATA_CONFIG), encoding="utf-8")
        _run("sdiareward.dataset_builder", "build", "--config", "data.yaml")


def _evaluate() -> Path:
    """Evaluate the nano checkpoint on the pairs, once."""
    _build()
    _link_model()
    _run("sdiareward.eval", "--model", MODEL, "--dataset", DATA, "--output_dir", EVALUATION, "--report")
    return Path(EVALUATION)


def show_evaluation(page: Any) -> None:
    """Open the page of the evaluation."""
    page.goto((_evaluate() / "report" / "index.html").resolve().as_uri())


def show_compare(page: Any) -> None:
    """Compare recordings with what synthesizers made of them."""
    _build()
    _link_model()
    if not Path(SYSTEMS).exists():
        _write_systems(Path(SYSTEMS))
    _run("sdiareward.cli", "compare", SYSTEMS, "--model", MODEL, "--criterion", "modality", "--output_dir", COMPARISON)
    page.goto(Path(COMPARISON, "report", "index.html").resolve().as_uri())


def _write_systems(path: Path) -> None:
    """Write both sides of pairs as the dialogues of two systems."""
    import pandas as pd

    from sdiareward.pairs.labels import describe_pairs
    from sdiareward.pairs.loading import load_pairs

    pairs = load_pairs(DATA, "test", name="modality")
    pairs = pairs.select(sample_rows(describe_pairs(pairs), _COMPARED))
    systems = {"recorded": "chosen", "synthetic": "rejected"}
    rows = [
        {"system": system, "id": pair["pair_id"], "group_id": pair["group_id"], "turns": pair[side]}
        for pair in pairs
        for system, side in systems.items()
    ]
    pd.DataFrame(rows).to_parquet(path)


def show_card(page: Any) -> None:
    """Render the card of the nano checkpoint, and the list of its files, as a push would publish them."""
    from markdown_it import MarkdownIt

    _link_model()
    shutil.rmtree(PREVIEW, ignore_errors=True)
    _run("sdiareward.cli", "push", "model", MODEL, "ORG/sdiareward-nano", "--preview", PREVIEW)
    folder = Path(PREVIEW)
    _, _, card = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    content = MarkdownIt("commonmark").enable("table").render(card)
    listing = html.escape((folder / "files.txt").read_text(encoding="utf-8"))
    (folder / "index.html").write_text(_CARD_PAGE.format(card=content, listing=listing), encoding="utf-8")
    page.goto((folder / "index.html").resolve().as_uri())


def show_audit(page: Any) -> None:
    """Open the page of the audit beside the nano checkpoint."""
    _run("sdiareward.cli", "audit", "--render", str(NANO / "audit.json"), "--output_dir", "runs/audit")
    page.goto(Path("runs/audit/audit.html").resolve().as_uri())
    page.evaluate("document.getElementById('verdicts').scrollIntoView({behavior: 'instant'})")


def show_demo(page: Any) -> None:
    """Score the example pair on the demo page."""
    from sdiareward.serving.demo.app import build, launch

    _, url, _ = launch(build(), server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    page.goto(url)
    page.get_by_role("button", name="Score").click()
    page.get_by_role("status", name="Result").wait_for()
    page.wait_for_timeout(1000)


def show_raters(page: Any) -> None:
    """Open the first pair of a study of the evaluated pairs."""
    from sdiareward.evaluation.human.page.server import RatingServer
    from sdiareward.evaluation.human.page.sessions import RatingSession

    _evaluate()
    if not Path(STUDY).exists():
        _run("sdiareward.cli", "human", "sample", EVALUATION, "--output", STUDY, "--seed", "1")
    session = RatingSession(STUDY, "ann")
    session.consent()
    server = RatingServer(session)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page.goto(server.url)
    page.locator("#question").wait_for()
    page.wait_for_timeout(1000)


PICTURES = {
    "evaluation": show_evaluation,
    "compare": show_compare,
    "audit": show_audit,
    "demo": show_demo,
    "raters": show_raters,
    "card": show_card,
}


if __name__ == "__main__":
    main()
