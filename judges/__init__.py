"""Audio language models as judges: zero-shot judges of pairs, and WavReward, which scores an answer from 1 to 5."""
