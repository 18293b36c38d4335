import pytest

from sdiareward.dataset_builder.pairing.reference_clips import Clip, NoReference, choose_references


def clip(role, duration_s, num_words=10):
    return Clip(role, " ".join(["word"] * num_words), duration_s)


def user(*durations_s):
    return [clip("user", duration_s) for duration_s in durations_s]


LIMITS = [clip("user", 3.0), clip("user", 31.0), clip("user", 3.0), clip("user", 20.0, 60), clip("user", 2.0)]
BOTH = [clip("user", 6.0), clip("assistant", 12.0), clip("user", 29.0), clip("assistant", 31.0)]
JOINED = [clip("user", 2.0), clip("assistant", 9.0), *user(2.0, 1.0, 4.0)]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        # The longest usable turn of each role; of equally long turns the first.
        (BOTH, {"user": (2,), "assistant": (1,)}),
        (user(8.0, 8.0), {"user": (0,)}),
        # 5 and 30 seconds and 59 words are usable.
        (user(5.0), {"user": (0,)}),
        (user(4.999), None),
        (user(30.0), {"user": (0,)}),
        (user(30.001), None),
        ([clip("user", 10.0, 59)], {"user": (0,)}),
        ([clip("user", 10.0, 60)], None),
        ([clip("user", 5.0, 59)], {"user": (0,)}),
        ([clip("user", 30.0, 59)], {"user": (0,)}),
        # Short turns are joined in order up to 5 s, but a single usable turn is preferred.
        (JOINED, {"user": (0, 2, 3), "assistant": (1,)}),
        (user(3.0, 3.0, 5.5), {"user": (2,)}),
        # A turn that would bring too many words begins a new clip.
        ([clip("user", 2.0, 30), clip("user", 4.0, 30), clip("user", 1.0, 10)], {"user": (1, 2)}),
        # A turn over the limits is never part of a joined clip.
        (LIMITS, None),
        ([*LIMITS, clip("user", 3.0)], {"user": (4, 5)}),
    ],
)
def test_references_follow_the_rules(turns, expected):
    if expected is None:
        with pytest.raises(NoReference):
            choose_references(turns)
    else:
        assert choose_references(turns) == expected


def test_roles_come_in_the_order_in_which_they_first_speak():
    assert list(choose_references([clip("assistant", 8.0), clip("user", 8.0)])) == ["assistant", "user"]


def test_a_dialogue_is_pruned_when_one_role_has_no_clip():
    with pytest.raises(NoReference, match="'assistant'"):
        choose_references([clip("user", 8.0), clip("assistant", 1.25, 3), clip("assistant", 40.0, 80)])
