"""Pairwise accuracy by subset: `pairwise` has the arithmetic, `esdr_accuracy` is its `evaluate` module."""
