import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_model

from sdiareward.configuration_sdiareward import POOLING_MODES
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.scoring.scorer import Scorer


# The models have a few thousand parameters, and their rewards are below 1.
TOLERANCE, BFLOAT16_TOLERANCE = 1e-5, 0.05


@pytest.fixture
def inputs(tiny_processor, make_dialogue):
    return tiny_processor([make_dialogue(0.5, 0.41), make_dialogue(0.3, 0.7, 0.2, 0.33)], padding_side="left")


def rewards(model, batch, **kwargs):
    with torch.inference_mode():
        return model(**batch, **kwargs).logits


@pytest.mark.parametrize("pooling_mode", POOLING_MODES)
def test_a_dialogue_gets_the_same_reward_alone_and_in_a_batch(
    pooling_mode, make_tiny_model, tiny_processor, make_dialogue
):
    model, dialogues = make_tiny_model(pooling_mode), [make_dialogue(0.5, 0.41), make_dialogue(0.3, 0.7, 0.2, 0.33)]
    alone = torch.cat([rewards(model, tiny_processor(dialogue)) for dialogue in dialogues])
    for side in ("left", "right"):
        batched = rewards(model, tiny_processor(dialogues, padding_side=side))
        torch.testing.assert_close(batched, alone, rtol=0, atol=TOLERANCE)
    assert (alone[0] - alone[1]).abs() > 1e-3


def test_cached_audio_features_give_the_reward_of_the_mel_features(make_tiny_model, inputs):
    model = make_tiny_model()
    with torch.inference_mode():
        audio_features = model.encode_audio(inputs["input_features"], inputs["feature_attention_mask"])
        cached = model(inputs["input_ids"], inputs["attention_mask"], audio_features=audio_features).logits
    assert audio_features.shape == (int((inputs["input_ids"] == 643).sum()), 32)
    torch.testing.assert_close(cached, rewards(model, inputs), rtol=0, atol=TOLERANCE)
    with pytest.raises(ValueError, match="audio placeholders and 3 audio vectors"):
        model(inputs["input_ids"], inputs["attention_mask"], audio_features=torch.zeros(3, 32))


def test_stacked_vectors_are_those_of_the_tower_joined_and_filled_up_with_zeros(make_tiny_model, inputs):
    features = inputs["input_features"], inputs["feature_attention_mask"]
    plain, stacked = make_tiny_model(), make_tiny_model(stack_factor=3)
    stacked.load_state_dict({**plain.state_dict(), "model.audio_tower.proj.weight": torch.zeros(32, 96)})
    counts = plain.count_audio_tokens(features[1].sum(dim=1)).tolist()
    assert any(count % 3 for count in counts)
    with torch.inference_mode():
        expected = plain.encode_audio(*features).split(counts)
        found = stacked.encode_audio(*features).split([-(-count // 3) for count in counts])
    for clip, vectors in zip(expected, found, strict=True):
        torch.testing.assert_close(vectors.reshape(-1, 32)[: len(clip)], clip)
        assert not vectors.reshape(-1, 32)[len(clip) :].any()


def test_a_stacking_model_takes_fewer_tokens_and_gives_one_reward_by_every_path(make_tiny_model, make_dialogue):
    processor, model = tiny_model.make_processor(stack_factor=4), make_tiny_model(stack_factor=4)
    dialogues = [make_dialogue(0.5, 0.41), make_dialogue(0.3, 0.7, 0.2, 0.33)]
    batch = processor(dialogues)
    # 12, 10, 7, 17, 5 and 8 vectors, by fours.
    assert (batch["input_ids"] == 643).sum(dim=1).tolist() == [6, 11]
    expected = rewards(model, batch)
    scorer = Scorer(model, processor)
    torch.testing.assert_close(torch.tensor(scorer.score(dialogues)), expected[:, 0], rtol=0, atol=TOLERANCE)
    with torch.inference_mode():
        vectors = model.encode_audio(batch["input_features"], batch["feature_attention_mask"])
        cached = model(batch["input_ids"], batch["attention_mask"], audio_features=vectors).logits
    assert vectors.shape == (17, 128)
    torch.testing.assert_close(cached, expected, rtol=0, atol=TOLERANCE)


def test_the_reward_is_the_scaled_head_of_the_pooled_vector(make_tiny_model, inputs):
    model = make_tiny_model(reward_scale=0.5)
    with torch.inference_mode():
        output = model(**inputs)
    torch.testing.assert_close(output.logits, 0.5 * output.pooled @ model.score.weight.T)


def test_a_new_head_gives_zero_to_every_dialogue(tiny_config, inputs):
    assert rewards(SDiaRewardModel(tiny_config()), inputs).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_head_and_pooler_stay_in_float32_beside_a_half_precision_backbone(dtype, make_tiny_model, inputs, tmp_path):
    whole = make_tiny_model("attention")
    whole.save_pretrained(tmp_path)
    model = SDiaRewardModel.from_pretrained(tmp_path, dtype=dtype).eval()
    assert model.model.language_model.norm.weight.dtype == dtype
    assert {model.score.weight.dtype, model.pooler.attn.weight.dtype} == {torch.float32}
    if dtype == torch.bfloat16:
        found = rewards(model, inputs)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, rewards(whole, inputs), rtol=0, atol=BFLOAT16_TOLERANCE)


def test_rewards_do_not_tie_where_an_engine_casts_the_head_to_bfloat16(make_tiny_model):
    model = make_tiny_model("attention")
    for parameter in model.parameters():
        # DeepSpeed's bf16 casts parameters so, whatever a model keeps in float32.
        parameter.data = parameter.data.bfloat16()
    with torch.no_grad():
        model.score.weight.copy_(torch.ones(1, 32))
        model.pooler.attn.weight.copy_(torch.ones(1, 32))
    # Between 4 and 8 bfloat16 has steps of 1/32.
    pooled = torch.zeros(2, 32)
    pooled[:, 0] = torch.tensor([5.0, 5.01])
    rewards = model.reward(pooled)
    assert rewards.dtype == torch.float32
    assert rewards[:, 0].tolist() == [5.0, torch.tensor(5.01).item()]
    # The weights of attention pooling are those of 5 and 5.01 too: their logit is 0.01.
    weights = model.pooler._weights(pooled[None], torch.ones(1, 2, dtype=torch.bool))[0]
    assert (weights[1] / weights[0]).log().item() == pytest.approx(0.01, abs=1e-5)


def test_the_head_runs_in_float32_under_autocast(make_tiny_model, inputs):
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        output = make_tiny_model()(**inputs)
    assert output.pooled.dtype == output.logits.dtype == torch.float32


def test_freezing_the_backbone_leaves_head_and_pooler_trainable(make_tiny_model):
    model = make_tiny_model("attention")
    model.freeze_backbone()
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable == {"score.weight", "pooler.attn.weight", "pooler.attn.bias"}


def test_freezing_the_audio_tower_leaves_its_projection_trainable(make_tiny_model, inputs):
    model = make_tiny_model()
    model.freeze_audio_tower()
    model(**inputs).logits.sum().backward()
    tower = dict(model.model.audio_tower.named_parameters())
    assert {name for name, parameter in tower.items() if parameter.grad is not None} == {"proj.weight", "proj.bias"}
    assert model.model.language_model.embed_tokens.weight.grad is not None


def test_saving_and_loading_keeps_every_tensor_and_the_reward(make_tiny_model, inputs, tmp_path):
    model = make_tiny_model("attention", reward_scale=2.0)
    model.save_pretrained(tmp_path)
    loaded = SDiaRewardModel.from_pretrained(tmp_path).eval()
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(rewards(loaded, inputs), rewards(model, inputs), rtol=0, atol=1e-6)


def test_tensors_are_saved_under_their_names_in_memory_whatever_they_came_from(fixtures_dir, tmp_path):
    SDiaRewardModel.from_backbone(fixtures_dir / "base_tiny").save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors")
    assert {name.split(".")[0] for name in names} == {"model", "score"}
    assert not [name for name in names if "visual" in name or "lm_head" in name]


def make_thinker_only(source, target):
    tensors = load_file(source / "model.safetensors")
    thinker = {
        name.removeprefix("thinker."): tensor for name, tensor in tensors.items() if name.startswith("thinker.")
    }
    save_file(thinker, target / "model.safetensors", metadata={"format": "pt"})
    from transformers import Qwen2_5OmniThinkerConfig

    Qwen2_5OmniThinkerConfig.from_pretrained(source).save_pretrained(target)


@pytest.mark.parametrize("layout", ["full", "thinker_only"])
def test_a_backbone_of_either_layout_is_loaded_whole(layout, fixtures_dir, tmp_path, caplog):
    source = fixtures_dir / "base_tiny"
    if layout == "thinker_only":
        make_thinker_only(source, tmp_path)
    with caplog.at_level(logging.WARNING, logger="transformers"):
        model = SDiaRewardModel.from_backbone(source if layout == "full" else tmp_path, max_turn_s=7.0)
    assert not [part for part in ("visual", "lm_head", "talker", "token2wav") if part in caplog.text]
    assert model.config.max_turn_s == 7.0
    stored = load_file(source / "model.safetensors")
    for name, tensor in model.model.state_dict().items():
        stored_name = name.replace("language_model.", "model.", 1) if name.startswith("language_model.") else name
        assert torch.equal(tensor, stored[f"thinker.{stored_name}"]), name
    assert not model.score.weight.any()


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tiny_checkpoint, tmp_path):
    tensors = load_file(tiny_checkpoint / "model.safetensors")
    del tensors["model.language_model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((tiny_checkpoint / "config.json").read_text())
    with pytest.raises(ValueError, match=r"lacks 1 tensors of the model \(model.language_model.norm.weight"):
        SDiaRewardModel.from_pretrained(tmp_path)


def test_a_backbone_that_holds_a_reward_head_already_is_refused(fixtures_dir, tmp_path):
    make_thinker_only(fixtures_dir / "base_tiny", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "score_head.weight": torch.zeros(1, 64)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=r"has a reward head already \(score_head.weight\); load it with from_pretrained"
    ):
        SDiaRewardModel.from_backbone(tmp_path)


def test_a_backbone_and_a_reward_model_are_not_loaded_as_each_other(fixtures_dir, tiny_checkpoint):
    with pytest.raises(ValueError, match="from_backbone"):
        SDiaRewardModel.from_pretrained(fixtures_dir / "base_tiny")
    with pytest.raises(ValueError, match="from_pretrained"):
        SDiaRewardModel.from_backbone(tiny_checkpoint)
