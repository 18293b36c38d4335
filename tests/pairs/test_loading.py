import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs, name_pairs
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.rows import open_rows


TEXT, AUDIO = {"type": "text", "text": "hi"}, {"type": "audio", "audio": "a.wav"}
FILLED_IN = [{**TEXT, "audio": None}, {**AUDIO, "text": None}]
ENCODED, ARRAY = {"bytes": b"x", "path": None}, np.zeros(800, np.float32)


@pytest.mark.parametrize(
    ("turn", "content"),
    [
        ({"text": "hi", "audio": ENCODED, "duration_s": 1.0}, [TEXT, {"type": "audio", "audio": ENCODED}]),
        ({"text": "hi", "audio": ARRAY}, [TEXT, {"type": "audio", "audio": ARRAY}]),
        ({"text": "", "audio": "a.wav"}, [AUDIO]),
        # Arrow fills in the keys that other items have.
        ({"content": FILLED_IN}, [TEXT, AUDIO]),
        ({"content": "Judge."}, [{"type": "text", "text": "Judge."}]),
    ],
)
def test_a_turn_becomes_a_message_with_text_before_audio(turn, content):
    assert turns_to_messages([{"role": "user", **turn}]) == [{"role": "user", "content": content}]


def write_rows(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("text", ["{}\nno json\n", "[1,2", "", '{"text": "hi"}\n'])
def test_a_table_that_is_not_json_or_lacks_the_sides_or_is_missing_is_refused_by_name(text, tmp_path):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        load_pairs(tmp_path / "rows.jsonl", "train")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        load_pairs(tmp_path / "nowhere.jsonl", "train")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_released_message_lists_load_from_a_file(suffix, tmp_path):
    message = {"role": "user", "content": [TEXT, AUDIO]}
    row = {"chosen": [message], "rejected": [message], "category": "wild", "source": "youtube"}
    path = write_rows(tmp_path / f"released{suffix}", [row])
    (loaded,) = load_pairs(path, "train")
    expected = [TEXT, {"type": "audio", "audio": str(tmp_path / "a.wav")}]
    assert turns_to_messages(loaded["chosen"]) == [{"role": "user", "content": expected}]


@pytest.mark.parametrize("names", [{"pair_id": [0, 1]}, {"pair_id": ["", None], "id": [0, 1]}])
def test_ids_and_groups_that_are_numbers_are_texts(names, tmp_path):
    columns = {**names, "group_id": [0, 1], "chosen": ["a.wav", "b.wav"], "rejected": ["c.wav", "d.wav"]}
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    pairs = load_pairs(tmp_path / "pairs.parquet", "test")
    assert [(label["pair_id"], label["group_id"]) for label in describe_pairs(pairs)] == [("0", "0"), ("1", "1")]
    assert name_pairs(pairs) == ["0", "1"]


def test_a_table_without_rows_is_refused_by_name(tmp_path):
    columns = {side: pa.array([], pa.string()) for side in ("chosen", "rejected")}
    pq.write_table(pa.table(columns), tmp_path / "test.parquet")
    with pytest.raises(ValueError, match=r"test\.parquet: .*has no rows"):
        load_pairs(tmp_path, "test")


CARD = """---
configs:
- config_name: modality
  data_files: [{split: train, path: "data/train-*.FORM"}]
---
"""


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize("split", ["train", "train[:9]"])
def test_a_copy_of_a_folder_with_other_rows_is_read_where_it_lies(form, split, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for place, num_pairs in (("here", 5), ("there", 3)):
        folder = tmp_path / place / "sdiareward"
        (folder / "data").mkdir(parents=True)
        (folder / "README.md").write_text(CARD.replace("FORM", form))
        side = [{"role": "user", "text": "hi", "audio": None}]
        rows = [{"pair_id": f"{place} {row}", "chosen": side, "rejected": side} for row in range(num_pairs)]
        write_rows(folder / "data" / f"train-0.{form}", rows)
        expected = [row["pair_id"] for row in rows]
        assert list(load_pairs(folder, split, name="modality")["pair_id"]) == expected
        opened = open_rows(folder, split, "modality")
        assert opened.read(range(num_pairs), ["pair_id"])["pair_id"].to_pylist() == expected


def test_a_table_that_took_the_place_of_another_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path, side = tmp_path / "pairs.parquet", [{"role": "user", "text": "hi", "audio": None}]
    for pair_id in ("first", "second"):
        path.unlink(missing_ok=True)
        pq.write_table(pa.Table.from_pylist([{"pair_id": pair_id, "chosen": side, "rejected": side}]), path)
        # As archives keep it.
        os.utime(path, (1, 1))
        assert list(load_pairs(path, "train")["pair_id"]) == [pair_id]
