"""Convert, export and adapt checkpoints, and the first weights of the built-in models."""
