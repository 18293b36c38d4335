"""Publish data sets, models, the metric and the demo on the Hub.

`plan.py` says what a repository will hold, `*_repository.py` make plans, `uploading.py` carries them out.
"""
