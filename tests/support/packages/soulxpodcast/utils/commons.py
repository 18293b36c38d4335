"""Of the repository: `set_all_random_seed`."""

SEEDS = []


def set_all_random_seed(seed):
    """Note the seed."""
    SEEDS.append(seed)
