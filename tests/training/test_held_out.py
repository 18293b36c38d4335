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
