"""Audio language models as judges: zero-shot on pairs, and WavReward, which scores one answer from 1 to 5."""
