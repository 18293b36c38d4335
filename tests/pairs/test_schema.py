"""The contract of a row, stable ids, and the drawing of rows by their labels."""

import copy

import pytest
from support.audit_world import make_label

from sdiareward.pairs.labels import sample_rows
from sdiareward.pairs.schema import features, make_stable_id, make_stable_seed, validate_row


def make_turn(role, duration_s=2.0):
    return {"role": role, "text": "hello", "audio": {"bytes": b"x"}, "duration_s": duration_s, "audio_ref": []}


@pytest.fixture
def row():
    side = [make_turn("user"), make_turn("assistant")]
    labels = {"criterion": "modality", "subset": "semi_wild", "source": "meld", "primary": "Positive"}
    others = {"channel": None, "native_coding": [], "quality": None, "language": "en", "license": "CC0-1.0"}
    names = {"pair_id": "p1", "secondary": "Joy", "synthesizer": "piper", "group_id": "g1"}
    return {**labels, **names, **others, "chosen": side, "rejected": copy.deepcopy(side)}


def test_a_stable_id_is_the_same_on_every_machine():
    assert make_stable_id("asterisk", "agent") == "c8086635f14903a8"
    assert make_stable_seed("asterisk", "agent") == 0xC8086635F14903A8
    assert make_stable_id("a", "bc") != make_stable_id("ab", "c")


def test_a_valid_row_passes(row):
    validate_row(row)
    assert set(row) == set(features())


BROKEN = {
    "criterion is 'beauty'": lambda row: row.update(criterion="beauty"),
    "subset is 'studio'": lambda row: row.update(subset="studio"),
    "does not go with": lambda row: row.update(subset="colloquialness"),
    "group_id is ''": lambda row: row.update(group_id=""),
    "license is 3": lambda row: row.update(license=3),
    r"source is '\\ud800'": lambda row: row.update(source="\ud800"),
    "no columns": lambda row: row.pop("language"),
    "secondary is 'Bored'": lambda row: row.update(secondary="Bored"),
    "chosen: is None": lambda row: row.update(chosen=None),
    "chosen: has 3 turns": lambda row: row["chosen"].append(make_turn("user")),
    "has 18 turns": lambda row: row.update(rejected=[make_turn("user"), make_turn("assistant")] * 9),
    "must alternate": lambda row: row["rejected"][1].update(role="user"),
    "chosen turn 1: lasts 60.1 s": lambda row: row["chosen"][1].update(duration_s=60.1),
    "rejected turn 0: lasts 0.0 s": lambda row: row["rejected"][0].update(duration_s=0.0),
}


@pytest.mark.parametrize("named", BROKEN)
def test_a_broken_row_is_refused_by_name(named, row):
    BROKEN[named](row)
    with pytest.raises(ValueError, match=f"p1.*{named}"):
        validate_row(row)


SUBSETS = ("scripted", "semi_wild", "semi_wild", "colloquialness")
LABELS = [
    make_label(f"p{row}", subset=SUBSETS[row % 4], group=f"g{row % 7}", synthesizer=f"s{row % 3}") for row in range(60)
]


def test_subsets_share_a_sample_and_a_small_one_leaves_its_place_to_the_others():
    drawn = [LABELS[row]["subset"] for row in sample_rows(LABELS, 9)]
    assert {name: drawn.count(name) for name in set(drawn)} == dict.fromkeys(SUBSETS, 3)
    few = [make_label("a"), *(make_label(f"b{row}", subset="wild") for row in range(10))]
    assert sorted(few[row]["subset"] for row in sample_rows(few, 5)) == ["scripted", *["wild"] * 4]


def test_within_a_subset_no_recording_comes_twice_before_all_came_once_and_synthesizers_are_spread():
    drawn = [LABELS[row] for row in sample_rows(LABELS, 0) if LABELS[row]["subset"] == "semi_wild"]
    assert len({label["group_id"] for label in drawn[:7]}) == 7
    first = [label["synthesizer"] for label in drawn[:6]]
    assert max(first.count(name) for name in set(first)) <= 3


def test_a_larger_sample_of_the_same_seed_holds_the_smaller_one():
    smaller, larger, everything = (sample_rows(LABELS, size, seed=3) for size in (10, 25, 0))
    assert (larger[:10], everything[:25], sorted(everything)) == (smaller, larger, list(range(60)))
    assert sample_rows(LABELS, 10, seed=4) != smaller
