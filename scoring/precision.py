"""Compute matrix products in bfloat16 and everything between them in float32: `dtype="fast"`.

In bfloat16 throughout, every layer rounds the residual stream to eight bits, and the errors add up over the layers.
Here products and convolutions alone are rounded; residuals, norms, pooling and head keep float32.
"""

from __future__ import annotations

from typing import Any

import torch


FAST = "fast"


def has_bfloat16(device_type: str) -> bool:
    if device_type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def halve_products(model: Any) -> None:
    """Hold the weights of the backbone's products and convolutions in bfloat16, as they are read under autocast."""
    for module in model.model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d)):
            module.to(torch.bfloat16)
