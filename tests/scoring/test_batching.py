import numpy as np
import pytest

from sdiareward.scoring.batching import (
    Message,
    build_prefix_tree,
    digest_clip,
    plan_batches,
    split_messages,
)
from sdiareward.scoring.outcomes import complete_groups


START, BOS, AUDIO, EOS = 1, 2, 3, 4


def message(*ids, clips=()):
    return Message(np.array([START, *ids]), tuple(clips))


def shape(segments):
    """Return the parent and the number of messages of each segment."""
    return [(segment.parent, len(segment.messages)) for segment in segments]


def test_equal_samples_have_one_digest_and_any_other_sample_another():
    clip = np.linspace(-1, 1, 400, dtype=np.float32)
    assert digest_clip(clip) == digest_clip(clip[::-1].copy()[::-1])
    assert digest_clip(clip) != digest_clip(np.append(clip, np.float32(0)))


def test_a_dialogue_is_split_at_its_messages_and_clips_stay_with_them():
    ids = np.array([START, 9, START, BOS, AUDIO, AUDIO, EOS, BOS, AUDIO, EOS, START, BOS, AUDIO, EOS])
    messages = split_messages(ids, [b"a", b"b", b"c"], START, BOS)
    assert [len(each.input_ids) for each in messages] == [2, 8, 4]
    assert [each.clips for each in messages] == [(), (b"a", b"b"), (b"c",)]


FIRST, SECOND, THIRD, FOURTH, FIFTH = (message(number) for number in range(5, 10))
SPOKEN = [[message(BOS, AUDIO, EOS, clips=[digest])] for digest in (b"one", b"other")]
# Dialogues, parent and number of messages of each segment, last segment of each dialogue.
TREES = {
    "nothing shared": ([[FIRST, SECOND], [THIRD]], [(None, 2), (None, 1)], [0, 1]),
    "a prefix": ([[FIRST, SECOND, THIRD], [FIRST, SECOND, FOURTH, FIFTH]], [(None, 2), (0, 1), (0, 2)], [1, 2]),
    "a dialogue as a prefix, and equal ones": (
        [[FIRST, SECOND], [FIRST, SECOND, THIRD], [FIRST, SECOND]],
        [(None, 2), (0, 1)],
        [0, 1, 0],
    ),
    "equal words in another voice": (SPOKEN, [(None, 1), (None, 1)], [0, 1]),
    "no dialogues": ([], [], []),
}


@pytest.mark.parametrize(("dialogues", "segments", "last"), TREES.values(), ids=TREES)
def test_a_shared_prefix_is_one_segment_and_the_parent_of_the_rest(dialogues, segments, last):
    found, found_last = build_prefix_tree(dialogues)
    assert (shape(found), found_last) == (segments, last)
    alone, _ = build_prefix_tree(dialogues, share_prefixes=False)
    assert shape(alone) == [(None, len(dialogue)) for dialogue in dialogues]


def test_some_dialogues_share_a_longer_prefix_than_all():
    system, user = message(5), message(6)
    dialogues = [[system, user, message(7)], [system, message(8)], [system, user, message(9)]]
    segments, last = build_prefix_tree(dialogues)
    paths = []
    for index in last:
        path = []
        while index is not None:
            path = segments[index].messages + path
            index = segments[index].parent
        paths.append(path)
    assert paths == dialogues
    assert sorted(segment.num_tokens for segment in segments) == [2] * 5


SINGLE = [[index] for index in range(5)]


@pytest.mark.parametrize(
    ("lengths", "groups", "budget", "padded", "batches"),
    [
        ([10, 40, 20, 30, 50], SINGLE, 60, False, [[4], [1], [3, 2, 0]]),
        ([10, 40, 20, 30, 50], SINGLE, 1, False, [[4], [1], [3], [2], [0]]),
        ([10, 40, 20, 30, 50], SINGLE, 1000, False, [[4, 1, 3, 2, 0]]),
        ([10, 50, 40, 5], [[0, 1], [2, 3]], 60, False, [[0, 1], [2, 3]]),
        ([10, 50, 40, 5], [[2, 3], [0, 1]], 20, False, [[0, 1], [2, 3]]),
        # Padded, 100 and 95 waste 5 of 200; with 80 it would be 25 of 300.
        ([100, 95, 80, 79], SINGLE[:4], 1000, True, [[0, 1], [2, 3]]),
        ([100, 95, 80, 79], SINGLE[:4], 199, True, [[0], [1], [2, 3]]),
        ([], [], 100, False, []),
    ],
)
def test_batches_are_filled_longest_first_with_whole_groups_up_to_the_budget(lengths, groups, budget, padded, batches):
    assert list(plan_batches(lengths, groups, budget, padded=padded)) == batches


@pytest.mark.parametrize("padded", [False, True])
def test_every_dialogue_is_in_one_batch(padded):
    lengths = np.random.default_rng(0).integers(100, 2000, 300).tolist()
    groups = [[index, index + 1] for index in range(0, 300, 2)]
    batches = list(plan_batches(lengths, groups, 8192, padded=padded))
    assert sorted(index for batch in batches for index in batch) == list(range(300))
    assert all(sum(lengths[index] for index in batch) <= 8192 for batch in batches)


def test_a_group_is_yielded_when_its_last_member_comes_and_an_incomplete_one_is_not():
    results = iter([(3, 0.3), (0, 0.0), (2, 0.2), (4, 0.4), (1, 0.1)])
    groups = complete_groups(results, 2)
    assert next(groups) == (1, [0.2, 0.3])
    assert next(results) == (4, 0.4)
    assert list(groups) == [(0, [0.0, 0.1])]
