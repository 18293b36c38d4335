"""A run whose `max_steps` end within an epoch draws and reads only the pairs that it needs."""

import pickle

import datasets
import pytest
from trl import RewardConfig

from sdiareward.training.arguments import TrainArguments
from sdiareward.training.augmentation import AugmentationSettings, AugmentedPairs
from sdiareward.training.setup import draw_needed, set_up


@pytest.fixture(scope="module")
def pairs():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"pair_id": f"p{row}", "criterion": "modality", "chosen": turns, "rejected": turns} for row in range(100)]
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def train_for(tmp_path):
    def make(max_steps, **options):
        options |= {"per_device_train_batch_size": 2, "bf16": False, "use_cpu": True}
        return RewardConfig(str(tmp_path), max_steps=max_steps, **options)

    return make


def test_few_steps_draw_the_pairs_that_they_need_and_a_twentieth_more(pairs, train_for):
    # 10 steps of 2 x 2 pairs.
    drawn, again, other = (
        list(draw_needed(pairs, train_for(10, gradient_accumulation_steps=2, seed=seed))["pair_id"])
        for seed in (42, 42, 1)
    )
    assert len(drawn) == len(set(drawn)) == 42
    assert drawn == again != other


@pytest.mark.parametrize("max_steps", [-1, 50])
def test_an_epoch_takes_all(pairs, train_for, max_steps):
    assert draw_needed(pairs, train_for(max_steps)) is pairs


def test_added_pairs_are_drawn_in_the_same_way(pairs, train_for):
    rows = AugmentedPairs(pairs, AugmentationSettings(["gain"], augmented_copies=2))
    drawn = draw_needed(rows, train_for(100))
    assert len(drawn) == 210
    assert set(drawn["pair_id"]) < set(rows["pair_id"])
    # Each row is the one that its name says, also in another process.
    assert [drawn[number]["pair_id"] for number in range(210)] == drawn["pair_id"]
    assert pickle.loads(pickle.dumps(drawn))["pair_id"] == drawn["pair_id"]
    assert drawn.select([3, 5])["pair_id"] == [drawn["pair_id"][3], drawn["pair_id"][5]]
    assert len({rows.fingerprint(), drawn.fingerprint(), drawn.select([3]).fingerprint()}) == 3


def test_a_run_reads_no_other_pair(tiny_checkpoint, tone_pairs, train_for):
    splits = {"train": tone_pairs, "validation": tone_pairs}
    rows = set_up(TrainArguments("model", "data"), str(tiny_checkpoint), splits, train_for(1)).splits
    assert {split: len(rows[split]) for split in splits} == {"train": 3, "validation": 4}
