"""Write checkpoints in the authors' layout, made of the fixtures' backbone and the recorded heads."""

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from support.paths import FIXTURES


# In bands without sound, 80 dB below a tone, the rounding of the Fourier transform is visible.
MEL_ROUNDING = 1e-4
PROCESSOR_FILES = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json")


def official_tensors(pooling_mode="mean"):
    stored = load_file(FIXTURES / "base_tiny" / "model.safetensors")
    tensors = {name.removeprefix("thinker."): tensor for name, tensor in stored.items() if name.startswith("thinker.")}
    recorded = np.load(FIXTURES / "recorded.npz")
    tensors["score_head.weight"] = torch.from_numpy(recorded["score_weight"])
    if pooling_mode == "attention":
        tensors["pooler.attn.weight"] = torch.from_numpy(recorded["attn_weight"])
        tensors["pooler.attn.bias"] = torch.from_numpy(recorded["attn_bias"])
    return tensors


def write_official(folder, pooling_mode="mean", *, without=(), extra=None, max_shard_size="1GB"):
    """Write a checkpoint, with changes to its tensors; return its folder."""
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor for name, tensor in official_tensors(pooling_mode).items() if name not in without}
    save_torch_state_dict({**tensors, **(extra or {})}, folder, max_shard_size=max_shard_size)
    (folder / "config.json").write_bytes((FIXTURES / "official_config.json").read_bytes())
    for name in PROCESSOR_FILES:
        (folder / name).write_bytes((FIXTURES / "base_tiny" / name).read_bytes())
    return folder
