"""Pairs with audio that is easy to find again, and what a planned repository holds."""

import random

import pyarrow.parquet as pq

from sdiareward.dataset_builder.release.release import release_features
from sdiareward.dataset_builder.shards import write_rows
from sdiareward.pairs.schema import features


# Parquet compresses its pages: what a file holds is looked for in its bytes and in its rows.
FORBIDDEN, FREE = (random.Random(seed).randbytes(400) for seed in (1, 2))


def make_row(pair_id="free", audio=FREE, criterion="modality", **changes):
    turns = {
        side: [
            {
                "role": role,
                "text": f"{pair_id} {side} {role}",
                "audio": {"bytes": audio + f"{pair_id}{side}{role}".encode(), "path": f"{pair_id}-{side}.flac"},
                "duration_s": 1.5,
                "audio_ref": [{"uri": uri, "start_s": 0.0, "end_s": 1.5, "text": f"{pair_id} {side} {role}"}],
            }
            for role in ("user", "assistant")
        ]
        for side, uri in (("chosen", "folder:call.flac"), ("rejected", "synthetic:piper"))
    }
    return {
        **dict.fromkeys(features(), None),
        "pair_id": pair_id,
        "criterion": criterion,
        "subset": "wild" if criterion == "modality" else "colloquialness",
        "source": "folder",
        **{"primary": "Unknown", "secondary": "Unknown", "synthesizer": "piper", "group_id": "0123456789abcdef"},
        **{"native_coding": [], "language": "en", "license": "CC-BY-4.0"},
        **turns,
        **changes,
    }


def content_of(file):
    with file.as_file() as content:
        return content.read()


def rows_of(plan, folder):
    """Return the rows of all Parquet files below a folder of the repository, by `pair_id`."""
    files = [file for file in plan.files if file.path_in_repo.startswith(f"{folder}/")]
    return {row["pair_id"]: row for file in files for row in pq.read_table(file.path_or_fileobj).to_pylist()}


def says(plan, secret):
    """Return whether any file of a plan holds `secret`, in its bytes or in its rows."""
    rows = [rows_of(plan, folder) for folder in ("data", "metadata")]
    return any(secret in content_of(file) for file in plan.files) or holds(rows, secret)


def holds(value, secret):
    if isinstance(value, dict | list):
        return any(holds(part, secret) for part in (value.values() if isinstance(value, dict) else value))
    return secret in (value if isinstance(value, bytes) else str(value).encode())


def write_data(folder, *rows):
    write_rows(folder, rows)
    return folder


FINGERPRINT = {"duration_s": 1.0, "level_dbfs": -20.0, "digest": "f", "energies": [1, 2]}


def write_release(folder, *rows):
    made = []
    for split, row in rows:
        sides = {s: [{**turn, "fingerprints": [FINGERPRINT]} for turn in row[s]] for s in ("chosen", "rejected")}
        for turn in (turn for turns in sides.values() for turn in turns):
            del turn["audio"]
        made.append((split, {**row, **sides}))
    write_rows(folder, made, release_features())
    return folder
