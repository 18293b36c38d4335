"""Show what channel matching does: the acoustic baseline on the same pairs with and without it.

    python benchmarks/channel_matching.py --config configs/demo_data.yaml --output_dir runs/channel_matching

Builds the modality pairs of the config twice, with its channel and with none, and writes the baseline's accuracy by
synthesizer to `benchmarks/results/channel_matching.json`. The baseline hears 160 numbers of the spectrum: it still
gets right what the channel gives away, not what a voice does.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.provenance import write_provenance
from sdiareward.dataset_builder.builder import BuildConfig, build
from sdiareward.dataset_builder.settings import read_build_config
from sdiareward.evaluation.baselines import score_baseline
from sdiareward.pairs.loading import load_pairs


def measure(config: BuildConfig) -> dict[str, Any]:
    """Build the pairs of a config; return the acoustic baseline's accuracy on each synthesizer of the test split."""
    build(config)
    train, test = (load_pairs(config.output_dir, split, name="modality") for split in ("train", "test"))
    scores = score_baseline("acoustic", train, train["criterion"], test, test["criterion"], progress=True)
    is_right = np.asarray(scores.chosen) > np.asarray(scores.rejected)
    synthesizers = np.array(test["synthesizer"])
    return {
        name: {
            "accuracy": float(is_right[synthesizers == name].mean()),
            "num_pairs": int((synthesizers == name).sum()),
        }
        for name in sorted(set(synthesizers.tolist()))
    }


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    config: Path = field(default=Path("configs/demo_data.yaml"), metadata={"help": "settings of the build"})
    output_dir: Path = field(default=Path("runs/channel_matching"), metadata={"help": "folder to write"})


def main() -> None:
    """Measure both variants and write the result."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.channel_matching", description=__doc__)
    config = read_build_config(args.config, {})
    recorded = tuple(source for source in config.sources if source.name != "colloquial_scripts")
    results = {}
    for name, channel in (("matched", config.channel), ("unmatched", None)):
        folder = str(args.output_dir / name / "sdiareward")
        results[name] = measure(dataclasses.replace(config, sources=recorded, channel=channel, output_dir=folder))
    result = Path(__file__).parent / "results" / "channel_matching.json"
    write_provenance(result, config=str(args.config), acoustic_baseline=results)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
