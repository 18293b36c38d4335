"""The splits of a training run."""

import datasets
import pytest

from sdiareward.common.errors import PairsError
from sdiareward.training.arguments import SDiaRewardScriptArguments
from sdiareward.training.held_out import count_units, find_shared, load_splits


def load(*datasets, share=0.5, seed=0, folds=None, **options):
    names, options = list(map(str, datasets)), {"criterion": "joint", "validation_share": share, **options}
    return load_splits(SDiaRewardScriptArguments(names[0], more_datasets=names[1:], **options), seed, folds)


def test_validation_takes_a_draw_of_the_pairs_and_training_all(tmp_path):
    columns = ("pair_id", "prompt", "chosen", "rejected")
    pairs = datasets.Dataset.from_dict({name: [f"{name}{row}" for row in range(40)] for name in columns})
    pairs.to_json(tmp_path / "pairs.jsonl")
    splits = {count: load(tmp_path / "pairs.jsonl", max_eval_samples=count)[0] for count in (None, 3, 99)}
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
    alone = [load(path) for path in (first, second)]
    splits, notices = load(first, second)
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
    splits, notices = load(first, second)
    assert splits["train"]["group_id"] == [*"abcdx"]
    assert splits["validation"]["group_id"] == [*"ey"]
    assert [notice.split(":")[0] for notice in notices] == ["2 of 4 pairs are removed from validation"]
    assert load(first)[0]["validation"]["group_id"] == [*"de"]
    other = _write_groups(tmp_path, "three", "dey", "b")
    with pytest.raises(PairsError, match="all pairs of 'validation', such as onevalidation0, share"):
        load(first, other)


def _pair(prompt, answer, other, **columns):
    """Return a pair of spoken dialogues; recordings of equal names have equal content."""
    sides = {}
    for side, words in (("chosen", answer), ("rejected", other)):
        turns = zip(("user", "assistant") * 4, [*prompt.split(), words], strict=False)
        sides[side] = [
            {"role": role, "text": f"words of {name}", "audio": {"bytes": name.encode(), "path": None}}
            for role, name in turns
        ]
    return {**sides, **columns}


SHARED = {
    "prompt": [_pair("abc"[n % 3], f"right{n}", f"wrong{n}") for n in range(12)],
    "chosen side": [_pair("abc"[n % 3], "abc"[n % 3], f"wrong{n}") for n in range(12)],
    "recording of a later turn": [_pair(f"{n} {'abc'[n % 3]} {n}-2", f"right{n}", f"wrong{n}") for n in range(12)],
    "recording in another group": [_pair(f"{n}", f"right{n // 4}", f"wrong{n}", group_id=n) for n in range(12)],
    "chain of prompt and recording": [
        _pair(f"{n // 2}", f"right{(n + 1) // 2 % 2 + n // 4 * 2}", f"wrong{n}") for n in range(12)
    ],
}


@pytest.mark.parametrize("shared", SHARED)
def test_pairs_that_share_something_are_held_out_together(shared, tmp_path):
    datasets.Dataset.from_list(SHARED[shared]).to_parquet(tmp_path / "pairs.parquet")
    splits, (notice,) = load(tmp_path / "pairs.parquet", share=0.1)
    assert (len(splits["train"]), len(splits["validation"]), count_units(splits)) == (8, 4, 1)
    assert not find_shared(splits)
    assert "4 of its 12 training pairs" in notice


def test_a_unit_with_most_pairs_is_not_held_out_and_one_side_for_all_is_refused(tmp_path):
    path = tmp_path / "pairs.parquet"
    most = [_pair("a" if n < 8 else f"{n}", f"right{n}", f"wrong{n}") for n in range(10)]
    for seed in range(6):
        datasets.Dataset.from_list(most).to_parquet(path)
        assert len(load(path, share=0.1, seed=seed)[0]["train"]) == 9
    datasets.Dataset.from_list([_pair("a", "right", f"wrong{n}") for n in range(8)]).to_parquet(path)
    with pytest.raises(PairsError, match=r"pairs.parquet: .*8 have the same .*, such as rows 0 and 1"):
        load(path, share=0.1)


@pytest.mark.parametrize(
    ("prompt", "rejected", "what"),
    [("greeting", "wrong{0}", "prompt"), ("greeting hello {1}", "wrong{0}", "recording"), ("{1}", "hum", "recording")],
)
def test_what_all_pairs_have_joins_none_and_is_noted(prompt, rejected, what, tmp_path):
    pairs = [_pair(prompt.format(n, n // 2), f"right{n // 2}", rejected.format(n), pair_id=f"{n}") for n in range(24)]
    paths = [str(tmp_path / "one.parquet"), str(tmp_path / "two.parquet")]
    for path, rows in zip(paths, (pairs[:12], pairs[12:]), strict=True):
        datasets.Dataset.from_list(rows).to_parquet(path)
    splits, (notice,) = load(paths[0], share=0.1)
    assert (len(splits["train"]), len(find_shared(splits)), count_units(splits)) == (10, 2, 1)
    assert f"except what most have: 12 have the same {what}, such as rows 0 and 1" in notice
    assert len(load(*paths, share=0.1)[0]["validation"]) == 4


def test_without_a_split_to_validate_on_a_share_of_train_is_held_out_and_test_is_not_touched(tmp_path):
    for split, ids in (("train", "abcdefgh"), ("test", "xyz")):
        _write_pairs(tmp_path / f"{split}.jsonl", ids)
    splits, (notice,) = load(tmp_path)
    assert sorted([*splits["train"]["pair_id"], *splits["validation"]["pair_id"]]) == [*"abcdefgh"]
    assert f"{tmp_path} has no split 'validation': 4 of its 8 training pairs" in notice
    with pytest.raises(PairsError, match="split is 'dev'; this data set has test, train"):
        load(tmp_path, dataset_test_split="dev")
    # Folds train on all of train.
    splits, (notice,) = load(tmp_path, folds=3)
    assert list(splits) == ["train"] and len(splits["train"]) == 8 and "8 pairs of 'train' only" in notice


def test_the_criterion_is_that_of_the_flag_else_of_the_column_and_asked_for_without_both(tmp_path):
    named = _write_pairs(tmp_path / "named.jsonl", "abcd", criterion=["modality"] * 4)
    plain = _write_pairs(tmp_path / "plain.jsonl", "efgh")
    for path, flag, expected in ((named, None, "modality"), (named, "joint", "joint"), (plain, "joint", "joint")):
        splits, _ = load(path, criterion=flag)
        assert {name for pairs in splits.values() for name in pairs["criterion"]} == {expected}
    with pytest.raises(PairsError, match="plain.jsonl: .*--criterion modality.*colloquialness.*joint"):
        load(plain, criterion=None)


def test_answers_without_a_prompt_share_none(tmp_path):
    rows = [
        {side: [{"role": "assistant", "text": f"{side} {n}"}] for side in ("chosen", "rejected")} for n in range(4)
    ]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "pairs.parquet")
    assert len(load(tmp_path / "pairs.parquet", share=0.1)[0]["train"]) == 3


def test_given_splits_that_share_prompts_or_recordings_are_used_and_noted(tmp_path):
    rows = SHARED["prompt"]
    held_out = [*rows[4:6], _pair("other", "new", "wrong0"), _pair("x", "y", "z")]
    for split, found in (("train", rows[:4]), ("validation", held_out)):
        datasets.Dataset.from_list(found).to_parquet(tmp_path / f"{split}.parquet")
    splits, (notice,) = load(tmp_path, share=0.1)
    assert f"{tmp_path}: 3 of 4 pairs" in notice and find_shared(splits) == [0, 1, 2]


@pytest.mark.parametrize("column", ["pair_id", "id", None])
def test_a_pair_of_both_splits_is_refused_whatever_names_it(column, tmp_path):
    for split, pairs in (("train", range(5)), ("validation", [3, 7])):
        rows = {side: [f"{side} {pair}.wav" for pair in pairs] for side in ("prompt", "chosen", "rejected")}
        names = {column: list(pairs)} if column else {}
        datasets.Dataset.from_dict({**names, **rows}).to_json(tmp_path / f"{split}.jsonl")
    with pytest.raises(PairsError, match=r"'train' and 'validation' share 1 pairs, such as"):
        load(tmp_path)


def test_data_sets_that_cannot_be_joined_are_named(tmp_path):
    first, shared, second = (_write_pairs(tmp_path / f"{ids}.jsonl", ids) for ids in ("abcd", "xyzd", "wxyz"))
    typed = _write_pairs(tmp_path / "typed.jsonl", "ef", source=[1, 2])
    named = _write_pairs(tmp_path / "named.jsonl", "gh", source=["game", "game"])
    unnamed = str(tmp_path / "unnamed.jsonl")
    datasets.Dataset.from_json(second).remove_columns("pair_id").to_json(unnamed)
    for paths, message in (
        ([first, shared], r"abcd.jsonl and .*xyzd.jsonl share pairs, such as d; "),
        ([first, unnamed], "unnamed.jsonl: has no column pair_id"),
        ([named, typed], "the types of their columns differ"),
    ):
        with pytest.raises(PairsError, match=message):
            load(*paths)


def test_groups_are_held_out_whole_and_by_the_seed(tmp_path):
    path = _write_pairs(tmp_path / "pairs.jsonl", "abcdefgh", group_id=[*"11223344"])
    drawn = set()
    for seed in range(4):
        (splits, notices), again = load(path, share=0.3, seed=seed), load(path, share=0.3, seed=seed)
        train, validation = (set(splits[name]["group_id"]) for name in ("train", "validation"))
        assert (len(train), len(validation)) == (2, 2) and not train & validation
        assert again[1] == notices and again[0]["train"]["pair_id"] == splits["train"]["pair_id"]
        drawn.add(tuple(sorted(validation)))
    assert len(drawn) > 1
