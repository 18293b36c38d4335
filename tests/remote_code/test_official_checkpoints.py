"""Checkpoints in the authors' layout load, and compute what the authors' code was recorded to compute."""

import json

import numpy as np
import pytest
import torch
from support.official_layout import MEL_ROUNDING, official_tensors, write_official

from sdiareward.audio_sdiareward import read_audio
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, POOLING_MODES
from sdiareward.loading_sdiareward import read_processor_fields, to_native_key, to_official_key
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.scoring.scorer import Scorer


# Also from audio and text through our own mel features.
TOLERANCE = 1e-5


@pytest.fixture(scope="session")
def recorded(fixtures_dir):
    return np.load(fixtures_dir / "recorded.npz")


@pytest.fixture(scope="session")
def recorded_clips(fixtures_dir):
    return np.load(fixtures_dir / "recorded_clips.npz")


@pytest.fixture(scope="session")
def load_official(tmp_path_factory):
    """Return a function giving the model of a pooling mode, loaded from the authors' layout."""
    folders = {name: write_official(tmp_path_factory.mktemp(name), name) for name in ("mean", "attention")}

    def load(pooling_mode, **options):
        if pooling_mode == "last_token":
            options["pooling_mode"] = pooling_mode
        return SDiaRewardModel.from_pretrained(folders.get(pooling_mode, folders["mean"]), **options).eval()

    return load


@pytest.fixture(scope="session")
def conversation(fixtures_dir):
    return with_audio_paths(json.loads((fixtures_dir / "conversation.json").read_text()), fixtures_dir)


def with_audio_paths(messages, folder):
    for message in messages:
        for item in message["content"]:
            if item.get("audio"):
                item["audio"] = str(folder / item["audio"])
    return messages


def score(model, inputs):
    """Return pooled vectors, rewards and last hidden states."""
    hidden_states = []
    handle = model.pooler.register_forward_pre_hook(lambda module, args: hidden_states.append(args[0]))
    with torch.inference_mode():
        output = model(**inputs)
    handle.remove()
    return output.pooled, output.logits, hidden_states[0]


@pytest.mark.parametrize("pooling_mode", POOLING_MODES)
def test_every_tensor_of_a_released_checkpoint_is_loaded_bit_by_bit(pooling_mode, load_official):
    model = load_official(pooling_mode)
    assert (model.config.pooling_mode, model.config.max_turn_s, model.dtype) == (pooling_mode, 300.0, torch.float32)
    loaded = model.state_dict()
    for name, tensor in official_tensors(pooling_mode).items():
        if to_native_key(name) is not None:
            assert torch.equal(loaded.pop(to_native_key(name)), tensor), name
    assert not loaded


@pytest.mark.parametrize("pooling_mode", POOLING_MODES)
def test_rewards_of_a_released_checkpoint_are_those_of_the_authors_code(
    pooling_mode, load_official, tiny_processor, recorded, conversation
):
    inputs = tiny_processor(conversation)
    assert inputs["input_ids"][0].tolist() == recorded["input_ids"].tolist()
    pooled, logits, hidden_states = score(load_official(pooling_mode), inputs)
    np.testing.assert_allclose(hidden_states[0], recorded["last_hidden"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(pooled[0], recorded[f"{pooling_mode}/pooled"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(logits[0], recorded[f"{pooling_mode}/logits"], rtol=0, atol=TOLERANCE)


def test_last_token_pooling_is_right_in_a_left_padded_batch_where_the_authors_is_wrong(
    load_official, tiny_processor, recorded, conversation, make_dialogue
):
    inputs = tiny_processor([conversation, make_dialogue(2.0, 2.0)], padding_side="left")
    num_tokens = int(inputs["attention_mask"][0].sum())
    # The authors' code reads position `mask.sum() - 1`, which is that of the last token without padding only.
    assert inputs["attention_mask"][0, num_tokens - 1] == 0
    _, logits, hidden_states = score(load_official("last_token"), inputs)
    np.testing.assert_allclose(logits[0], recorded["last_token/logits"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(hidden_states[0, -num_tokens:], recorded["last_hidden"], rtol=0, atol=TOLERANCE)


def test_text_becomes_the_tokens_of_the_authors_processor(tiny_processor, fixtures_dir):
    cases = json.loads((fixtures_dir / "tokenizer_cases.json").read_text())
    wrong = [
        case["text"]
        for case in cases
        if tiny_processor.tokenizer(case["text"], add_special_tokens=False)["input_ids"] != case["ids"]
    ]
    assert (len(cases), wrong) == (96, [])


def test_clips_become_the_mel_features_of_the_authors_processor(tiny_processor, recorded_clips, fixtures_dir):
    names = [key.removeprefix("mel/") for key in recorded_clips if key.startswith("mel/")]
    clips = [
        read_audio(fixtures_dir / "audio" / f"{name}.wav", max_duration_s=tiny_processor.max_turn_s) for name in names
    ]
    features, mask = tiny_processor.log_mel(clips)
    for name, mel, num_frames in zip(names, features, mask.sum(1), strict=True):
        expected = recorded_clips[f"mel/{name}"]
        assert num_frames == expected.shape[1], name
        np.testing.assert_allclose(mel[:, :num_frames], expected, rtol=0, atol=MEL_ROUNDING, err_msg=name)
    assert len(names) == 5


def test_a_sharded_released_checkpoint_loads(tmp_path):
    write_official(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded, stored = SDiaRewardModel.from_pretrained(tmp_path).state_dict(), official_tensors()
    assert all(torch.equal(tensor, stored[to_official_key(name)]) for name, tensor in loaded.items())


REFUSED = {
    "a missing tensor": (
        {"without": ("model.norm.weight", "audio_tower.conv1.bias")},
        {},
        r"lacks 2 tensors of the model \(audio_tower.conv1.bias, model.norm.weight\)",
    ),
    "an unexpected tensor": (
        {"extra": {"model.layers.9.mlp.up_proj.weight": torch.zeros(1)}},
        {},
        r"has 1 tensors without a place \(model.layers.9.mlp.up_proj.weight\)",
    ),
    "another shape": (
        {"extra": {"score_head.weight": torch.zeros(2, 64)}},
        {},
        r"score_head.weight has the shape \[2, 64\], .* asks for \[1, 64\]",
    ),
    "no head": ({"without": ("score_head.weight",)}, {}, r"no reward head \(score_head.weight\).*from_backbone"),
    "half a pooler": ({"extra": {"pooler.attn.bias": torch.zeros(1)}}, {}, "lacks 1 tensors .*pooler.attn.weight"),
    "attention without a pooler": ({}, {"pooling_mode": "attention"}, "no pooler.attn.*give mean or last_token"),
    "mean with a pooler": (
        {"pooling_mode": "attention"},
        {"pooling_mode": "mean"},
        "has the attention pooler.*'mean'; give attention",
    ),
    "an unknown pooling": ({}, {"pooling_mode": "max"}, "'max'; choose one of mean, attention, last_token"),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_a_checkpoint_that_is_not_whole_is_refused_by_the_names_it_uses(problem, tmp_path):
    changes, options, message = REFUSED[problem]
    write_official(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        SDiaRewardModel.from_pretrained(tmp_path, **options)


def test_weights_that_are_no_safetensors_are_refused(tmp_path):
    (write_official(tmp_path) / "model.safetensors").unlink()
    torch.save(official_tensors(), tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor .*; save it as safetensors"):
        SDiaRewardModel.from_pretrained(tmp_path)


def test_the_processor_of_a_released_checkpoint_agrees_with_its_model(tmp_path, fixtures_dir, tiny_checkpoint):
    fields = read_processor_fields(write_official(tmp_path / "official"))
    assert fields == {"prompts": DEFAULT_PROMPTS, "prompt_version": "1", "max_turn_s": 300.0}
    (tmp_path / "empty").mkdir()
    for other in (fixtures_dir / "base_tiny", tiny_checkpoint, tmp_path / "empty"):
        assert read_processor_fields(other) is None


@pytest.mark.slow
def test_a_released_checkpoint_is_scored_with_and_without_its_own_prompt(tmp_path, make_dialogue, caplog):
    released = write_official(tmp_path)
    dialogues = [make_dialogue(0.3, 0.2)]
    rewards = Scorer.from_pretrained(released, device="cpu").score(dialogues)
    assert "has no system prompt" in caplog.text
    caplog.clear()
    prompted = Scorer.from_pretrained(released, device="cpu", prompts={"joint": "Is it any good?"})
    assert "has no system prompt" not in caplog.text
    assert prompted.processor.max_turn_s == 300.0
    assert prompted.score(dialogues) != pytest.approx(rewards, abs=1e-2)
