"""Publish data sets, models, the metric and the demo on the Hub.

A plan (`plan.py`) lists the files of a repository. `*_repository.py` make plans, `preflight.py` checks them, and
`uploading.py` carries them out.
"""
