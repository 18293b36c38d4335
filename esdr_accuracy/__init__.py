"""Pairwise accuracy on ESDR-Bench: `pairwise` is the arithmetic, `esdr_accuracy` the `evaluate` module around it."""
