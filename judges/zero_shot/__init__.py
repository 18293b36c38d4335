"""Zero-shot judges, which choose the better of two versions of a dialogue (SDiaReward, Table 2, figures 12 and 13)."""
