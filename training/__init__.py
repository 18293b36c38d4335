"""Train a reward model: arguments, trainer, batches, cached features, augmentation."""
