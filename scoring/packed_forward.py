"""Run the model over many dialogues in one row: no padding, and a shared prefix is computed once.

A batch is a forest of segments (`batching.build_prefix_tree`) laid end to end. A token attends to the earlier tokens
of its own segment and to the preceding segments of its dialogue (`packed_attention`). Its position is its place in the
dialogue. Mean pooling stays exact: the hidden states of each segment are summed once, and the sums are added up along
each dialogue.

The audio tower attends within windows of `2 * n_window` frames (2 s in Qwen2.5-Omni). Windows of one length are
computed together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sdiareward.modeling_sdiareward import SDiaRewardModel

from .batching import Message, Segment, build_prefix_tree, count_tokens
from .packed_attention import PackedLayout, Windows


@dataclass(frozen=True)
class PackedOutput:
    rewards: Tensor  # Shape `(num_dialogues, 1)`, float32.
    pooled: Tensor  # Shape `(num_dialogues, hidden_size)`, float32.
    hidden_states: Tensor  # Shape `(num_tokens, hidden_size)`, segment by segment.
    layout: PackedLayout
    last: list[int]  # Last segment of each dialogue.


def run_packed_batch(
    model: SDiaRewardModel,
    dialogues: Sequence[Sequence[Message]],
    encode: Callable[[list[bytes]], list[Tensor]],
    *,
    share_prefixes: bool = True,
) -> PackedOutput:
    """Score dialogues in one pass; `encode` returns the audio tower's vectors of clips by their digests."""
    segments, last = build_prefix_tree(dialogues, share_prefixes)
    vectors = encode([digest for segment in segments for message in segment.messages for digest in message.clips])
    hidden, layout = run_packed(model, segments, vectors)
    # Identical dialogues end in one segment and share one row: the product with the head may round equal rows
    # differently, depending on their place in the batch.
    ends = {segment: row for row, segment in enumerate(dict.fromkeys(last))}
    with torch.autocast(hidden.device.type, enabled=False):
        pooled = pool_packed(model, hidden, layout, list(ends))
    rows = [ends[segment] for segment in last]
    return PackedOutput(model.reward(pooled)[rows], pooled[rows], hidden, layout, last)


def encode_clips(model: SDiaRewardModel, mels: Sequence[Tensor]) -> list[Tensor]:
    """Return the audio tower's vectors of each clip, shape `(num_audio_tokens, stack_factor * d_model)`."""
    num_frames = [mel.shape[1] for mel in mels]
    features = torch.nn.utils.rnn.pad_sequence([mel.T for mel in mels], batch_first=True).transpose(1, 2)
    mask = torch.arange(features.shape[2]) < torch.tensor(num_frames)[:, None]
    windows = Windows(compute_window_lengths(num_frames, model.model.audio_tower.n_window))
    everything = torch.tensor([0, sum(windows.lengths)], dtype=torch.int32)
    inputs = features.to(model.device), mask.long().to(model.device)
    encoded = model.encode_audio(*inputs, cu_seqlens=everything, windows=windows)
    return list(encoded.split(model.count_audio_tokens(torch.tensor(num_frames)).tolist()))


def compute_window_lengths(num_frames: Sequence[int], n_window: int) -> list[int]:
    """Return the length of every attention window behind the tower's convolutions, which halve the frames."""
    lengths = []
    for frames in num_frames:
        full, rest = divmod(frames, 2 * n_window)
        lengths += [n_window] * full + ([(rest - 1) // 2 + 1] if rest else [])
    return lengths


def run_packed(
    model: SDiaRewardModel, segments: Sequence[Segment], clips: Sequence[Tensor]
) -> tuple[Tensor, PackedLayout]:
    """Return the last hidden states, after the final norm, shape `(num_tokens, hidden_size)`."""
    layout = PackedLayout([count_tokens(each.messages) for each in segments], [each.parent for each in segments])
    messages = [message for segment in segments for message in segment.messages]
    ids = torch.cat([torch.from_numpy(message.input_ids) for message in messages])[None].to(model.device)
    embeds = model.embed(ids, audio_features=torch.cat(list(clips)) if clips else None)
    text_model = model.model.language_model
    output = text_model(
        inputs_embeds=embeds,
        position_ids=layout.compute_positions().to(ids.device).expand(3, 1, -1),
        # Already a mapping, so that no mask is built: the attention function knows what each token attends to.
        attention_mask=dict.fromkeys(text_model.config.layer_types),
        use_cache=False,
        layout=layout,
    )
    return output.last_hidden_state[0], layout


def pool_packed(model: SDiaRewardModel, hidden: Tensor, layout: PackedLayout, last: Sequence[int]) -> Tensor:
    """Pool the hidden states of each dialogue in float32."""
    if model.config.pooling_mode == "mean":
        sums = torch.stack([part.float().sum(dim=0) for part in hidden.split(layout.lengths)])
        ends = [before + length for before, length in zip(layout.num_before, layout.lengths, strict=True)]
        return torch.stack([sums[layout.paths[index]].sum(dim=0) / ends[index] for index in last])
    rows = [layout.take_along(hidden, index, 0)[None] for index in last]
    return torch.cat([model.pooler(row, row.new_ones(row.shape[:2])) for row in rows])


class ClipCache(OrderedDict[bytes, Tensor]):
    """Keep the vectors of the most recent clips, up to a number of bytes; threads may share it."""

    # Of all caches: it is held for moments, and a copy of a cache needs none of its own.
    _lock = threading.RLock()

    def __init__(self, max_bytes: int):
        super().__init__()
        self.max_bytes, self.num_bytes = max_bytes, 0

    def __reduce__(self) -> tuple[type[ClipCache], tuple[int]]:
        """Copy and pickle without the clips."""
        return ClipCache, (self.max_bytes,)

    def find(self, digest: bytes) -> Tensor | None:
        with self._lock:
            if digest in self:
                self.move_to_end(digest)
            return self.get(digest)

    def add(self, digest: bytes, vectors: Tensor) -> None:
        with self._lock:
            if digest not in self:
                # A copy, for the vectors of all clips of a batch are one tensor.
                self[digest] = vectors.clone()
                self.num_bytes += vectors.nbytes
            while self.num_bytes > self.max_bytes:
                self.num_bytes -= self.popitem(last=False)[1].nbytes
