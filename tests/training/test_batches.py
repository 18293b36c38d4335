import dataclasses

import numpy as np
import pytest
import torch

from sdiareward.scoring.batching import Message
from sdiareward.training.batches import PairBatch, StepSampler, split_by_tokens


def deal(lengths, num_processes, pairs_a_step, epoch=0, **options):
    """Return for each process its indices in each step."""
    steps = []
    for rank in range(num_processes):
        sampler = StepSampler(lengths, pairs_a_step, dp_size=num_processes, grad_accum=1, seed=7, rank=rank, **options)
        sampler.set_epoch(epoch)
        steps.append(list(sampler))
        assert len(steps[-1]) == len(sampler)
    return steps


LENGTHS = [10, 50, 20, 40, 30, 60, 15, 25, 35, 45]


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_a_step_holds_the_same_pairs_whatever_the_number_of_processes(num_processes):
    alone = deal(LENGTHS, 1, 4, drop_last=False)[0]
    shared = deal(LENGTHS, num_processes, 4, drop_last=False)
    for step, expected in enumerate(alone[:2]):
        dealt = [index for process in shared for index in process[step]]
        assert sorted(dealt) == sorted(expected)
        assert len({len(process[step]) for process in shared}) == 1


def test_an_epoch_holds_every_pair_once_and_another_epoch_another_order():
    first, second = (deal(LENGTHS, 1, 4, epoch, drop_last=False)[0] for epoch in (0, 1))
    for steps in (first, second):
        assert sorted(index for step in steps for index in step) == list(range(10))
        assert [len(step) for step in steps] == [4, 4, 2]
    assert first != second
    assert first == deal(LENGTHS, 1, 4, 0, drop_last=False)[0]
    # An epoch of one seed is no epoch of its neighbour.
    other = StepSampler(LENGTHS, 4, 1, 1, seed=8, drop_last=False)
    assert list(other) != second


def test_the_processes_get_pairs_of_like_lengths():
    one, other = deal(LENGTHS, 2, 4, drop_last=False)
    for mine, yours in zip(one, other, strict=True):
        mine, yours = ([LENGTHS[index] for index in step] for step in (mine, yours))
        assert mine == sorted(mine, reverse=True)
        assert all(a >= b for a, b in zip(mine, yours, strict=True))
        assert all(b >= a for a, b in zip(mine[1:], yours, strict=False))


def test_a_step_that_cannot_be_divided_evenly_repeats_a_pair():
    one, other = deal(LENGTHS[:7], 2, 4, drop_last=False)
    assert [len(steps[-1]) for steps in (one, other)] == [2, 2]
    assert len(set(one[-1])) == 2
    assert other[-1][0] == other[-1][1]
    assert sorted({index for steps in (one, other) for step in steps for index in step}) == list(range(7))


def test_a_last_step_with_fewer_pairs_than_processes_is_dropped():
    assert [len(steps) for steps in deal(LENGTHS[:9], 2, 4, drop_last=False)] == [2, 2]
    assert [len(steps) for steps in deal(LENGTHS, 2, 4, drop_last=True)] == [2, 2]


@pytest.fixture
def batch():
    """Three pairs: side `n` is one message of `n` tokens with the clip `n`, its mel features a column of `n`."""
    sides = [[Message(np.arange(number), (bytes([number]),))] for number in range(1, 7)]
    clips = {bytes([number]): torch.full((2, 1), number) for number in range(1, 7)}
    return PairBatch(["5", "3", "5"], [5, 7, 9], [True, True, False], sides[:3], sides[3:], clips)


def test_the_inputs_are_the_chosen_sides_then_the_rejected_ones_and_their_clips(batch):
    selected = batch.select(1, 3)
    assert (selected.pair_ids, selected.lengths_tokens, selected.is_real) == (["3", "5"], [7, 9], [True, False])
    inputs = selected.make_inputs()
    assert [len(messages[0].input_ids) for messages in inputs["dialogues"]] == [2, 3, 5, 6]
    assert sorted(inputs["mels"]) == [bytes([number]) for number in (2, 3, 5, 6)]
    assert inputs["attention_mask"].sum() == 16
    assert "vectors" in dataclasses.replace(batch, clips_as="vectors").make_inputs()


@pytest.mark.parametrize(
    ("budget", "num_single", "expected"),
    [
        (100, 0, [(0, 4)]),
        (60, 0, [(0, 2), (2, 4)]),
        (1, 0, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (100, 1, [(0, 3), (3, 4)]),
        (60, 1, [(0, 2), (2, 3), (3, 4)]),
    ],
)
def test_a_step_is_split_by_its_tokens(budget, num_single, expected):
    assert split_by_tokens([40, 20, 20, 10], budget, num_single) == expected
