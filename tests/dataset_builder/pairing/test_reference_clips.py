import pytest

from sdiareward.dataset_builder.pairing.reference_clips import Clip, NoReference, choose_references


def clip(role, duration_s, num_words=10):
    return Clip(role, " ".join(["word"] * num_words), duration_s)


def test_the_longest_usable_turn_of_each_role_is_taken():
    turns = [clip("user", 6.0), clip("assistant", 12.0), clip("user", 29.0), clip("assistant", 31.0)]
    assert choose_references(turns) == {"user": (2,), "assistant": (1,)}


def test_of_equally_long_turns_the_first_is_taken():
    assert choose_references([clip("user", 8.0), clip("user", 8.0)]) == {"user": (0,)}


def test_roles_come_in_the_order_in_which_they_first_speak():
    assert list(choose_references([clip("assistant", 8.0), clip("user", 8.0)])) == ["assistant", "user"]


@pytest.mark.parametrize(
    ("duration_s", "num_words", "is_usable"),
    [
        (5.0, 10, True),
        (4.999, 10, False),
        (30.0, 10, True),
        (30.001, 10, False),
        (10.0, 59, True),
        (10.0, 60, False),
        (5.0, 59, True),
        (30.0, 59, True),
    ],
)
def test_five_and_thirty_seconds_and_fifty_nine_words_are_still_usable(duration_s, num_words, is_usable):
    turns = [clip("user", duration_s, num_words)]
    if is_usable:
        assert choose_references(turns) == {"user": (0,)}
    else:
        with pytest.raises(NoReference):
            choose_references(turns)


def test_short_turns_are_joined_in_order_until_they_reach_five_seconds():
    turns = [clip("user", 2.0), clip("assistant", 9.0), clip("user", 2.0), clip("user", 1.0), clip("user", 4.0)]
    assert choose_references(turns) == {"user": (0, 2, 3), "assistant": (1,)}


def test_a_single_usable_turn_is_preferred_to_joined_ones_before_it():
    assert choose_references([clip("user", 3.0), clip("user", 3.0), clip("user", 5.5)]) == {"user": (2,)}


def test_a_turn_that_would_bring_too_many_words_begins_a_new_clip():
    turns = [clip("user", 2.0, 30), clip("user", 4.0, 30), clip("user", 1.0, 10)]
    assert choose_references(turns) == {"user": (1, 2)}


def test_a_turn_over_the_limits_is_never_part_of_a_joined_clip():
    turns = [clip("user", 3.0), clip("user", 31.0), clip("user", 3.0), clip("user", 20.0, 60), clip("user", 2.0)]
    with pytest.raises(NoReference):
        choose_references(turns)
    assert choose_references([*turns, clip("user", 3.0)]) == {"user": (4, 5)}


def test_a_dialogue_is_pruned_when_one_role_has_no_clip_and_the_error_lists_its_turns():
    turns = [clip("user", 8.0), clip("assistant", 1.25, 3), clip("assistant", 40.0, 80)]
    with pytest.raises(
        NoReference, match="'assistant'.*1.2 s with 3 words, 40.0 s with 80 words.*5 to 30 s.*60 words"
    ):
        choose_references(turns)
