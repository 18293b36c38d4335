"""Zero-shot judges: which of two versions of a dialogue is better (SDiaReward, Table 2, figures 12 and 13)."""
