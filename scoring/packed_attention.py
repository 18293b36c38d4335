"""Attention of packed batches: where tokens lie in one row, and which of them attend to each other.

A call with a `layout` (text) or `windows` (audio) gets this attention, any other call the configured attention. The
model is not changed, so threads may share it. On CUDA in half precision PyTorch's variable-length
FlashAttention runs, elsewhere SDPA.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import AttentionInterface
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni


logger = logging.getLogger(__name__)

# Queries that share one mask: a longer block computes more of what the mask hides.
_BLOCK_TOKENS = 256
# On a CPU, PyTorch's backward pass of fewer queries takes up to three times as long in bfloat16 as in float32.
_FLOAT32_TOKENS = 200


class PackedLayout:
    """Where the segments of a batch are in the row; `parents` are earlier segments."""

    def __init__(self, lengths_tokens: Sequence[int], parents: Sequence[int | None]):
        self.lengths = list(lengths_tokens)
        self.paths: list[list[int]] = []
        for index, parent in enumerate(parents):
            self.paths.append([index] if parent is None else [*self.paths[parent], index])
        # By device: a model may be spread over several.
        self._masks: dict[torch.device, Tensor] = {}
        self._varlen: dict[torch.device, tuple[Any, ...]] = {}

    @property
    def num_before(self) -> list[int]:
        return [sum(self.lengths[index] for index in path[:-1]) for path in self.paths]

    def compute_positions(self) -> Tensor:
        """Return the place of each token in its dialogue, shape `(num_tokens,)`."""
        pairs = zip(self.num_before, self.lengths, strict=True)
        return torch.cat([torch.arange(before, before + length) for before, length in pairs])

    def take_along(self, tensor: Tensor, segment: int, dim: int) -> Tensor:
        """Return the part of `tensor` that belongs to a segment and to its predecessors in the dialogue."""
        return self.join(tensor.split(self.lengths, dim=dim), segment, dim)

    def join(self, parts: Sequence[Tensor], segment: int, dim: int) -> Tensor:
        """Return what `take_along` does, of a tensor that is split into the segments."""
        path = self.paths[segment]
        return parts[segment] if len(path) == 1 else torch.cat([parts[index] for index in path], dim=dim)

    def make_mask(self, like: Tensor) -> Tensor:
        """Return a band from which the mask of every segment is cut, shape `(longest, longest before + longest)`.

        Row `i` sees the columns up to `longest before + i`; a segment with fewer tokens before it skips the first
        columns.
        """
        if like.device not in self._masks:
            before = max(self.num_before)
            longest = max((n for n, b in zip(self.lengths, self.num_before, strict=True) if b), default=0)
            hidden = torch.ones(longest, before + longest, dtype=torch.bool, device=like.device).triu(before + 1)
            self._masks[like.device] = like.new_zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        return self._masks[like.device]

    def prepare_varlen(self, device: torch.device) -> tuple[Any, ...]:
        """Return what a variable-length kernel takes: key rows, bounds of queries and of keys, longest of each."""
        if device not in self._varlen:
            rows = torch.arange(sum(self.lengths)).split(self.lengths)
            keys = [self.join(rows, segment, 0) for segment in range(len(self.lengths))]
            num_keys = [len(key) for key in keys]
            key_rows = torch.cat(keys).to(device) if sum(num_keys) > sum(self.lengths) else None
            bounds = ([0, *accumulate(lengths)] for lengths in (self.lengths, num_keys))
            ends = (torch.tensor(each, dtype=torch.int32, device=device) for each in bounds)
            self._varlen[device] = (key_rows, *ends, max(self.lengths), max(num_keys))
        return self._varlen[device]


class Windows(PackedLayout):
    """Windows of audio, which share nothing; SDPA computes windows of one length together."""

    def __init__(self, lengths: Sequence[int]):
        super().__init__(lengths, [None] * len(lengths))
        starts = torch.tensor([0, *accumulate(self.lengths)][:-1])
        of_length = torch.tensor(self.lengths)
        # Positions of the windows of each length, shape `(num_windows, length)`.
        sizes = sorted(set(self.lengths))
        self.groups = [starts[of_length == size][:, None] + torch.arange(size) for size in sizes]
        self.order = torch.cat([group.flatten() for group in self.groups]).argsort()


class _PerCall(AttentionInterface):
    """Choose the attention by the arguments of the call, which checkpointing repeats in the backward pass."""

    def get_interface(self, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return partial(_attend_as_asked, super().get_interface(attn_implementation, default))


def _attend_as_asked(
    usual: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, layout: Any = None, **kwargs: Any
) -> Any:
    """Attend as `layout` or `windows` asks; shapes `(1, num_heads, num_tokens, head_dim)`, transposed on return."""
    windows: Any = kwargs.pop("windows", None)
    if layout is None and windows is None:
        return usual(module, query, key, value, *args, **kwargs)
    # Under autocast the rotation leaves float32 what the projections made.
    parts, scaling = (query.to(value.dtype), key.to(value.dtype), value), kwargs["scaling"]
    if has_varlen(value.device.type, value.dtype):
        bounds = (layout or windows).prepare_varlen(value.device)
        return attend_varlen(*parts, bounds, scaling, is_causal=layout is not None), None
    return (_attend_windows(*parts, windows, scaling) if windows else attend_segments(*parts, layout, scaling)), None


def attend_segments(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scaling: float) -> Tensor:
    """Attend causally along each dialogue."""
    mask = layout.make_mask(query)
    outputs = []
    # One split: its backward pass is one concatenation, each slice would have a gradient of the whole length.
    all_queries, all_keys, all_values = (tensor.split(layout.lengths, dim=2) for tensor in (query, key, value))
    for segment, (queries, length) in enumerate(zip(all_queries, layout.lengths, strict=True)):
        keys, values = layout.join(all_keys, segment, 2), layout.join(all_values, segment, 2)
        before = keys.shape[2] - length
        if not before:
            outputs.append(_attend(queries, keys, values, None, scaling))
            continue
        hidden_before = mask.shape[1] - mask.shape[0] - before
        for first in range(0, length, _BLOCK_TOKENS):
            block = queries[:, :, first : first + _BLOCK_TOKENS]
            seen = before + first + block.shape[2]
            visible = mask[first : first + block.shape[2], hidden_before : hidden_before + seen]
            outputs.append(_attend(block, keys[:, :, :seen], values[:, :, :seen], visible, scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    dtype, options = query.dtype, {"is_causal": mask is None, "enable_gqa": query.shape[1] != key.shape[1]}
    if torch.is_grad_enabled() and query.device.type == "cpu" and query.shape[2] <= _FLOAT32_TOKENS:
        query, key, value = query.float(), key.float(), value.float()
        mask = None if mask is None else mask.float()
    with torch.autocast(query.device.type, enabled=False):
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, **options).to(dtype)


def _attend_windows(query: Tensor, key: Tensor, value: Tensor, windows: Windows, scaling: float) -> Tensor:
    """Attend within each window."""
    outputs = []
    for group in windows.groups:
        shape = (query.shape[1], *group.shape, query.shape[3])
        if len(group) == 1:
            first, length = int(group[0, 0]), group.shape[1]
            rows = [tensor[0].narrow(1, first, length) for tensor in (query, key, value)]
        else:
            positions = group.flatten().to(query.device)
            rows = [tensor[0].index_select(1, positions) for tensor in (query, key, value)]
        queries, keys, values = (each.view(shape).transpose(0, 1) for each in rows)
        attended = scaled_dot_product_attention(queries, keys, values, scale=scaling)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[windows.order.to(query.device)][None]


def attend_varlen(query: Tensor, key: Tensor, value: Tensor, bounds: Any, scaling: float, is_causal: bool) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    key_rows, *ends = bounds
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if key_rows is not None:
        keys, values = keys.index_select(0, key_rows), values.index_select(0, key_rows)
    # A window of (-1, 0) ends at the last key for the last query: causal, whatever comes before the queries.
    window = (-1, 0) if is_causal else (-1, -1)
    # Before it had the option, the function took fewer heads of keys unasked.
    has_option = "enable_gqa" in signature(varlen_attn).parameters
    options: dict[str, Any] = {"enable_gqa": True} if has_option and query.shape[1] != key.shape[1] else {}
    attended: Any = varlen_attn(queries, keys, values, *ends, scale=scaling, window_size=window, **options)
    return attended[None]


@lru_cache
def has_varlen(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether PyTorch's variable-length kernel runs here and agrees with SDPA."""
    if device_type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    reason: Any = "it differs from SDPA on this machine"
    try:
        if varlen_agrees(torch.device(device_type), dtype):
            return True
    except (ImportError, NotImplementedError, RuntimeError, TypeError) as error:
        reason = error
    logger.warning("variable-length attention cannot be used (%s); falling back to SDPA, which is slower.", reason)
    return False


def varlen_agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare the kernel with SDPA on segments that have a predecessor."""
    layout = PackedLayout([70, 33, 41], [None, 0, 0])
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 144, 64, generator=generator).to(device, dtype) for heads in (4, 2, 2))
    got = attend_varlen(query, key, value, layout.prepare_varlen(device), 0.125, is_causal=True)
    expected = attend_segments(query, key, value, layout, 0.125)
    return torch.allclose(got.float(), expected.float(), atol=2e-2)


_interface = _PerCall()
_interface._local_mapping = modeling_qwen2_5_omni.ALL_ATTENTION_FUNCTIONS._local_mapping
# As `AttentionInterface` documents for what one family of models overrides.
modeling_qwen2_5_omni.ALL_ATTENTION_FUNCTIONS = _interface
