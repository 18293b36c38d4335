import pytest

from sdiareward.dataset_builder.episodes import Episode
from sdiareward.dataset_builder.pairing.splits import assign_splits, choose_synthesizers, split_unit


def make_episode(name, group, source="asterisk", split_group=None):
    return Episode(name, source, "scripted", group, (), "Inform", "Unknown", "en", "CC0-1.0", split_group)


@pytest.fixture
def episodes():
    return [make_episode(f"e{i}", f"g{i % 20}", source) for source in ("a", "b") for i in range(100)]


def test_every_source_is_split_in_the_shares_asked_for(episodes):
    assignment = assign_splits(episodes, validation=0.1, test=0.2, seed=0)
    for source in ("a", "b"):
        splits = [assignment[split_unit(e)] for e in episodes if e.source == source]
        assert {name: splits.count(name) for name in set(splits)} == {"train": 70, "validation": 10, "test": 20}


def test_splits_depend_on_the_seed_and_not_on_the_order_of_the_episodes(episodes):
    first, second = (assign_splits(episodes, validation=0.1, test=0.2, seed=seed) for seed in (0, 1))
    assert first == assign_splits(reversed(episodes), validation=0.1, test=0.2, seed=0) != second


def test_a_coarser_unit_is_held_out_whole():
    episodes = [make_episode(f"e{i}", f"g{i}", split_group=f"domain{i % 5}") for i in range(50)]
    assignment = assign_splits(episodes, validation=0.2, test=0.2, seed=0)
    assert sorted(assignment.values()) == ["test", "train", "train", "train", "validation"]


def test_shares_leave_something_for_training_or_all_is_test(episodes):
    with pytest.raises(ValueError, match=r"validation=0.5 and test=0.5"):
        assign_splits([], validation=0.5, test=0.5, seed=0)
    assert set(assign_splits(episodes, validation=0.1, test=1.0, seed=0).values()) == {"test"}


def test_synthesizers_are_spread_over_dialogues_and_stay_with_them():
    names = ("piper", "world", "flite")
    chosen = [choose_synthesizers(f"d{i}", names, 1, seed=0)[0] for i in range(60)]
    assert set(chosen) == set(names)
    assert choose_synthesizers("d1", reversed(names), 1, seed=0) == chosen[1:2]
    assert sorted(choose_synthesizers("d1", names, None, seed=0)) == sorted(names)
