"""The arguments of training that `trl.RewardConfig` does not have."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .augmentation import AugmentationSettings

TRAIN_MODES = ("head", "lora", "full")


@dataclass
class TrainArguments:
    """What `trl.RewardConfig` does not cover.

    Args:
        model_name_or_path (`str`): A checkpoint of ours to train on, a Qwen2.5-Omni backbone (Hub id or folder), or
            `"nano"` for a new nano model from Whisper's encoder.
        dataset (`str`): Folder or repository of pairs with the splits `train` and `validation`.
        dataset_config (`str`, *optional*): Its configuration, for instance `"modality"`.
        train (`str`): `head` trains score and pooler; `lora` adapters in the text model as well; `full` all weights.
        from_cache (`str`, *optional*): Folder of cached features to train the head on; what is missing in it is
            computed first. By default `features` in `output_dir`. Applies to `head`.
        through_backbone (`bool`): Train the head without a cache, running the frozen backbone in each step.
        freeze_audio_tower (`bool`): Keep the audio tower up to its projection as it is; its output is then computed
            once. Applies to `full`; the other modes always do.
        freeze_text_model (`bool`): Keep the text model as it is. Applies to `full`.
        pooling_mode (`str`): For a new head: `mean`, `attention` or `last_token`.
        batch_tokens (`int`, *optional*): Tokens in one forward pass: a step's pairs are cut into parts of so many.
        lora_r, lora_alpha (`int`): Rank and scale of the adapters.
        early_stopping_patience (`int`, *optional*): Stop after this many evaluations without a better validation loss.
        resume (`bool`): Go on from the newest checkpoint in `output_dir`.
        save_compact (`bool`): Store the backbone of the final checkpoint in float16.
        augmentations, augmented_copies, augment_sides (`list[str]`, `int`, `str`): Copies of the training pairs
            through other channels; see `pair_augmentation.AugmentationSettings`.
        hard_negatives, hard_negative_share (`list[str]`, `float`): Training pairs against attacks on their own
            chosen side; see there.
    """

    model_name_or_path: str
    dataset: str
    dataset_config: str | None = None
    train: str = field(default="full", metadata={"choices": TRAIN_MODES})
    from_cache: str | None = None
    through_backbone: bool = False
    freeze_audio_tower: bool = True
    freeze_text_model: bool = False
    pooling_mode: str = "mean"
    batch_tokens: int | None = None
    lora_r: int = 16
    lora_alpha: int = 32
    early_stopping_patience: int | None = None
    resume: bool = False
    save_compact: bool = False
    augmentations: list[str] = field(default_factory=list)
    augmented_copies: int = 1
    augment_sides: str = "both"
    hard_negatives: list[str] = field(default_factory=list)
    hard_negative_share: float = 1.0

    def __post_init__(self) -> None:
        self.augmentation(seed=0)
        if self.from_cache is not None and not self.uses_cache:
            how = "through the backbone" if self.train == "head" else repr(self.train)
            raise ValueError(
                f"from_cache is given but train is {how}; only a head can be trained on cached features: use train "
                "head, or leave from_cache out."
            )

    def augmentation(self, seed: int) -> AugmentationSettings:
        """Return what is added to the training pairs."""
        from .augmentation import AugmentationSettings

        names = [entry.name for entry in fields(AugmentationSettings) if entry.name != "seed"]
        return AugmentationSettings(**{name: getattr(self, name) for name in names}, seed=seed)

    @property
    def uses_cache(self) -> bool:
        """Whether a head is trained on cached features."""
        return self.train == "head" and not self.through_backbone

    @property
    def keeps_audio_tower(self) -> bool:
        """Whether the audio tower, up to its projection, stays as it is."""
        return self.train != "full" or self.freeze_audio_tower
