"""What SDiaReward computes around the text model: positions, pooling of its last hidden states, and the reward.

Paper: SDiaReward, section 4, equation 1: `r = score(pool(H))`. Both run in float32 whatever the backbone's dtype: in
bfloat16 rewards near 5 move in steps of 0.03 and tie. Their weights are loaded in float32; where an engine casts them
(DeepSpeed's bf16), the arithmetic stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers.utils import ModelOutput


@dataclass
class SDiaRewardOutput(ModelOutput):
    """Hold what `SDiaRewardModel` returns.

    Args:
        loss (`torch.FloatTensor` of shape `()`, *optional*): Mean squared error from the labels.
        logits (`torch.FloatTensor` of shape `(batch_size, 1)`): Rewards, float32; higher is better.
        pooled (`torch.FloatTensor` of shape `(batch_size, hidden_size)`): Pooled last hidden states, float32.
        hidden_states (`tuple[torch.FloatTensor]`, *optional*): The embeddings and the output of each text layer, the
            last after the final norm, each of shape `(batch_size, sequence_length, hidden_size)`.
        attentions (`tuple[torch.FloatTensor]`, *optional*): Weights of each text layer, of shape
            `(batch_size, num_heads, sequence_length, sequence_length)`.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    pooled: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class Float32Linear(nn.Linear):
    """Compute in float32 and return float32, whatever the dtype of the weights."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the layer; call it with autocast disabled."""
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(inputs.float(), self.weight.float(), bias)


class StackedProjection(nn.Linear):
    """Project stacked vectors; those that the audio tower passes on before they are stacked stay as they are."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Project vectors of shape `(num_audio_tokens, in_features)`, and return any others."""
        return super().forward(input) if input.shape[-1] == self.in_features else input


def stack_vectors(vectors: torch.Tensor, counts: list[int], factor: int) -> torch.Tensor:
    """Join every `factor` vectors of a clip, filled up with zeros.

    Args:
        vectors (`torch.Tensor` of shape `(num_vectors, size)`): All clips, one after the other.
        counts (`list[int]`): Number of vectors of each clip.
        factor (`int`): How many become one.

    Returns:
        `torch.Tensor` of shape `(num_audio_tokens, factor * size)`.
    """
    padded = [nn.functional.pad(clip, (0, 0, 0, -len(clip) % factor)) for clip in vectors.split(counts)]
    return torch.cat(padded).view(-1, factor * vectors.shape[1])


class SDiaRewardPooler(nn.Module):
    """Pool the hidden states of all attended tokens, system prompt included, to one vector a row.

    Args:
        hidden_size (`int`): Width of the hidden states.
        pooling_mode (`str`): `"mean"`, `"attention"` or `"last_token"`.
    """

    def __init__(self, hidden_size: int, pooling_mode: str):
        super().__init__()
        self.pooling_mode = pooling_mode
        if pooling_mode == "attention":
            self.attn = Float32Linear(hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Pool in float32.

        Args:
            hidden_states (`torch.Tensor` of shape `(batch_size, sequence_length, hidden_size)`): Any floating dtype.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`): 1 on tokens, 0 on padding.

        Returns:
            `torch.Tensor` of shape `(batch_size, hidden_size)`, float32; zeros for a row that is all padding.
        """
        mask = attention_mask.bool()
        hidden_states = hidden_states.float().masked_fill(~mask.unsqueeze(-1), 0.0)
        return torch.einsum("bl,blh->bh", self._weights(hidden_states, mask), hidden_states)

    def _weights(self, hidden_states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return weights of shape `(batch_size, sequence_length)` that sum to 1, or to 0 where all is padding."""
        if self.pooling_mode == "mean":
            return mask / mask.sum(dim=-1, keepdim=True).clamp(min=1)
        if self.pooling_mode == "attention":
            scores = self.attn(hidden_states).squeeze(-1)
            return scores.masked_fill(~mask, torch.finfo(torch.float32).min).softmax(dim=-1) * mask
        is_last = mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
        return is_last.float()


def compute_reward(score: Float32Linear, pooled: torch.Tensor, reward_scale: float) -> torch.Tensor:
    """Compute `reward_scale * score(pooled)`, float32 of shape `(batch_size, 1)`.

    Args:
        score ([`Float32Linear`]): The score head.
        pooled (`torch.Tensor` of shape `(batch_size, hidden_size)`): From the pooler.
        reward_scale (`float`): As in [`SDiaRewardConfig`].
    """
    with torch.autocast(pooled.device.type, enabled=False):
        return score(pooled) * reward_scale


def weight_dtype(layer: nn.Linear) -> torch.dtype:
    """Return the dtype that a linear layer takes."""
    # The weight of a dynamically quantised layer is a method, and the layer takes float32.
    return layer.weight.dtype if isinstance(layer.weight, torch.Tensor) else torch.float32


def locate_tokens(attention_mask: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the mask that the text model needs, and positions of shape `(batch_size, sequence_length)`."""
    # Whether there is padding on the left is data, which a traced graph does not know.
    if torch.compiler.is_compiling() or not bool(attention_mask[:, 0].all()):
        return attention_mask, (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)
    # Attention is causal: padding on the right is never looked at, and without a mask the fast kernels apply.
    # Counting on over the padding keeps the library from taking it for a packed second sequence.
    return None, torch.arange(attention_mask.shape[1], device=attention_mask.device).expand_as(attention_mask)


__all__ = ["Float32Linear", "SDiaRewardOutput", "SDiaRewardPooler", "compute_reward", "locate_tokens", "weight_dtype"]
