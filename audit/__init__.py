"""The audit of a reward model: what moves its rewards though it must not, what pays though it must not, what it hears.

Torch-free but for the model itself, which comes in as a plain function of dialogues (`material.RewardFunction`).
"""
