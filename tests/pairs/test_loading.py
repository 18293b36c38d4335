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


def test_turns_become_messages_with_text_before_audio():
    turns = [{"role": "user", "text": "hi", "audio": {"bytes": b"x", "path": None}, "duration_s": 1.0}]
    assert turns_to_messages(turns) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "audio", "audio": {"bytes": b"x", "path": None}}],
        }
    ]


def test_a_turn_without_words_or_recording_has_no_item_for_it():
    assert turns_to_messages([{"role": "user", "text": "", "audio": "a.wav"}])[0]["content"] == [
        {"type": "audio", "audio": "a.wav"}
    ]


def test_a_turn_may_hold_an_array():
    array = np.zeros(800, np.float32)
    [message] = turns_to_messages([{"role": "user", "text": "hi", "audio": array}])
    assert message["content"][1]["audio"] is array


@pytest.mark.parametrize(("text", "reason"), [("{}\nno json\n", "parse error"), ("[1,2", "decoding"), ("", "no rows")])
def test_a_table_that_is_no_json_is_refused_in_one_line(text, reason, tmp_path):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(
        ValueError, match=rf"rows\.jsonl: cannot be read as a table of JSON lines \(.*{reason}.*\); give"
    ):
        open_rows(tmp_path / "rows.jsonl")


def test_messages_lose_the_keys_that_arrow_filled_in():
    content = [{"type": "text", "text": "hi", "audio": None}, {"type": "audio", "text": None, "audio": "a.wav"}]
    assert turns_to_messages([{"role": "user", "content": content}])[0]["content"] == [
        {"type": "text", "text": "hi"},
        {"type": "audio", "audio": "a.wav"},
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_released_message_lists_load_from_a_file(suffix, tmp_path):
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "audio", "audio": "a.wav"}]}
    row = {"chosen": [message], "rejected": [message], "category": "wild", "source": "youtube"}
    path = tmp_path / f"released{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    (loaded,) = load_pairs(path, "train")
    message["content"][1]["audio"] = str(tmp_path / "a.wav")
    assert turns_to_messages(loaded["chosen"]) == [message]


def test_a_system_turn_in_plain_text_stays_as_it_is():
    assert turns_to_messages([{"role": "system", "content": "Judge."}]) == [{"role": "system", "content": "Judge."}]


@pytest.mark.parametrize("names", [{"pair_id": [0, 1]}, {"pair_id": ["", None], "id": [0, 1]}])
def test_ids_and_groups_that_are_numbers_are_texts(names, tmp_path):
    columns = {**names, "group_id": [0, 1], "chosen": ["a.wav", "b.wav"], "rejected": ["c.wav", "d.wav"]}
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    pairs = load_pairs(tmp_path / "pairs.parquet", "test")
    assert [(label["pair_id"], label["group_id"]) for label in describe_pairs(pairs)] == [("0", "0"), ("1", "1")]
    assert name_pairs(pairs) == ["0", "1"]


def test_a_table_without_rows_is_refused_in_one_line(tmp_path):
    pq.write_table(
        pa.table({"chosen": pa.array([], pa.string()), "rejected": pa.array([], pa.string())}),
        tmp_path / "test.parquet",
    )
    with pytest.raises(ValueError, match=r"test\.parquet: cannot be read as a table .* or has no rows\.$"):
        load_pairs(tmp_path, "test")


def test_data_without_the_two_sides_is_refused(tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"text": "hi"}\n')
    with pytest.raises(ValueError, match=r"needs \['chosen', 'rejected'\]"):
        load_pairs(path, "train")


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
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / "data" / "train-0.parquet")
        else:
            (folder / "data" / "train-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.jsonl"):
        load_pairs(tmp_path / "nowhere.jsonl", "train")
