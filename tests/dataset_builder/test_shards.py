import json

import datasets
import pyarrow.parquet as pq
import pytest

from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.reports.data_card import make_content_id, summarise, summarise_skipped
from sdiareward.dataset_builder.shards import list_paths, read_rows, write_rows
from sdiareward.pairs.schema import features


def make_row(number, criterion="modality", duration_s=1.5):
    audio = {"bytes": b"x" * number, "path": f"{number}.flac"}
    turn = {"text": "hm", "audio": audio, "duration_s": duration_s, "audio_ref": []}
    side = [{"role": "user", **turn}, {"role": "assistant", **turn}]
    labels = {"criterion": criterion, "subset": "semi_wild", "source": "amazon_queen", "synthesizer": "piper"}
    row = {"pair_id": f"p{number:04d}", **labels, "chosen": side, "rejected": side, "native_coding": []}
    return {**dict.fromkeys(features()), **row}


def write(folder, count, split="train"):
    return write_rows(folder, [(split, make_row(number)) for number in range(count)])


def test_rows_come_back_as_they_were_written_in_columns_that_older_datasets_read(tmp_path):
    write_rows(tmp_path, [("train", make_row(1)), ("test", make_row(2, "colloquialness"))])
    assert dict(read_rows(tmp_path)) == {"train": make_row(1), "test": make_row(2, "colloquialness")}
    for path in list_paths(tmp_path):
        described = json.loads(pq.read_schema(path).metadata[b"huggingface"])["info"]["features"]
        assert '"List"' not in json.dumps(described)
        assert datasets.Features.from_arrow_schema(pq.read_schema(path)) == features()


def test_shards_are_numbered_and_none_holds_more_than_two_hundred_rows(tmp_path):
    write(tmp_path, 401)
    names = sorted(path.name for path in (tmp_path / "data" / "modality").iterdir())
    assert names == [f"train-{index:05d}-of-00003.parquet" for index in range(3)]
    assert [row["pair_id"] for _, row in read_rows(tmp_path, ["pair_id"])] == [f"p{n:04d}" for n in range(401)]


def test_counts_are_pairs_and_hours_of_either_side_and_the_summary_has_them(tmp_path):
    labels = {"subset": "semi_wild", "source": "amazon_queen", "synthesizer": "piper"}
    # Six turns of 1.5 s a side are a four hundredth of an hour.
    hours = {"chosen_h": 0.0025, "rejected_h": 0.0025}
    counts = write(tmp_path, 3)
    assert counts == [{"criterion": "modality", "split": "train", **labels, "pairs": 3, **hours}]
    skipped = [Skipped(*each) for each in (("a", "gone", "1"), ("b", "gone", "2"), ("c", "no_text", "3"))]
    lines = summarise({"pairs": counts, **summarise_skipped(skipped)}).splitlines()
    assert lines[0] == "3 pairs, 0.00 h chosen, 0.00 h rejected"
    assert "  by synthesizer: piper 3" in lines
    assert lines[-3:] == ["3 skipped", "  gone: 2; the first: a: 1", "  no_text: 1; the first: c: 3"]


def test_an_error_while_writing_keeps_the_shards_that_were_there(tmp_path):
    write(tmp_path, 2)
    before = make_content_id(tmp_path)

    def stop():
        yield "train", make_row(7)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path, stop())
    assert make_content_id(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
