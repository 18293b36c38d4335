"""Audit a reward model: which perturbations move its rewards, which attacks raise them, which modality it uses."""
