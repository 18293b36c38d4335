"""Training pairs through other channels and against attacks; they are read like plain pairs."""

import json
import pickle

import datasets
import numpy as np
import pytest

from sdiareward.audio_sdiareward import read_audio
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.perturbations.registry import HELD_OUT, PERTURBATIONS
from sdiareward.train import main
from sdiareward.training.augmentation import PRESETS, AugmentationSettings, AugmentedPairs
from sdiareward.training.batches import PairCollator
from sdiareward.training.precompute import precompute_pairs
from sdiareward.training.trainer import SDiaRewardTrainer


@pytest.fixture(scope="module")
def pairs(tone_pairs):
    return tone_pairs.add_column("pair_id", [f"p{row}" for row in range(4)])


def contents(row, side, kind):
    items = [item for message in turns_to_messages(row[side]) for item in message["content"]]
    return [item[kind] for item in items if item["type"] == kind]


def arrays(row, side):
    return list(map(read_audio, contents(row, side, "audio")))


def texts(row, side):
    return contents(row, side, "text")


def gains(row, plain, side):
    """Return the factor by which each turn is louder than it was."""
    both = zip(arrays(row, side), arrays(plain, side), strict=True)
    return [float(np.linalg.norm(new) / np.linalg.norm(old)) for new, old in both]


def test_each_pair_is_followed_by_its_copies_and_its_attacks(pairs):
    settings = AugmentationSettings(["gain"], augmented_copies=2, hard_negatives=["silence"])
    rows = AugmentedPairs(pairs, settings)
    assert len(rows) == 16
    assert rows["pair_id"][:5] == ["p0", "p0, copy 1", "p0, copy 2", "p0, silence", "p1"]
    assert rows["criterion"][:5] == ["modality"] * 4 + ["colloquialness"]
    assert rows[0] == pairs[0]
    assert [rows[index]["pair_id"] for index in range(16)] == rows["pair_id"]
    with pytest.raises(IndexError, match="row 16 of 16"):
        rows[16]


def test_copies_are_cut_to_what_the_model_hears(pairs):
    rows = AugmentedPairs(pairs, AugmentationSettings(["polarity"]), max_turn_s=0.1)
    changed = arrays(rows[1], "chosen")
    assert [len(array) for array in changed] == [1760, 1760]
    assert np.array_equal(changed[0], -arrays(pairs[0], "chosen")[0][:1760])


def test_every_turn_is_perturbed_alike_on_both_sides_or_on_each(pairs):
    both, each = (AugmentedPairs(pairs, AugmentationSettings(["gain"], augment_sides=s))[1] for s in ("both", "each"))
    factors = gains(both, pairs[0], "chosen") + gains(both, pairs[0], "rejected")
    assert len(factors) == 4
    assert factors == pytest.approx([factors[0]] * 4, rel=1e-5)
    assert 10 ** (-6 / 20) <= factors[0] <= 10 ** (6 / 20)
    assert abs(factors[0] - 1) > 0.01
    assert texts(both, "chosen") == texts(pairs[0], "chosen")
    chosen, rejected = (gains(each, pairs[0], side) for side in ("chosen", "rejected"))
    assert chosen == pytest.approx([chosen[0]] * 2, rel=1e-5)
    assert abs(chosen[0] - rejected[0]) > 0.01


def samples(rows, index):
    return [array.tolist() for side in ("chosen", "rejected") for array in arrays(rows[index], side)]


@pytest.mark.slow
def test_a_row_depends_on_pair_copy_and_seed_alone(pairs):
    settings = AugmentationSettings(["all"], augmented_copies=3)
    rows = AugmentedPairs(pairs, settings)
    again = pickle.loads(pickle.dumps(rows))
    other = AugmentedPairs(pairs, settings, seed=1)
    assert rows.fingerprint() == again.fingerprint() != other.fingerprint()
    for index in reversed(range(len(again))):
        assert samples(again, index) == samples(rows, index), rows["pair_id"][index]
    copies = [samples(rows, index) for index in (1, 2, 3, 5)] + [samples(other, 1)]
    assert all(first != second for at, first in enumerate(copies) for second in copies[:at])


def test_the_presets_omit_what_the_audit_holds_out_and_channel_moves_nothing_in_time():
    assert HELD_OUT == ("pink_noise", "narrow_band", "opus")
    assert set(PRESETS["all"]) == set(PERTURBATIONS) - set(HELD_OUT)
    assert set(PRESETS["all"]) - set(PRESETS["channel"]) == {"speed", "leading_silence", "trailing_silence"}
    names = AugmentationSettings(["gain", "channel"]).list_perturbations()
    assert sorted(names) == sorted(PRESETS["channel"])
    assert AugmentationSettings(["opus"]).list_perturbations() == ("opus",)


def test_a_hard_negative_has_the_attack_as_its_rejected_side(pairs):
    rows = AugmentedPairs(pairs, AugmentationSettings(hard_negatives=["silence", "foreign_ending"]))
    silent, foreign = rows[1], rows[2]
    assert silent["chosen"] == foreign["chosen"] == pairs[0]["chosen"]
    assert texts(silent, "rejected") == texts(silent, "chosen")
    assert not any(array.any() for array in arrays(silent, "rejected"))
    (beginning, ending), distractor = arrays(foreign, "rejected"), arrays(pairs[2], "chosen")[1]
    assert np.array_equal(beginning, arrays(pairs[0], "chosen")[0])
    # Of the same criterion there is only one other pair.
    assert np.array_equal(ending, distractor)


def test_hard_negatives_have_the_stated_share_of_the_pairs():
    many = datasets.Dataset.from_dict({"pair_id": [f"p{row}" for row in range(1000)]})
    settings = AugmentationSettings(hard_negatives=["silence", "shuffled"], hard_negative_share=0.3)
    names = [AugmentedPairs(many, settings)["pair_id"] for _ in range(2)]
    assert names[0] == names[1]
    for attack in ("silence", "shuffled"):
        assert sum(attack in name for name in names[0]) == pytest.approx(300, abs=50)
    # Drawn for each attack by itself.
    both = {name.split(",")[0] for name in names[0] if "silence" in name}
    assert sum(name.split(",")[0] in both for name in names[0] if "shuffled" in name) == pytest.approx(90, abs=40)


def test_augmented_pairs_are_precomputed_and_collated_like_others(
    pairs, tiny_processor, make_tiny_model, tmp_path, monkeypatch
):
    rows = AugmentedPairs(pairs, AugmentationSettings(["noise"], hard_negatives=["shuffled", "silence"]))
    options = {"split": "train", "model": make_tiny_model()}
    read, skipped = precompute_pairs(rows, tiny_processor, tmp_path, **options)
    assert len(read) == 12
    assert [pair.item for pair in skipped] == [f"p{row}, shuffled" for row in range(4)]
    assert "needs an even number of turns, at least four" in skipped[0].reason
    batch = PairCollator(tiny_processor, rows)([read[index] for index in range(12)])["pairs"]
    assert batch.pair_ids[:4] == ["p0", "p0, copy 1", "p0, silence", "p1"]
    clips = [frozenset(clip for message in side for clip in message.clips) for side in batch.chosen[:3]]
    assert clips[0] != clips[1]
    assert clips[0] == clips[2]
    # The precomputed rows are found again.
    for name in ("_perturb", "_apply_attack"):
        monkeypatch.setattr(AugmentedPairs, name, None)
    again, _ = precompute_pairs(AugmentedPairs(pairs, rows.settings), tiny_processor, tmp_path, **options)
    assert again.to_list() == read.to_list()


FLAGS = ("--augmentations", "gain", "noise", "--augmented_copies", "1", "--hard_negatives", "silence")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "head"])
def test_the_script_trains_on_added_pairs_and_validates_on_given_ones(
    mode, make_flags, data_folder, pairs, tmp_path, monkeypatch
):
    for split in ("train", "validation"):
        names = [f"{split}-{name}" for name in pairs["pair_id"]]
        pairs.remove_columns("pair_id").add_column("pair_id", names).to_parquet(data_folder / f"{split}.parquet")
    sizes, train = [], SDiaRewardTrainer.train

    def counting(trainer, *args, **options):
        sizes.append((len(trainer.train_dataset), len(trainer.eval_dataset)))
        return train(trainer, *args, **options)

    monkeypatch.setattr(SDiaRewardTrainer, "train", counting)
    steps = {"eval_strategy": "steps", "eval_steps": 3, "num_train_epochs": 1, "per_device_train_batch_size": 4}
    assert main(make_flags(tmp_path / "run", *FLAGS, mode=mode, **steps)) == 0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    # Four pairs, their copies and their hard negatives, in batches of four.
    assert sizes == [(12, 4)]
    assert max(line["step"] for line in run["history"]) == 3
    assert run["arguments"]["augmentations"] == ["gain", "noise"]
    assert run["arguments"]["hard_negatives"] == ["silence"]
