"""Pairs that a run of fewer steps than an epoch draws."""

import pickle

import datasets
import pytest
from trl import RewardConfig

from sdiareward.training.augmentation import AugmentationSettings, AugmentedPairs
from sdiareward.training.setup import draw_needed


NUM_PAIRS = 100


@pytest.fixture(scope="module")
def pairs():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [
        {"pair_id": f"p{number}", "criterion": "joint", "chosen": turns, "rejected": turns}
        for number in range(NUM_PAIRS)
    ]
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def train_for(tmp_path):
    def make(max_steps, **options):
        return RewardConfig(
            str(tmp_path), max_steps=max_steps, per_device_train_batch_size=2, bf16=False, use_cpu=True, **options
        )

    return make


def test_few_steps_draw_the_pairs_that_they_need_and_a_twentieth_more(pairs, train_for):
    # 10 steps of 2 x 2 pairs.
    drawn = draw_needed(pairs, train_for(10, gradient_accumulation_steps=2))["pair_id"]
    assert len(drawn) == len(set(drawn)) == 42
    assert list(drawn) == list(draw_needed(pairs, train_for(10, gradient_accumulation_steps=2))["pair_id"])
    assert list(drawn) != list(draw_needed(pairs, train_for(10, gradient_accumulation_steps=2, seed=1))["pair_id"])


@pytest.mark.parametrize("max_steps", [-1, 50])
def test_an_epoch_takes_all(pairs, train_for, max_steps):
    assert draw_needed(pairs, train_for(max_steps)) is pairs


def test_made_pairs_are_drawn_in_the_same_way(pairs, train_for):
    rows = AugmentedPairs(pairs, AugmentationSettings(["gain"], augmented_copies=2))
    drawn = draw_needed(rows, train_for(100))
    assert len(drawn) == 210
    assert set(drawn["pair_id"]) < set(rows["pair_id"])
    # Each row is the one that its name says, also in another process.
    assert [drawn[number]["pair_id"] for number in range(210)] == drawn["pair_id"]
    assert pickle.loads(pickle.dumps(drawn))["pair_id"] == drawn["pair_id"]
    assert drawn.select([3, 5])["pair_id"] == [drawn["pair_id"][3], drawn["pair_id"][5]]
    assert len({rows.fingerprint(), drawn.fingerprint(), drawn.select([3]).fingerprint()}) == 3
