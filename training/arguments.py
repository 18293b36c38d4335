"""The arguments of training that `trl.RewardConfig` does not have."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from sdiareward.common.hub import DatasetRevision, ModelRevision, make_revision_field
from sdiareward.common.package_files import NANO


if TYPE_CHECKING:
    from .augmentation import AugmentationSettings

TRAIN_MODES = ("head", "lora", "full")
_DATA, _MODEL, _WHAT, _RUN, _MORE = "data", "model", "what is trained", "the run", "additional training pairs"
# The mode of training that an option is for; in the other modes it would change nothing.
_MODE_OF = {
    "adapter_name_or_path": "lora",
    "through_backbone": "head",
    "lora_r": "lora",
    "lora_alpha": "lora",
    "train_projection": "lora",
    "freeze_audio_tower": "full",
    "freeze_text_model": "full",
}
# What an option needs beside it.
_NEEDED_BY = {
    "augmented_copies": "augmentations",
    "augment_sides": "augmentations",
    "hard_negative_share": "hard_negatives",
}


def _make_field(help_text: str, **options: Any) -> Any:
    metadata = {"help": help_text, **options.pop("metadata", {})}
    return field(metadata=metadata, **options)


@dataclass
class TrainArguments(ModelRevision, DatasetRevision):
    """Arguments of a training run that `trl.RewardConfig` does not cover; the help of each field describes it."""

    dataset: str = _make_field(
        "Folder or repository of pairs with the splits train and validation, or a .json, .jsonl or .parquet file, of "
        "which validation_share is held out.",
        metadata={"group": _DATA},
    )
    model_name_or_path: str = _make_field(
        "Checkpoint to train further or Qwen2.5-Omni backbone (Hub id or folder), `small` for the checkpoint of the "
        "package, or `nano` for a new model of that size (default: the nano checkpoint of the package).",
        default=str(NANO),
        metadata={"flag": "model", "group": _MODEL},
    )
    dataset_config: str | None = _make_field(
        "Configuration of the data set, for instance modality.",
        default=None,
        metadata={"aliases": ("--dataset_name",), "group": _DATA},
    )
    more_datasets: list[str] = _make_field(
        "Further data sets in any of these forms; their pairs are added to those of dataset, split by split.",
        default_factory=list,
        metadata={"group": _DATA},
    )
    more_revisions: list[str] | None = make_revision_field("more_datasets", "each of these", "dataset", group=_DATA)
    audio_root: str | None = _make_field(
        "Folder that relative paths of recordings begin at that are not found beside the table.",
        default=None,
        metadata={"group": _DATA},
    )
    validation_share: float = _make_field(
        "Share of a file's pairs to hold out for validation, in complete groups.",
        default=0.1,
        metadata={"group": _DATA},
    )
    max_eval_samples: int | None = _make_field(
        "Validate on this many pairs at most, drawn by the seed. Default: on all.",
        default=None,
        metadata={"group": _DATA},
    )
    train: str = _make_field(
        "What to train: head for score and pooler; lora for these and adapters in the text model; full for all "
        "weights.",
        default="full",
        metadata={"group": _WHAT, "choices": TRAIN_MODES},
    )
    from_cache: str | None = _make_field(
        "Folder of cached features to train the head on; missing features are computed first. Default: features in "
        "output_dir. Applies to train head.",
        default=None,
        metadata={"group": _WHAT},
    )
    through_backbone: bool = _make_field(
        "Train the head without a cache: run the frozen backbone in each step.",
        default=False,
        metadata={"group": _WHAT},
    )
    freeze_audio_tower: bool = _make_field(
        "Freeze the audio tower up to its projection; its output is then computed once. Applies to train full; the "
        "other modes always freeze it.",
        default=True,
        metadata={"group": _WHAT},
    )
    freeze_text_model: bool = _make_field(
        "Freeze the text model. Applies to train full.", default=False, metadata={"group": _WHAT}
    )
    pooling_mode: str = _make_field(
        "Pooling of a new head: mean, attention or last_token.", default="mean", metadata={"group": _MODEL}
    )
    prompt_file: str | None = _make_field(
        "System prompts to train with, in place of the start model's: YAML (reward_* of configs/prompts.yaml), JSON "
        "from criterion to text, or one text for all. They are saved with the checkpoint.",
        default=None,
        metadata={"group": _MODEL},
    )
    max_turn_s: float | None = _make_field(
        "Seconds of each turn that the model hears, saved with the checkpoint (default: the start model's).",
        default=None,
        metadata={"group": _MODEL},
    )
    batch_tokens: int | None = _make_field(
        "Tokens in one forward pass: the pairs of a step are split into micro-batches of this size. Default: 16384 on "
        "an accelerator, 4096 on a CPU.",
        default=None,
        metadata={"group": _RUN},
    )
    adapter_name_or_path: str | None = _make_field(
        "Adapters to train further, in place of new ones: the folder adapter of an earlier run. Applies to lora.",
        default=None,
        metadata={"group": _WHAT},
    )
    lora_r: int = _make_field("Rank of the adapters.", default=16, metadata={"group": _WHAT})
    lora_alpha: int = _make_field(
        "Scale of the adapters, in units of 1 / rank.", default=32, metadata={"group": _WHAT}
    )
    adapter_revision: str | None = make_revision_field("adapter_name_or_path", "those adapters", group=_MODEL)
    train_projection: bool = _make_field(
        "Train the projection of the audio tower beside the adapters. Applies to train lora.",
        default=False,
        metadata={"group": _WHAT},
    )
    early_stopping_patience: int | None = _make_field(
        "Stop after this many evaluations without a lower validation loss.", default=None, metadata={"group": _RUN}
    )
    resume: bool = _make_field(
        "Resume from the newest checkpoint in output_dir.", default=False, metadata={"group": _RUN}
    )
    save_compact: bool = _make_field(
        "Store the backbone of the final checkpoint in float16.", default=False, metadata={"group": _RUN}
    )
    augmentations: list[str] = _make_field(
        "Perturbations for copies of the training pairs, by name; all or channel for those that the audit "
        "does not hold out.",
        default_factory=list,
        metadata={"group": _MORE},
    )
    augmented_copies: int = _make_field(
        "Copies of each training pair, in addition to the pair itself.", default=1, metadata={"group": _MORE}
    )
    augment_sides: str = _make_field(
        "both puts the two sides of a copy through the same perturbations; each draws perturbations for each side.",
        default="both",
        metadata={"group": _MORE},
    )
    hard_negatives: list[str] = _make_field(
        "Attacks by name; each adds training pairs of a chosen side against the attack on it.",
        default_factory=list,
        metadata={"group": _MORE},
    )
    hard_negative_share: float = _make_field(
        "Share of the pairs that each attack is applied to, from 0 to 1.", default=1.0, metadata={"group": _MORE}
    )

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share is {self.validation_share:g}; it must be between 0 and 1.")
        if self.max_eval_samples is not None and self.max_eval_samples < 1:
            raise ValueError(f"max_eval_samples is {self.max_eval_samples}; it must be at least 1, or omitted.")
        if self.early_stopping_patience is not None and self.early_stopping_patience < 1:
            raise ValueError(
                f"early_stopping_patience is {self.early_stopping_patience}; it must be at least 1, or omitted."
            )
        if self.max_turn_s is not None:
            from sdiareward.configuration_sdiareward import validate_max_turn_s

            validate_max_turn_s(self.max_turn_s)
        self.make_augmentation(seed=0)
        self._require_effects()
        if self.from_cache is not None and not self.uses_cache:
            how = "through the backbone" if self.train == "head" else repr(self.train)
            raise ValueError(
                f"from_cache is given but train is {how}; only a head can be trained on cached features: set train to "
                "head, or omit from_cache."
            )

    def _require_effects(self) -> None:
        """Raise `ValueError` for an option that would change nothing beside the others."""
        # A list is given if it is not empty.
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        changed = {entry.name for entry in fields(self) if given[entry.name] not in (entry.default, [])}
        for name in sorted(changed & set(_MODE_OF)):
            if (mode := _MODE_OF[name]) != self.train:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r} but train is {self.train!r}, in which it has no effect; set "
                    f"train to {mode}, or omit {name}."
                )
        for name in sorted(changed & set(_NEEDED_BY)):
            if not getattr(self, needed := _NEEDED_BY[name]):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r} without {needed}, and has no effect; give {needed} too, or "
                    f"omit {name}."
                )

    def make_augmentation(self, seed: int) -> AugmentationSettings:
        from .augmentation import AugmentationSettings

        names = [entry.name for entry in fields(AugmentationSettings) if entry.name != "seed"]
        return AugmentationSettings(**{name: getattr(self, name) for name in names}, seed=seed)

    def read_prompts(self) -> dict[str, str] | None:
        from sdiareward.pairs.prompts import read_prompts

        return None if self.prompt_file is None else read_prompts(self.prompt_file)

    @property
    def uses_cache(self) -> bool:
        return self.train == "head" and not self.through_backbone

    @property
    def keeps_audio_tower(self) -> bool:
        """Whether the audio tower stays frozen up to its projection."""
        return self.train != "full" or self.freeze_audio_tower
