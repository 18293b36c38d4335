"""ChatReward: spoken questions, each with answers of known score, as WavReward is trained on (section 3.2)."""
