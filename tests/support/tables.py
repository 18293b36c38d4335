"""Tables of pairs or dialogues, as users write them."""

import json

import datasets


def write_rows(path, rows):
    """Write rows to a Parquet or JSON lines file, by its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
