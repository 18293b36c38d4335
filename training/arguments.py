"""The arguments of training that `trl.RewardConfig` does not have."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .augmentation import AugmentationSettings

TRAIN_MODES = ("head", "lora", "full")


def _field(help_text: str, **options: Any) -> Any:
    """Return a field of a dataclass with its help text."""
    metadata = {"help": help_text, **options.pop("metadata", {})}
    return field(metadata=metadata, **options)


@dataclass
class TrainArguments:
    """Arguments of a training run that `trl.RewardConfig` does not cover; the help of each field describes it."""

    model_name_or_path: str = _field(
        "Checkpoint of this package to train further, Qwen2.5-Omni backbone (Hub id or folder), or `nano` for a new "
        "nano model on Whisper's encoder."
    )
    dataset: str = _field("Folder or repository of pairs with the splits train and validation.")
    dataset_config: str | None = _field("Configuration of the data set, for instance modality.", default=None)
    train: str = _field(
        "What to train: head for score and pooler; lora for these and adapters in the text model; full for all "
        "weights.",
        default="full",
        metadata={"choices": TRAIN_MODES},
    )
    from_cache: str | None = _field(
        "Folder of cached features to train the head on; missing features are computed first. Default: features in "
        "output_dir. Applies to train head.",
        default=None,
    )
    through_backbone: bool = _field(
        "Train the head without a cache: run the frozen backbone in each step.", default=False
    )
    freeze_audio_tower: bool = _field(
        "Freeze the audio tower up to its projection; its output is then computed once. Applies to train full; the "
        "other modes always freeze it.",
        default=True,
    )
    freeze_text_model: bool = _field("Freeze the text model. Applies to train full.", default=False)
    pooling_mode: str = _field("Pooling of a new head: mean, attention or last_token.", default="mean")
    batch_tokens: int | None = _field(
        "Tokens in one forward pass: the pairs of a step are split into micro-batches of this size. Default: 16384 on "
        "an accelerator, 4096 on a CPU.",
        default=None,
    )
    lora_r: int = _field("Rank of the adapters.", default=16)
    lora_alpha: int = _field("Scale of the adapters, in units of 1 / rank.", default=32)
    early_stopping_patience: int | None = _field(
        "Stop after this many evaluations without a lower validation loss.", default=None
    )
    resume: bool = _field("Resume from the newest checkpoint in output_dir.", default=False)
    save_compact: bool = _field("Store the backbone of the final checkpoint in float16.", default=False)
    augmentations: list[str] = _field(
        "Perturbations for copies of the training pairs, by name; all or channel for a group of them.",
        default_factory=list,
    )
    augmented_copies: int = _field("Copies of each training pair, in addition to the pair itself.", default=1)
    augment_sides: str = _field(
        "both puts the two sides of a copy through the same perturbations; each draws perturbations for each side.",
        default="both",
    )
    hard_negatives: list[str] = _field(
        "Attacks by name; each adds training pairs of a chosen side against the attack on it.", default_factory=list
    )
    hard_negative_share: float = _field("Share of the pairs that each attack is applied to, from 0 to 1.", default=1.0)

    def __post_init__(self) -> None:
        self.augmentation(seed=0)
        if self.from_cache is not None and not self.uses_cache:
            how = "through the backbone" if self.train == "head" else repr(self.train)
            raise ValueError(
                f"from_cache is given but train is {how}; only a head can be trained on cached features: set train to "
                "head, or omit from_cache."
            )

    def augmentation(self, seed: int) -> AugmentationSettings:
        """Return the settings of what is added to the training pairs."""
        from .augmentation import AugmentationSettings

        names = [entry.name for entry in fields(AugmentationSettings) if entry.name != "seed"]
        return AugmentationSettings(**{name: getattr(self, name) for name in names}, seed=seed)

    @property
    def uses_cache(self) -> bool:
        """Whether a head is trained on cached features."""
        return self.train == "head" and not self.through_backbone

    @property
    def keeps_audio_tower(self) -> bool:
        """Whether the audio tower stays frozen up to its projection."""
        return self.train != "full" or self.freeze_audio_tower
