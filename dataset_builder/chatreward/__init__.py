"""ChatReward: spoken questions with answers of known score, for training WavReward (section 3.2)."""
