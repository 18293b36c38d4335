from support.audit_world import make_label

from sdiareward.pairs.sampling import sample_rows


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
