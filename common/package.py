"""The package itself: its version, its papers, and the paths of its files in the repository or a wheel."""

from __future__ import annotations

from pathlib import Path


__version__ = "0.1.0"
# "Modeling and Benchmarking Spoken Dialogue Rewards with Modality and Colloquialness": the reward model.
SDIAREWARD_ARXIV = "2603.14889"
# "WavReward: Spoken Dialogue Models With Generalist Reward Evaluators": the generative judge.
WAVREWARD_ARXIV = "2505.09558"
PACKAGE: Path = Path(__file__).resolve().parents[1]

NANO: Path = PACKAGE / "checkpoints" / "nano"
# Holds the projection only; other packages provide the towers.
SMALL: Path = PACKAGE / "checkpoints" / "small"
# One test pair of the open data; licences in its `README.md`.
EXAMPLES: Path = PACKAGE / "examples"
# The versions that the tests ran with, one `NAME==VERSION` per line.
CONSTRAINTS: Path = PACKAGE / "constraints.txt"
CONFIGS: Path = PACKAGE / "configs"
CARDS: Path = PACKAGE / "cards"
METRIC: Path = PACKAGE / "esdr_accuracy"
DEMO: Path = PACKAGE / "serving" / "demo"
HUMAN_PAGE: Path = PACKAGE / "evaluation" / "human" / "page"
EVALUATION_PAGE: Path = PACKAGE / "evaluation" / "report"
AUDIT: Path = PACKAGE / "auditing"
SCRIPTS: Path = PACKAGE / "dataset_builder" / "sources"
CHATREWARD: Path = PACKAGE / "dataset_builder" / "chatreward"
# Not part of the wheel.
SAMPLE: Path = PACKAGE / "sample"
