"""Where the package's own files lie: the only module that knows.

They are the same in the repository, in an editable install and in a wheel, so that the first example runs anywhere
and without a network. Imports nothing but the standard library.
"""

from __future__ import annotations

from pathlib import Path


PACKAGE: Path = Path(__file__).resolve().parents[1]

# The nano checkpoint: configuration, weights, processor, remote code, card and results.
NANO: Path = PACKAGE / "checkpoints" / "nano"
# What was trained of the small model: its projection. Its towers come from other packages.
SMALL: Path = PACKAGE / "checkpoints" / "small"
# One test pair of the open data: `human.json` and `synthetic.json` with their recordings; licences in `README.md`.
EXAMPLES: Path = PACKAGE / "examples"
# The versions that the tests ran with, one `NAME==VERSION` per line.
CONSTRAINTS: Path = PACKAGE / "constraints.txt"
CONFIGS: Path = PACKAGE / "configs"
# Templates of the cards, and the notices of licences that travel with published data.
CARDS: Path = PACKAGE / "cards"
METRIC: Path = PACKAGE / "esdr_accuracy"
DEMO: Path = PACKAGE / "serving" / "demo"
HUMAN_PAGE: Path = PACKAGE / "evaluation" / "human" / "page"
EVALUATION_PAGE: Path = PACKAGE / "evaluation" / "report"
COMPARISON_PAGE: Path = PACKAGE / "evaluation" / "comparison"
AUDIT: Path = PACKAGE / "audit"
# Scenarios and scripts that the builder's sources read.
SCRIPTS: Path = PACKAGE / "dataset_builder" / "sources"
CHATREWARD: Path = PACKAGE / "dataset_builder" / "chatreward"
# Recordings of the repository; they do not travel in the wheel.
SAMPLE: Path = PACKAGE / "sample"
