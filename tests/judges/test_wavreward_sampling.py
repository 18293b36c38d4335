import pytest

from sdiareward.judges.wavreward.sampling import ScenarioSampler, group_by_scenario


SCENARIOS = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]


def sampler(**changes):
    options = {"num_generations": 2, "prompts_per_batch": 6, "repeat_count": 1, **changes}
    return ScenarioSampler(SCENARIOS, **options)


def batches(rows, size):
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def test_rows_are_grouped_by_scenario_in_order_of_appearance():
    assert group_by_scenario(["b", "a", "b", "a", "c"]) == [[0, 2], [1, 3], [4]]


def test_a_batch_holds_whole_scenarios_with_each_answer_repeated_for_its_group():
    rows = list(sampler())
    assert len(rows) == len(sampler()) == 24
    for batch in batches(rows, 12):
        assert batch[::2] == batch[1::2]
        assert {row // 3 for row in batch[:6]} != {row // 3 for row in batch[6:]}
        for scenario in (batch[:6], batch[6:]):
            assert sorted(set(scenario)) in SCENARIOS


def test_a_batch_is_repeated_for_each_step_that_uses_it():
    rows = list(sampler(repeat_count=3))
    assert len(rows) == 72
    assert rows[:12] == rows[12:24] == rows[24:36] != rows[36:48]


def test_without_multi_sample_each_scenario_gives_one_answer():
    single = sampler(multi_sample=False, prompts_per_batch=5)
    epochs = []
    for epoch in range(6):
        single.set_epoch(epoch)
        rows = list(single)
        assert rows[::2] == rows[1::2]
        assert sorted(row // 3 for row in rows[::2]) == [0, 1, 2, 3, 4]
        epochs.append(sorted(rows[::2]))
    assert len({tuple(rows) for rows in epochs}) > 1
    assert {row % 3 for rows in epochs for row in rows} == {0, 1, 2}


def test_the_order_depends_on_seed_and_epoch_only():
    first, same, other = sampler(seed=1), sampler(seed=1), sampler(seed=2)
    assert list(first) == list(same) == list(first)
    assert list(first) != list(other)
    same.set_epoch(1)
    assert list(first) != list(same)


def test_invalid_batch_sizes_are_refused():
    with pytest.raises(ValueError, match="4 prompts, which is no multiple of a scenario's 3 answers"):
        sampler(prompts_per_batch=4)
    with pytest.raises(ValueError, match="there are 5 scenarios, and a generation batch takes 6"):
        sampler(prompts_per_batch=18)
    with pytest.raises(ValueError, match=r"scenarios have \[2, 3\] answers; all must have the same number"):
        ScenarioSampler([[0, 1], [2, 3, 4]], num_generations=2, prompts_per_batch=3, repeat_count=1)
