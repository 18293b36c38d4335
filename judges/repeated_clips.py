"""Encode each recording of a batch once, even if several rows hold it.

A group of answers to one prompt, sampled for self-consistency or for GRPO, repeats the prompt's recordings in every
row. The model encodes each copy again, to the same vectors. Here each distinct recording is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch


def encode_each_clip_once(audio_tower: Any) -> None:
    """Patch a Qwen2.5-Omni audio tower to skip repeated clips of its input; gradients stay the same."""
    original = audio_tower.forward

    @wraps(original)
    def forward(
        input_features: torch.Tensor, feature_lens: torch.Tensor, aftercnn_lens: torch.Tensor, **kwargs: Any
    ) -> Any:
        clips = input_features.split(feature_lens.tolist(), dim=1)
        firsts, sources = find_repeats(clips)
        if len(firsts) == len(sources):
            return original(input_features, feature_lens=feature_lens, aftercnn_lens=aftercnn_lens, **kwargs)
        distinct = torch.cat([clips[index] for index in firsts], dim=1)
        lengths, after = feature_lens[firsts], aftercnn_lens[firsts]
        outputs = original(distinct, feature_lens=lengths, aftercnn_lens=after, **kwargs)
        _, num_vectors = audio_tower._get_feat_extract_output_lengths(lengths)
        parts = outputs.last_hidden_state.split(num_vectors.tolist())
        outputs.last_hidden_state = torch.cat([parts[source] for source in sources])
        return outputs

    audio_tower.forward = forward


def find_repeats(clips: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    """Return the index of the first of each distinct clip, and for each clip its position in that list."""
    firsts: list[int] = []
    sources: list[int] = []
    by_length: dict[int, list[int]] = {}
    for index, clip in enumerate(clips):
        candidates = by_length.setdefault(clip.shape[1], [])
        found = next((place for place in candidates if torch.equal(clips[firsts[place]], clip)), None)
        if found is None:
            found = len(firsts)
            candidates.append(found)
            firsts.append(index)
        sources.append(found)
    return firsts, sources
