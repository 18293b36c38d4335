"""Attention of packed batches: where tokens lie in one row, and which of them attend to each other.

A call that brings a `layout` (text) or `windows` (audio) gets this attention, any other call that of the model's
configuration: the model is not changed, so threads may share it. On CUDA in half precision PyTorch's variable-length
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
        self.starts = [0, *accumulate(self.lengths)][:-1]
        self.paths: list[list[int]] = []
        for index, parent in enumerate(parents):
            self.paths.append([index] if parent is None else [*self.paths[parent], index])
        # By device: a model may be spread over several.
        self._masks: dict[torch.device, torch.Tensor] = {}
        self._varlen: dict[torch.device, tuple[Any, ...]] = {}

    @property
    def num_before(self) -> list[int]:
        return [sum(self.lengths[index] for index in path[:-1]) for path in self.paths]

    def compute_positions(self) -> torch.Tensor:
        """Return the place of each token in its dialogue, shape `(num_tokens,)`."""
        pairs = zip(self.num_before, self.lengths, strict=True)
        return torch.cat([torch.arange(before, before + length) for before, length in pairs])

    def take_along(self, tensor: torch.Tensor, segment: int, dim: int) -> torch.Tensor:
        """Return the part of `tensor` that belongs to a segment and to its predecessors in the dialogue."""
        return self.join(tensor.split(self.lengths, dim=dim), segment, dim)

    def join(self, parts: Sequence[torch.Tensor], segment: int, dim: int) -> torch.Tensor:
        """Return what `take_along` does, of a tensor that is split into the segments."""
        path = self.paths[segment]
        return parts[segment] if len(path) == 1 else torch.cat([parts[index] for index in path], dim=dim)

    def make_mask(self, like: torch.Tensor) -> torch.Tensor:
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
            rows = torch.arange(sum(self.lengths))
            keys = [self.take_along(rows, segment, 0) for segment in range(len(self.lengths))]
            num_keys = [len(key) for key in keys]
            shares = any(len(path) > 1 for path in self.paths)
            self._varlen[device] = (
                torch.cat(keys).to(device) if shares else None,
                _make_bounds(self.lengths, device),
                _make_bounds(num_keys, device),
                max(self.lengths),
                max(num_keys),
            )
        return self._varlen[device]


class Windows:
    def __init__(self, lengths: Sequence[int]):
        self.lengths = list(lengths)
        self._varlen: dict[torch.device, tuple[Any, ...]] = {}
        starts = torch.tensor([0, *accumulate(self.lengths)][:-1])
        of_length = torch.tensor(self.lengths)
        # Positions of the windows of each length, shape `(num_windows, length)`.
        self.groups = [
            starts[of_length == length][:, None] + torch.arange(length) for length in sorted(set(self.lengths))
        ]
        self.order = torch.cat([group.flatten() for group in self.groups]).argsort()

    def prepare_varlen(self, device: torch.device) -> tuple[Any, ...]:
        if device not in self._varlen:
            bounds = _make_bounds(self.lengths, device)
            self._varlen[device] = (None, bounds, bounds, max(self.lengths), max(self.lengths))
        return self._varlen[device]


def _make_bounds(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


class _PerCall(AttentionInterface):
    """Choose the attention by the arguments of the call, which checkpointing repeats in the backward pass."""

    def get_interface(self, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return partial(_attend_as_asked, super().get_interface(attn_implementation, default))


def _attend_as_asked(usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    attend = _attend_segments if "layout" in kwargs else _attend_windows if "windows" in kwargs else usual
    return attend(*args, **kwargs)


def _attend_segments(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    layout: PackedLayout,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend causally along each dialogue; shapes `(1, num_heads, num_tokens, head_dim)`, transposed on return."""
    # Under autocast the rotation leaves float32 what the projections made.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if has_varlen(query.device.type, query.dtype):
        return _attend_varlen(query, key, value, layout.prepare_varlen(query.device), scaling, causal=True), None
    mask = layout.make_mask(query)
    outputs = []
    # One split, whose backward pass is one concatenation: each slice would have a gradient of the whole length.
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
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    dtype = query.dtype
    if torch.is_grad_enabled() and query.device.type == "cpu" and query.shape[2] <= _FLOAT32_TOKENS:
        query, key, value = query.float(), key.float(), value.float()
        mask = None if mask is None else mask.float()
    with torch.autocast(query.device.type, enabled=False):
        attended = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return attended.to(dtype)


def _attend_windows(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    windows: Windows,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each window; shapes `(1, num_heads, num_positions, head_dim)`, transposed on return."""
    if has_varlen(query.device.type, query.dtype):
        return _attend_varlen(query, key, value, windows.prepare_varlen(query.device), scaling, causal=False), None
    outputs = []
    for group in windows.groups:
        shape = (*query.shape[1:2], *group.shape, query.shape[3])
        queries, keys, values = (
            _find_rows(tensor[0], group).view(shape).transpose(0, 1) for tensor in (query, key, value)
        )
        attended = scaled_dot_product_attention(queries, keys, values, scale=scaling)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[windows.order.to(query.device)][None], None


def _find_rows(tensor: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Return the positions of a group of windows, shape `(num_heads, num_windows * length, head_dim)`."""
    if len(group) == 1:
        return tensor.narrow(1, int(group[0, 0]), group.shape[1])
    return tensor.index_select(1, group.flatten().to(tensor.device))


def _attend_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: tuple[Any, ...], scaling: float, causal: bool
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    key_rows, *ends = bounds
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if key_rows is not None:
        keys, values = keys.index_select(0, key_rows), values.index_select(0, key_rows)
    # A window of (-1, 0) ends at the last key for the last query: causal, whatever comes before the queries.
    window = (-1, 0) if causal else (-1, -1)
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
    try:
        return _varlen_agrees(torch.device(device_type), dtype)
    except (ImportError, NotImplementedError, RuntimeError, TypeError) as error:
        logger.warning("variable-length attention cannot be used (%s); falling back to SDPA, which is slower.", error)
        return False


def _varlen_agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Compare the kernel with SDPA on a segment that has predecessors."""
    layout = PackedLayout([70, 33, 41], [None, 0, 0])
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 144, 64), (1, 2, 144, 64), (1, 2, 144, 64))
    query, key, value = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    got = _attend_varlen(query, key, value, layout.prepare_varlen(device), 0.125, causal=True)
    for segment in range(3):
        keys, values = (layout.take_along(tensor, segment, 2).repeat_interleave(2, dim=1) for tensor in (key, value))
        mask = torch.ones(layout.lengths[segment], keys.shape[2], dtype=torch.bool, device=device)
        queries = layout.take_along(query, segment, 2)[:, :, -layout.lengths[segment] :]
        expected = scaled_dot_product_attention(
            queries, keys, values, mask.tril(keys.shape[2] - layout.lengths[segment]), scale=0.125
        )
        part = got.narrow(1, layout.starts[segment], layout.lengths[segment]).transpose(1, 2)
        if not torch.allclose(part.float(), expected.float(), atol=2e-2):
            logger.warning(
                "variable-length attention differs from SDPA on this machine; falling back to SDPA, which is slower."
            )
            return False
    return True


_interface = _PerCall()
_interface._local_mapping = modeling_qwen2_5_omni.ALL_ATTENTION_FUNCTIONS._local_mapping
# As `AttentionInterface` documents for what one family of models overrides.
modeling_qwen2_5_omni.ALL_ATTENTION_FUNCTIONS = _interface
