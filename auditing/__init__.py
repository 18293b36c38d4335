"""Audit a reward model: its sensitivity to perturbations, its robustness to attacks, and the modality that it uses."""
