"""Pairwise accuracy by subset: `pairwise` is the arithmetic, `esdr_accuracy` the `evaluate` module around it."""
