"""Builds of other data sets than pairs of one reward model."""
