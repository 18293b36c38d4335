import math

import pytest
import torch

from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring import Scorer


@pytest.fixture(scope="module")
def scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor, batch_tokens=1500)


@pytest.fixture(scope="module")
def dialogues(make_dialogue):
    return [
        make_dialogue(0.2, 0.3),
        make_dialogue(0.9, 0.4, 0.2, 0.2),
        make_dialogue(0.1, 0.1),
        make_dialogue(0.5, 0.5),
    ]


def test_rewards_come_in_the_order_given_and_are_those_of_the_model(scorer, dialogues, tiny_processor):
    with torch.inference_mode():
        expected = [scorer.model(**tiny_processor(dialogue)).logits.item() for dialogue in dialogues]
    assert scorer.score(dialogues) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("pooling_mode", ["mean", "attention", "last_token"])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_tokens": 1},
        {"batch_tokens": 100_000},
        {"share_prefixes": False},
        {"share_clips": False},
        {"pack": False},
        {"num_workers": 0},
        {"pack": False, "share_clips": False, "num_workers": 0, "batch_tokens": 2000},
    ],
    ids=str,
)
def test_no_speed_up_changes_a_reward(make_tiny_model, tiny_processor, dialogues, pooling_mode, options):
    model = make_tiny_model(pooling_mode)
    with torch.inference_mode():
        expected = [model(**tiny_processor(dialogue)).logits.item() for dialogue in dialogues]
    assert Scorer(model, tiny_processor, **options).score(dialogues) == pytest.approx(expected, abs=1e-5)


def test_rewards_are_yielded_batch_by_batch_the_longest_first(scorer, dialogues):
    scores = scorer.iter_scores(dialogues)
    first_index, first_reward = next(scores)
    assert first_index == 1
    assert math.isfinite(first_reward)
    assert {index for index, _ in scores} == {0, 2, 3}


def test_each_dialogue_can_have_its_own_criterion(scorer, dialogues):
    mixed = scorer.score(dialogues[:2], ["modality", "colloquialness"])
    assert mixed[0] == pytest.approx(scorer.score(dialogues[:1], "modality")[0], abs=1e-5)
    assert mixed[1] == pytest.approx(scorer.score(dialogues[1:2], "colloquialness")[0], abs=1e-5)
    assert mixed[0] != pytest.approx(scorer.score(dialogues[:1], "joint")[0], abs=1e-5)


def test_nothing_gives_nothing(scorer):
    assert scorer.score([]) == []


def test_a_wrong_number_of_criteria_is_refused(scorer, dialogues):
    with pytest.raises(ValueError, match="1 criteria for 2 dialogues"):
        scorer.score(dialogues[:2], ["joint"])


def test_a_loaded_checkpoint_gives_the_rewards_of_the_model_saved(tiny_checkpoint, scorer, dialogues):
    loaded = Scorer.from_pretrained(tiny_checkpoint, device="cpu")
    assert not loaded.model.training
    assert loaded.score(dialogues) == pytest.approx(scorer.score(dialogues), abs=1e-5)


@pytest.mark.parametrize("setting", [{"max_turn_s": 5.0}, {"prompt_version": "2"}, {"prompts": {"joint": "Other."}}])
def test_a_processor_that_would_change_the_reward_is_refused(setting, make_tiny_model, fixtures_dir):
    processor = SDiaRewardProcessor.from_backbone(fixtures_dir / "base_tiny", **setting)
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is .* in the model's configuration but"):
        Scorer(make_tiny_model(), processor)


@pytest.mark.parametrize(("option", "value"), [("batch_tokens", 0), ("num_workers", -1)])
def test_an_option_out_of_range_is_refused(make_tiny_model, tiny_processor, option, value):
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        Scorer(make_tiny_model(), tiny_processor, **{option: value})
