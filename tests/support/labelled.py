"""Pairs with further columns."""


def add_labels(pairs, rows):
    """Return pairs with the columns of `rows`, which gives the labels of each pair by name, in place of their own."""
    pairs = pairs.remove_columns([name for name in rows[0] if name in pairs.column_names])
    for name in rows[0]:
        pairs = pairs.add_column(name, [row[name] for row in rows])
    return pairs
