import doctest
import itertools

import pytest
from support.audit_world import make_dataset, make_label

from sdiareward.audio_sdiareward import AudioError
from sdiareward.audit.conditions import PairSample
from sdiareward.pairs import sampling
from sdiareward.pairs.sampling import sample_rows
from sdiareward.perturbations.decoded_pairs import decode_pairs, to_messages


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(sampling).failed == 0


def many(num_pairs=60):
    return [
        make_label(
            f"p{row}",
            subset=("scripted", "semi_wild", "semi_wild", "colloquialness")[row % 4],
            group=f"g{row % 7}",
            synthesizer=("flite", "piper", "world")[row % 3],
        )
        for row in range(num_pairs)
    ]


def test_subsets_share_a_sample_and_a_small_one_leaves_its_place_to_the_others():
    labels = many()
    drawn = [labels[row]["subset"] for row in sample_rows(labels, 9)]
    assert {name: drawn.count(name) for name in set(drawn)} == {"scripted": 3, "semi_wild": 3, "colloquialness": 3}
    few = [make_label("a"), *(make_label(f"b{row}", subset="wild") for row in range(10))]
    assert sorted(few[row]["subset"] for row in sample_rows(few, 5)) == ["scripted", *["wild"] * 4]


def test_within_a_subset_no_recording_comes_twice_before_all_came_once():
    labels = many()
    drawn = [labels[row] for row in sample_rows(labels, 0) if labels[row]["subset"] == "semi_wild"]
    assert len({label["group_id"] for label in drawn[:7]}) == 7
    # And the synthesizers of a round are spread as well.
    first = [label["synthesizer"] for label in drawn[:6]]
    assert max(first.count(name) for name in set(first)) <= 3


def test_a_larger_sample_of_the_same_seed_holds_the_smaller_one():
    labels = many()
    smaller, larger, everything = (sample_rows(labels, size, seed=3) for size in (10, 25, 0))
    assert larger[:10] == smaller
    assert everything[:25] == larger
    assert sorted(everything) == list(range(60))
    assert sample_rows(labels, 10, seed=4) != smaller


@pytest.fixture(scope="module")
def pairs(make_tone):
    return make_dataset(make_tone, 20)


def test_pairs_are_decoded_when_they_are_asked_for_and_only_a_few_are_kept(pairs):
    labels = [make_label(f"p{row}") for row in range(20)]
    sample = PairSample(pairs, labels, range(19, -1, -1))
    assert [pair.pair_id for pair in itertools.islice(sample, 3)] == ["p19", "p18", "p17"]
    assert sample[0] is sample[0]
    first = sample[0]
    assert [pair.pair_id for pair in sample] == [f"p{row}" for row in range(19, -1, -1)]
    assert sample[0] is not first
    assert [label["pair_id"] for label in sample[2:4].labels] == ["p17", "p16"]
    assert [label["pair_id"] for label in sample.keep(["p1", "p18"]).labels] == ["p18", "p1"]


def test_a_pair_in_memory_is_the_pair_of_the_data_set(pairs, make_tone):
    (pair,) = decode_pairs(pairs, [1])
    assert (pair.pair_id, pair.criterion, pair.subset, pair.license) == ("p1", *["colloquialness"] * 2, "CC0-1.0")
    assert [turn.role for turn in pair.chosen] == ["user", "assistant", "user", "assistant"]
    assert pair.rejected[2].text == "so, um, that is 1 2"
    assert pair.chosen[1].array == pytest.approx(make_tone(0.12, 240.0, 1), abs=1e-4)
    kinds = [[item["type"] for item in message["content"]] for message in to_messages(pair.chosen, text=False)]
    assert kinds == [["audio"]] * 4


def test_a_pair_can_be_read_without_its_recordings(pairs):
    (pair,), (outline,) = decode_pairs(pairs, [1]), decode_pairs(pairs, [1], audio=False)
    assert (outline.pair_id, outline.criterion, outline.group_id) == (pair.pair_id, pair.criterion, pair.group_id)
    assert [(turn.role, turn.text) for turn in outline.chosen] == [(turn.role, turn.text) for turn in pair.chosen]
    assert [len(turn.array) for turn in [*outline.chosen, *outline.rejected]] == [0] * 8


def test_a_system_turn_is_told_as_one(pairs):
    rows = pairs.select([0]).to_list()
    rows[0]["chosen"] = [{**rows[0]["chosen"][0], "role": "system", "audio": None}, *rows[0]["chosen"]]
    with pytest.raises(AudioError, match="pair p0, chosen: begins with a system turn; give the spoken turns alone"):
        decode_pairs(pairs.from_list(rows), [0])


def test_a_turn_without_a_recording_is_named(pairs):
    rows = pairs.select([0]).to_list()
    rows[0]["rejected"][1]["audio"] = None
    with pytest.raises(AudioError, match="pair p0, rejected turn 1: has 0 recordings"):
        decode_pairs(pairs.from_list(rows), [0])
