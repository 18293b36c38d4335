"""Score dialogues: `Scorer`, the packed forward, data sets, Ray, cached features, reward functions for RL."""
