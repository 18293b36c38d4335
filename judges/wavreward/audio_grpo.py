"""GRPO for audio language models: `trl.GRPOTrainer` with recordings in its prompts, independent of WavReward.

TRL passes images through a GRPO step, but not audio. This trainer adds four things: the forward passes that score
tokens get the recordings; recordings stay with their rows when a generated batch is shuffled and split into steps; a
prompt repeated for its group is read once; the reference model has the policy's class.

A prompt is a list of messages of text and audio items. The processor's `apply_chat_template` turns the recordings into
`input_features` and `feature_attention_mask`, one row per recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer


# One entry per row: the features of its recordings, and their masks.
_FIELDS = ("input_features", "feature_attention_mask")


class AudioGRPOTrainer(GRPOTrainer):
    """Train like `trl.GRPOTrainer`; the processor's `list_control_token_ids`, if any, are never sampled."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: GRPOConfig,
        *,
        processing_class: Any,
        # The reference model of the KL term. Not called if `beta` is 0 or with adapters: their reference is the policy
        # without them.
        load_reference: Callable[..., Any] | None = None,
        **kwargs: Any,
    ):
        if args.use_vllm or args.use_transformers_continuous_batching:
            raise ValueError("use_vllm and use_transformers_continuous_batching do not support recordings; omit both.")
        suppressed: list[int] = getattr(processing_class, "list_control_token_ids", list)()
        # TRL also types the field as a string, but only a command line gives one.
        given: Any = args.generation_kwargs or {}
        args.generation_kwargs = {"suppress_tokens": suppressed or None, **given}
        self._audio: dict[str, list[torch.Tensor]] = {}
        self._load_reference = load_reference or type(model).from_pretrained
        options = args.model_init_kwargs
        super().__init__(model, reward_funcs, args, processing_class=processing_class, **kwargs)
        args.model_init_kwargs = options

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, and make TRL load the reference model with `load_reference`."""
        # TRL does not accept a reference model. It builds one of the class in the checkpoint's configuration, and
        # Qwen2.5-Omni's does not exist. After this call, TRL reads `model_init_kwargs` only for the reference. Can go
        # once `GRPOTrainer` accepts a reference model.
        super().create_accelerator_and_postprocess()
        args: Any = self.args
        given = args.model_init_kwargs or {}
        args.model_init_kwargs = {**given, "architecture": _ReferenceClass(self._load_reference)}

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Tokenize each distinct prompt once, and keep its recordings for the forward passes."""
        firsts = [index for index, prompt in enumerate(prompts) if not index or prompt != prompts[index - 1]]
        prompt_ids, images, fields = super()._tokenize_prompts([prompts[index] for index in firsts])
        sizes = [after - first for first, after in zip(firsts, [*firsts[1:], len(prompts)], strict=True)]
        rows = [row for row, size in enumerate(sizes) for _ in range(size)]
        counts = [_count_recordings(prompts[index]) for index in firsts]
        by_prompt = {name: fields[name].split(counts) for name in _FIELDS if name in fields}
        device = self.accelerator.device
        self._audio = {name: [parts[row].to(device) for row in rows] for name, parts in by_prompt.items()}
        return [prompt_ids[row] for row in rows], images, {**fields, **_join(self._audio)}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's batch with the recordings of each row; lists are shuffled and split with the rest."""
        batch = super()._generate_and_score_completions(inputs)
        return {**batch, **self._audio}

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        self._audio = {name: inputs[name] for name in _FIELDS if name in inputs}
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Score the tokens in micro-batches, as TRL does, with the recordings of each."""
        size = batch_size or len(input_ids)
        found = []
        for start in range(0, len(input_ids), size):
            part = slice(start, start + size)
            audio = _join({name: rows[part] for name, rows in self._audio.items()})
            found.append(
                super()._get_per_token_logps_and_entropies(
                    partial(model, **audio), input_ids[part], attention_mask[part], logits_to_keep, **kwargs
                )
            )
        logps, entropies, losses = zip(*found, strict=True)
        loss = None if losses[0] is None else torch.stack(losses).mean()
        return torch.cat(logps), None if entropies[0] is None else torch.cat(entropies), loss


class _ReferenceClass:
    """Replaces a model class where TRL only calls `from_pretrained`."""

    def __init__(self, load: Callable[..., Any]):
        self._load = load

    def from_pretrained(self, name_or_path: str, *, dtype: torch.dtype, **_: Any) -> Any:
        """Load the reference model in the policy's dtype; the trainer places it."""
        return self._load(name_or_path, dtype=dtype)


def _count_recordings(prompt: Sequence[Mapping[str, Any]]) -> int:
    contents = [message["content"] for message in prompt if not isinstance(message["content"], str)]
    return sum(item.get("audio") is not None for content in contents for item in content)


def _join(audio: Mapping[str, Sequence[torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Concatenate the recordings of all rows; empty without any."""
    return {name: torch.cat(list(rows)) for name, rows in audio.items() if sum(map(len, rows))}
