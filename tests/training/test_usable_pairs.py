import pytest

from sdiareward.training.usable_pairs import explain_side, select_usable


def test_usable_rows_are_kept_and_the_others_reported_in_order(caplog):
    reasons = {2: explain_side(1, "cannot be decoded"), 0: explain_side(0, "has no audio")}
    usable, skipped = select_usable("train", ["a", "b", "c"], reasons)
    assert usable == [1]
    unreadable = {"split": "train", "kind": "unreadable"}
    assert [pair.to_dict() for pair in skipped] == [
        {**unreadable, "row": 0, "pair_id": "a", "reason": "chosen, has no audio"},
        {**unreadable, "row": 2, "pair_id": "c", "reason": "rejected, cannot be decoded"},
    ]
    assert "2 of 3 pairs of 'train' cannot be used" in caplog.text


def test_a_split_without_a_usable_pair_is_refused():
    with pytest.raises(ValueError, match="none of the 1 pairs of 'test' can be used; check their recordings"):
        select_usable("test", ["a"], {0: "chosen, has no audio"})
