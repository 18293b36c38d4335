"""Score many dialogues: batches of similar length, audio decoded one batch at a time, rewards as they come.

Nothing of the order or of the batch size enters a reward: a dialogue gets the same one alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .audio_sdiareward import audio_duration_s
from .modeling_sdiareward import SDiaRewardModel
from .processing_sdiareward import SDiaRewardProcessor


# For sorting by length only: the audio tower gives 25 vectors a second, English about a token for 4 characters.
_AUDIO_TOKENS_PER_S = 25
_CHARACTERS_PER_TOKEN = 4


class Scorer:
    """Score spoken dialogues with a model and the processor that belongs to it.

    Args:
        model (`SDiaRewardModel`): The reward model; it is put in evaluation mode.
        processor (`SDiaRewardProcessor`): Its processor.
        batch_size (`int`, *optional*, defaults to 8): Dialogues in one forward pass.
        device (`str` or `torch.device`, *optional*): Where to compute; by default where the model is.

    Raises:
        ValueError: The two disagree on something that changes a reward, or `batch_size` is not positive.

    Example:
        >>> scorer = Scorer.from_pretrained("checkpoints/nano")  # doctest: +SKIP
        >>> chosen, rejected = scorer.score([chosen_messages, rejected_messages])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: SDiaRewardModel,
        processor: SDiaRewardProcessor,
        *,
        batch_size: int = 8,
        device: str | torch.device | None = None,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give at least 1.")
        _require_agreement(model, processor)
        if device is not None:
            torch.nn.Module.to(model, device)
        self.model = model.eval()
        self.processor = processor
        self.batch_size = batch_size

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        batch_size: int = 8,
    ) -> Scorer:
        """Load a checkpoint's model and processor.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Folder or Hub id of a checkpoint of this model.
            dtype (`str` or `torch.dtype`, *optional*): Dtype of the backbone; by default what the checkpoint's
                configuration says. Pooling and head are float32 in any case.
            device (`str` or `torch.device`, *optional*): Where to compute; by default the accelerator if there is one.
            batch_size (`int`, *optional*, defaults to 8): Dialogues in one forward pass.
        """
        if device is None:
            device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        model = SDiaRewardModel.from_pretrained(pretrained_model_name_or_path, dtype=dtype or "auto")
        processor = SDiaRewardProcessor.from_pretrained(pretrained_model_name_or_path)
        return cls(model, processor, batch_size=batch_size, device=device)

    def score(self, dialogues: Sequence[Any], criterion: str | Sequence[str] = "joint") -> list[float]:
        """Return the reward of each dialogue, in the order given; higher is better.

        Args:
            dialogues (`list[list[dict]]`): Messages of each dialogue, as the processor takes them.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
        """
        rewards = dict(self.iter_scores(dialogues, criterion))
        return [rewards[index] for index in range(len(dialogues))]

    def iter_scores(
        self, dialogues: Sequence[Any], criterion: str | Sequence[str] = "joint", progress: bool = False
    ) -> Iterator[tuple[int, float]]:
        """Yield `(index, reward)` as each batch is done, the longest dialogues first.

        Args:
            dialogues (`list[list[dict]]`): Messages of each dialogue; audio may stay encoded or on disk.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
            progress (`bool`, *optional*, defaults to `False`): Show a progress bar.

        Raises:
            ValueError: There are not as many criteria as dialogues, or a dialogue cannot be processed.
        """
        from tqdm.auto import tqdm

        criteria = [criterion] * len(dialogues) if isinstance(criterion, str) else list(criterion)
        if len(criteria) != len(dialogues):
            raise ValueError(f"got {len(criteria)} criteria for {len(dialogues)} dialogues; give one for each.")
        order = sorted(range(len(dialogues)), key=lambda index: -estimated_tokens(dialogues[index]))
        with tqdm(total=len(order), disable=not progress, unit="dialogue") as bar:
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                rewards = self._score_batch([dialogues[i] for i in batch], [criteria[i] for i in batch])
                yield from zip(batch, rewards, strict=True)
                bar.update(len(batch))

    @torch.inference_mode()
    def _score_batch(self, dialogues: list[Any], criteria: list[str]) -> list[float]:
        # Padding on the right spares the model its attention mask.
        inputs = self.processor(dialogues, criterion=criteria, padding_side="right").to(self.model.device)
        return self.model(**inputs).logits.squeeze(-1).tolist()


def estimated_tokens(dialogue: Sequence[Mapping[str, Any]]) -> float:
    """Estimate the length of a dialogue in tokens from file headers and character counts, without decoding audio."""
    tokens = 0.0
    for message in dialogue:
        content = message["content"]
        items = [{"text": content}] if isinstance(content, str) else content
        for item in items:
            if item.get("audio") is not None:
                tokens += audio_duration_s(item["audio"]) * _AUDIO_TOKENS_PER_S
            tokens += len(item.get("text") or "") / _CHARACTERS_PER_TOKEN
    return tokens


def _require_agreement(model: SDiaRewardModel, processor: SDiaRewardProcessor) -> None:
    """Raise if the configuration and the processor would compute different rewards."""
    for name in ("prompts", "prompt_version", "max_turn_s", "sampling_rate"):
        of_model, of_processor = getattr(model.config, name), getattr(processor, name)
        if of_model != of_processor:
            raise ValueError(
                f"{name} is {of_model!r} in the model's configuration but {of_processor!r} in the processor; they "
                "must be equal: load both from one checkpoint, or build the processor with the configuration's values."
            )
