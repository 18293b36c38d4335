"""Convert, export and adapt checkpoints; build the built-in models."""
