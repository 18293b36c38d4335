"""Publish data sets, models, the metric and the demo on the Hub.

A plan (`plan.py`) lists the files of a repository. `dataset_repository.py`, `model_repository.py` and `spaces.py` make
plans, `preflight.py` checks them, and `uploading.py` pushes them.
"""
