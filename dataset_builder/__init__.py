"""From recordings to preference pairs: sources, synthesizers, channel matching, splits, Parquet (paper, section 3).

Needs neither torch nor a model. `python -m sdiareward.dataset_builder --config FILE` builds a data set.
"""
