import pytest

from sdiareward.training.batches import PairBatch, StepSampler, make_batch, split_by_tokens


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


def test_another_seed_has_other_epochs():
    one, other = (StepSampler(LENGTHS, 4, 1, 1, seed=seed, drop_last=False) for seed in (0, 1))
    one.set_epoch(1)
    assert list(one) != list(other)


def test_the_processes_get_pairs_of_like_lengths():
    one, other = deal(LENGTHS, 2, 4, drop_last=False)
    for mine, yours in zip(one, other, strict=True):
        mine, yours = ([LENGTHS[index] for index in step] for step in (mine, yours))
        assert mine == sorted(mine, reverse=True)
        assert all(a >= b for a, b in zip(mine, yours, strict=True))
        assert all(b >= a for a, b in zip(mine[1:], yours, strict=False))


def test_a_step_that_cannot_be_dealt_evenly_gives_a_pair_twice():
    one, other = deal(LENGTHS[:7], 2, 4, drop_last=False)
    assert [len(steps[-1]) for steps in (one, other)] == [2, 2]
    assert len(set(one[-1])) == 2
    assert other[-1][0] == other[-1][1]
    assert sorted({index for steps in (one, other) for step in steps for index in step}) == list(range(7))


def test_a_last_step_with_fewer_pairs_than_processes_is_left_out():
    assert [len(steps) for steps in deal(LENGTHS[:9], 2, 4, drop_last=False)] == [2, 2]
    assert [len(steps) for steps in deal(LENGTHS, 2, 4, drop_last=True)] == [2, 2]


def test_a_pair_that_comes_twice_counts_once():
    rows = [{"row": row, "pair_id": str(row), "length": row} for row in (5, 3, 5)]
    sides = {"chosen": [1, 2, 3], "rejected": [4, 5, 6]}
    batch = make_batch(rows, sides, lambda found: {"sides": found})["pairs"]
    assert batch.counts == [True, True, False]
    assert len(batch) == 3
    assert batch.inputs() == {"sides": [1, 2, 3, 4, 5, 6]}
    part = batch.part(1, 3)
    assert isinstance(part, PairBatch)
    assert (part.pair_ids, part.lengths_tokens, part.counts) == (["3", "5"], [3, 5], [True, False])
    assert part.inputs() == {"sides": [2, 3, 5, 6]}


@pytest.mark.parametrize(
    ("budget", "alone", "expected"),
    [
        (100, 0, [(0, 4)]),
        (60, 0, [(0, 2), (2, 4)]),
        (1, 0, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (100, 1, [(0, 3), (3, 4)]),
        (60, 1, [(0, 2), (2, 3), (3, 4)]),
    ],
)
def test_a_step_is_cut_by_its_tokens(budget, alone, expected):
    assert split_by_tokens([40, 20, 20, 10], budget, alone) == expected
