"""The splits of a training run."""

import datasets
import pytest

from sdiareward.common.user_errors import PairsError
from sdiareward.training.held_out import load_splits


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


def _write_pairs(path, pair_ids, **columns):
    rows = {name: [f"{name} of {pair_id}" for pair_id in pair_ids] for name in ("prompt", "chosen", "rejected")}
    datasets.Dataset.from_dict({"pair_id": list(pair_ids), **rows, **columns}).to_json(path)
    return str(path)


def test_several_data_sets_are_joined_split_by_split(tmp_path):
    first = _write_pairs(tmp_path / "first.jsonl", "abcd")
    second = _write_pairs(tmp_path / "second.jsonl", "xy", source=["game", "game"])
    alone = [load_splits(path, share=0.5, seed=0) for path in (first, second)]
    splits, notices = load_splits([first, second], share=0.5, seed=0)
    for split, pairs in splits.items():
        assert pairs["pair_id"] == [pair_id for found, _ in alone for pair_id in found[split]["pair_id"]]
    assert splits["train"]["source"] == [None, None, "game"]
    assert notices == [notice for _, found in alone for notice in found]


def _write_groups(folder, name, train, validation):
    for split, groups in (("train", train), ("validation", validation)):
        ids = [f"{name}{split}{number}" for number in range(len(groups))]
        (folder / name).mkdir(exist_ok=True)
        _write_pairs(folder / name / f"{split}.jsonl", ids, group_id=list(groups))
    return str(folder / name)


def test_a_group_that_another_data_set_trains_on_is_not_validated_on(tmp_path):
    first, second = _write_groups(tmp_path, "one", "abc", "de"), _write_groups(tmp_path, "two", "dx", "yb")
    splits, notices = load_splits([first, second], share=0.5, seed=0)
    assert splits["train"]["group_id"] == [*"abcdx"]
    assert splits["validation"]["group_id"] == [*"ey"]
    assert notices == ["2 of 4 pairs are left out of validation: another data set trains on their groups"]
    assert load_splits(first, share=0.5, seed=0)[0]["validation"]["group_id"] == [*"de"]
    other = _write_groups(tmp_path, "three", "dey", "b")
    with pytest.raises(PairsError, match="every group of 'validation', such as d, is trained on by another"):
        load_splits([first, other], share=0.5, seed=0)


@pytest.mark.parametrize("column", ["pair_id", "id", None])
def test_a_pair_of_both_splits_is_refused_whatever_names_it(column, tmp_path):
    for split, pairs in (("train", range(5)), ("validation", [3, 7])):
        rows = {side: [f"{side} {pair}.wav" for pair in pairs] for side in ("prompt", "chosen", "rejected")}
        names = {column: list(pairs)} if column else {}
        datasets.Dataset.from_dict({**names, **rows}).to_json(tmp_path / f"{split}.jsonl")
    with pytest.raises(PairsError, match=r"'train' and 'validation' share 1 pairs, such as"):
        load_splits(str(tmp_path), share=0.5, seed=0)


def test_data_sets_that_cannot_be_joined_are_named(tmp_path):
    first, shared, second = (_write_pairs(tmp_path / f"{ids}.jsonl", ids) for ids in ("abcd", "xyzd", "wxyz"))
    typed = _write_pairs(tmp_path / "typed.jsonl", "ef", criterion=[1, 2])
    named = _write_pairs(tmp_path / "named.jsonl", "gh", criterion=["joint", "joint"])
    unnamed = str(tmp_path / "unnamed.jsonl")
    datasets.Dataset.from_json(second).remove_columns("pair_id").to_json(unnamed)
    for paths, message in (
        ([first, shared], r"abcd.jsonl and .*xyzd.jsonl share pairs, such as d; "),
        ([first, unnamed], "unnamed.jsonl: has no column pair_id"),
        ([named, typed], "the types of their columns differ"),
    ):
        with pytest.raises(PairsError, match=message):
            load_splits(paths, share=0.5, seed=0)
