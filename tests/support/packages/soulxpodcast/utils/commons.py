"""Of the repository: `set_all_random_seed`."""

SEEDS = []


def set_all_random_seed(seed):
    SEEDS.append(seed)
