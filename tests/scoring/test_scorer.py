import math
import shutil

import pytest
import torch

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring import scorer as scoring
from sdiareward.scoring.scorer import Scorer, has_bfloat16


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
    assert scorer.score([]) == []
    with pytest.raises(ValueError, match="1 criteria for 4 dialogues"):
        scorer.score(dialogues, ["joint"])


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


@pytest.mark.parametrize("pooling_mode", ["mean", "last_token"])
def test_a_reward_that_is_not_finite_is_an_error_of_its_dialogue(
    make_tiny_model, tiny_processor, dialogues, pooling_mode
):
    model = make_tiny_model(pooling_mode)
    with torch.no_grad():
        model.score.weight.fill_(math.nan)
    broken = Scorer(model, tiny_processor)
    with pytest.raises(DialogueError, match="its reward is nan; score with dtype float32"):
        broken.score(dialogues)
    skipped = {}
    assert list(broken.iter_scores(dialogues, skipped=skipped)) == []
    assert sorted(skipped) == [0, 1, 2, 3]


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


class Counted(list):
    """Dialogues that count how often each is taken."""

    def __init__(self, dialogues):
        super().__init__(dialogues)
        self.taken = []

    def __getitem__(self, index):
        self.taken.append(index)
        return super().__getitem__(index)


@pytest.fixture
def num_encoded(monkeypatch):
    """Return a list that holds how many clips went through the audio tower, call by call."""
    counts = []
    encode = scoring.encode_clips
    monkeypatch.setattr(scoring, "encode_clips", lambda model, mels: counts.append(len(mels)) or encode(model, mels))
    return counts


@pytest.mark.parametrize(("share_clips", "expected"), [(True, 4), (False, 6)])
def test_a_clip_is_encoded_once_however_often_it_occurs(
    make_tiny_model, tiny_processor, make_dialogue, num_encoded, share_clips, expected
):
    first, second, third = make_dialogue(0.2, 0.3), make_dialogue(0.2, 0.4), make_dialogue(0.2, 0.5)
    scorer = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1, share_prefixes=False, share_clips=share_clips)
    scorer.score([first, second, third])
    assert sum(num_encoded) == expected
    scorer.score([first])
    assert sum(num_encoded) == (expected if share_clips else expected + 2)


def test_clips_leave_the_cache_when_it_is_full_and_the_rewards_stay(
    make_tiny_model, tiny_processor, dialogues, monkeypatch, scorer
):
    monkeypatch.setattr(scoring, "_CLIP_CACHE_BYTES", 1000)
    small = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1)
    assert small.score(dialogues * 2) == pytest.approx(scorer.score(dialogues * 2), abs=1e-5)
    assert small._encoded.num_bytes == sum(vectors.nbytes for vectors in small._encoded.values()) <= 1000


def test_a_group_is_computed_in_one_batch_and_comes_together(make_tiny_model, tiny_processor, make_dialogue):
    dialogues = [make_dialogue(0.1 * n, 0.2) for n in (1, 9, 2, 8, 3, 7)]
    scorer = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1)
    order = [index for index, _ in scorer.iter_scores(dialogues, groups=["a", "b", "c", "a", "b", "c"])]
    assert order == [1, 4, 0, 3, 2, 5]
    with pytest.raises(ValueError, match="1 groups for 6 dialogues"):
        scorer.score(dialogues, groups=["a"])


def test_identical_dialogues_that_are_computed_together_tie_exactly(scorer, dialogues):
    copies = [dialogue for dialogue in dialogues for _ in range(3)]
    rewards = scorer.score(copies, groups=[number // 3 for number in range(len(copies))])
    assert [len(set(rewards[first : first + 3])) for first in range(0, len(rewards), 3)] == [1] * len(dialogues)
    assert len(set(rewards)) == len(dialogues)


def test_bad_dialogues_are_skipped_with_their_reasons_and_the_others_scored(scorer, dialogues):
    reply = dialogues[0][1]
    silent = [
        {"role": "user", "content": [{"type": "audio", "audio": {"array": [0.0], "sampling_rate": 16_000}}]},
        reply,
    ]
    broken = [{"role": "user", "content": [{"type": "audio", "audio": b"no audio"}]}, reply]
    skipped = {}
    # Without the assistant's turn, and with more turns than are scored.
    given = [silent, dialogues[0], broken, [], dialogues[1], [{"role": "user"}], dialogues[0][:1], dialogues[0] * 9]
    scores = dict(scorer.iter_scores(given, skipped=skipped))
    assert scores == pytest.approx(dict(zip((1, 4), scorer.score(dialogues[:2]), strict=True)), abs=1e-5)
    assert sorted(skipped) == [0, 2, 3, 5, 6, 7]
    assert skipped[0].startswith("turn 1: lasts 0.1 ms")
    assert "cannot be decoded" in skipped[2]
    assert "has no turns" in skipped[3]
    with pytest.raises(DialogueError, match="has no turns"):
        scorer.score([dialogues[0], []])


def test_dialogues_are_taken_when_they_are_needed(make_tiny_model, tiny_processor, make_dialogue, monkeypatch):
    monkeypatch.setattr(scoring, "_PLANNED_AT_A_TIME", 2)
    dialogues = Counted([make_dialogue(0.1, 0.1) for _ in range(12)])
    scorer = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1, num_workers=1)
    scores = scorer.iter_scores(dialogues)
    assert dialogues.taken == []
    next(scores)
    assert max(dialogues.taken) < 6
    scores.close()
    taken = len(dialogues.taken)
    assert len(list(scorer.iter_scores(dialogues))) == 12
    assert len(dialogues.taken) == taken + 12


def test_features_are_what_the_head_makes_rewards_from(scorer, dialogues, tiny_processor):
    rewards = scorer.score(dialogues)
    for index, features in scorer.iter_features(dialogues, per_token=True):
        assert features.reward == pytest.approx(rewards[index], abs=1e-5)
        assert scorer.model.reward(torch.from_numpy(features.pooled)[None]).item() == pytest.approx(
            rewards[index], abs=1e-5
        )
        assert features.hidden_states.shape == (tiny_processor.num_tokens(dialogues[index]), 32)
        assert features.hidden_states.mean(axis=0) == pytest.approx(features.pooled, abs=1e-5)


def test_features_of_another_layer_have_no_reward(scorer, dialogues):
    (_, first), *_ = scorer.iter_features(dialogues[:1], layer=1)
    (_, last), *_ = scorer.iter_features(dialogues[:1])
    assert math.isnan(first.reward)
    assert abs(first.pooled - last.pooled).max() > 1e-3
    with pytest.raises(ValueError, match="layer is 2; this model has the layers 0 to 1"):
        next(scorer.iter_features(dialogues, layer=2))


def test_padding_gives_no_features_of_tokens(make_tiny_model, tiny_processor, dialogues):
    with pytest.raises(ValueError, match="require pack=True"):
        next(Scorer(make_tiny_model(), tiny_processor, pack=False).iter_features(dialogues, per_token=True))


def test_the_seconds_scored_are_those_that_the_model_hears(make_tiny_model, fixtures_dir, make_dialogue):
    processor = SDiaRewardProcessor.from_backbone(fixtures_dir / "base_tiny", max_turn_s=0.25)
    scorer = Scorer(make_tiny_model(max_turn_s=0.25), processor)
    scorer.score([make_dialogue(0.2, 0.5), make_dialogue(0.2, 0.1)])
    assert scorer.audio_s == pytest.approx(0.2 + 0.25 + 0.2 + 0.1)


def test_given_prompts_replace_those_of_the_checkpoint(tiny_checkpoint, dialogues):
    ours = Scorer.from_pretrained(tiny_checkpoint, device="cpu")
    other = Scorer.from_pretrained(tiny_checkpoint, device="cpu", prompts={"joint": "Is it any good?"})
    with_own_system_turn = [[{"role": "system", "content": "Is it any good?"}, *dialogue] for dialogue in dialogues]
    assert other.score(dialogues) == pytest.approx(ours.score(with_own_system_turn), abs=1e-5)
    assert other.score(dialogues, "modality") == pytest.approx(ours.score(dialogues, "modality"), abs=1e-5)
    assert other.model.config.prompt_version.startswith("custom-")
    same = Scorer.from_pretrained(tiny_checkpoint, device="cpu", prompts={"joint": ours.processor.prompts["joint"]})
    assert same.model.config.prompt_version == same.processor.prompt_version == ours.processor.prompt_version
    with pytest.raises(ValueError, match="must be non-empty strings"):
        Scorer.from_pretrained(tiny_checkpoint, device="cpu", prompts={"joint": ""})


def test_a_backbone_in_bfloat16_keeps_its_head_in_float32(tiny_checkpoint, dialogues, scorer):
    half = Scorer.from_pretrained(tiny_checkpoint, device="cpu", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    assert half.model.score.weight.dtype == torch.float32
    assert half.score(dialogues) == pytest.approx(scorer.score(dialogues), abs=0.1)
    assert len({round(reward, 6) for reward in half.score(dialogues)}) == len(dialogues)


@pytest.mark.skipif(not has_bfloat16("cpu"), reason="needs a CPU with products in bfloat16")
def test_fast_rounds_products_and_nothing_between_them(tiny_checkpoint, dialogues, scorer):
    fast = Scorer.from_pretrained(tiny_checkpoint, device="cpu", dtype="fast")
    layer, seen = fast.model.model.language_model.layers[0], {}
    layer.register_forward_hook(lambda module, inputs, output: seen.update(residual=output.dtype))
    layer.mlp.down_proj.register_forward_hook(lambda module, inputs, output: seen.update(product=output.dtype))
    assert fast.score(dialogues) == pytest.approx(scorer.score(dialogues), abs=0.01)
    assert seen == {"residual": torch.float32, "product": torch.bfloat16}
    assert layer.mlp.down_proj.weight.dtype == torch.bfloat16
    assert fast.model.score.weight.dtype == torch.float32
    assert (fast.dtype, scorer.dtype) == ("fast", "float32")
    unpacked = Scorer(fast.model, fast.processor, pack=False, mixed_precision=True)
    assert unpacked.score(dialogues) == pytest.approx(fast.score(dialogues), abs=0.01)


def test_fast_is_float32_where_the_hardware_has_no_bfloat16(tiny_checkpoint, dialogues, scorer, monkeypatch):
    monkeypatch.setattr("sdiareward.scoring.scorer.has_bfloat16", lambda device_type: False)
    plain = Scorer.from_pretrained(tiny_checkpoint, device="cpu", dtype="fast")
    assert plain.dtype == "float32"
    assert plain.score(dialogues) == pytest.approx(scorer.score(dialogues), abs=1e-6)


def test_a_model_can_be_spread_by_a_device_map(tiny_checkpoint, dialogues, scorer):
    spread = Scorer.from_pretrained(tiny_checkpoint, device_map={"": "cpu"})
    assert spread.score(dialogues) == pytest.approx(scorer.score(dialogues), abs=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_blocks_give_the_same_rewards(make_tiny_model, tiny_processor, dialogues, scorer):
    compiled = Scorer(make_tiny_model(), tiny_processor, compile=True)
    assert compiled.score(dialogues) == pytest.approx(scorer.score(dialogues), abs=1e-5)
