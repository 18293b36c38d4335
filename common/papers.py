"""Numbers on arXiv of the papers that the package implements."""

from __future__ import annotations


# "Modeling and Benchmarking Spoken Dialogue Rewards with Modality and Colloquialness": the reward model.
SDIAREWARD_ARXIV = "2603.14889"
# "WavReward: Spoken Dialogue Models With Generalist Reward Evaluators": the generative judge.
WAVREWARD_ARXIV = "2505.09558"
