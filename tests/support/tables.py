"""Tables of pairs or dialogues, as users write them."""

import csv
import json

import datasets


def write_rows(path, rows):
    """Write rows to a Parquet, CSV, TSV or JSON lines file, by its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        cells = [
            {name: json.dumps(each) if isinstance(each, list) else each for name, each in row.items()} for row in rows
        ]
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(cells)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
