"""The splits of a training run."""

import datasets
from support.mapped_world import write_mapped

from sdiareward.training.held_out import load_splits


def test_mapped_columns_have_the_splits_of_the_data_set_that_they_name(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    mapping = write_mapped(tmp_path, train=["A", "Tie", "B"], dev="B")
    splits, notice = load_splits(str(mapping), share=0.5, seed=0)
    assert {split: pairs["pair_id"] for split, pairs in splits.items()} == {"train": ["0", "2"], "validation": ["3"]}
    assert notice is None


def test_validation_takes_a_draw_of_the_pairs_and_training_all(tmp_path):
    columns = ("pair_id", "prompt", "chosen", "rejected")
    pairs = datasets.Dataset.from_dict({name: [f"{name}{row}" for row in range(40)] for name in columns})
    pairs.to_json(tmp_path / "pairs.jsonl")
    splits = {
        count: load_splits(str(tmp_path / "pairs.jsonl"), share=0.5, seed=0, max_eval_samples=count)[0]
        for count in (None, 3, 99)
    }
    whole, drawn, capped = (splits[count]["validation"]["pair_id"] for count in (None, 3, 99))
    rows = [list(whole).index(pair_id) for pair_id in drawn]
    assert len(rows) == 3 and rows == sorted(rows) and rows != [0, 1, 2]
    assert list(capped) == list(whole) and len(whole) == 20
    assert splits[3]["train"]["pair_id"] == splits[None]["train"]["pair_id"]
