"""Measure a scorer on pairs: scores, baselines, statistics, summary, calibration, report."""
