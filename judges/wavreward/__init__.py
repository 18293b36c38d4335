"""WavReward: a generative judge that reasons, scores an answer from 1 to 5, and is trained by reinforcement."""
