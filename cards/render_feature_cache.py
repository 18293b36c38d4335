"""Render the tables of `docs/feature_cache.md`: `python -m sdiareward.cards.render_feature_cache`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table

from .render import render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "feature_cache.md"
RESULT = _ROOT / "benchmarks" / "results" / "head_training.json"


def render_guide(guide: str, result: Path = RESULT) -> str:
    """Return the guide with its tables taken from the result file.

    Args:
        guide (`str`): Text with the blocks `dtypes` and `speed`.
        result (`Path`): What `benchmarks.head_training` wrote.
    """
    found = json.loads(result.read_text(encoding="utf-8"))["result"]
    return render_readme(guide, {"dtypes": _dtypes(found["stored_dtypes"]), "speed": _speed(found)})


def _dtypes(found: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{found[name]['max_reward_error']:.0e}", f"{found[name]['bytes_a_pair']:,}"]
        for name in ("float32", "float16", "bfloat16")
    ]
    table = "\n".join(render_table(["stored in", "largest error of a reward", "bytes a pair"], rows))
    return f"{table}\n\nThe rewards have a standard deviation of {found['reward_standard_deviation']:.2f}."


def _speed(found: Mapping[str, Any]) -> str:
    nano, paper = found["nano"], found["paper_size"]
    names = {
        f"nano, {nano['pairs']} pairs, through the frozen backbone": nano["epoch_s"]["backbone"],
        "from cached vectors (mean)": nano["epoch_s"]["mean"],
        "from cached hidden states (attention)": nano["epoch_s"]["attention"],
        f"{paper['pairs']:,} pairs at hidden size {paper['hidden_size']:,}, from cached vectors": paper["epoch_s"],
    }
    table = "\n".join(render_table(["", "an epoch"], [[name, f"{s['median']:.3g} s"] for name, s in names.items()]))
    return (
        f"{table}\n\nThe first two, run in turn, differ by a factor of {nano['times_faster']:.0f} in the median. "
        f"Filling the cache took {nano['filling_s']['mean']:.0f} s, once; the vectors of the paper's size take "
        f"{paper['cache_bytes'] / 1e6:.0f} MB on disk."
    )


def main() -> None:
    """Render the guide."""
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
