"""Train the head of a reward model on cached features, without the backbone (paper, section 4 and appendix A).

The published recipe freezes the backbone: only the score head is trained, and the attention pooler where there is one,
on hidden states that never change. Here they come from a `FeatureCache`. Loss, sampling and optimizer are those of
`SDiaRewardTrainer`, so a run gives the same numbers as one through the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import datasets
import torch
from accelerate import PartialState
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers import initialization as init

from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.loading_sdiareward import check_shapes, list_shapes, read_thinker_config, to_native_key
from sdiareward.modeling_sdiareward import (
    Float32Linear,
    SDiaRewardModel,
    SDiaRewardOutput,
    SDiaRewardPooler,
    compute_reward,
)
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.feature_cache import FeatureCache

from .batches import PairBatch, list_labels
from .precompute import READ_AHEAD, SkippedPair, list_criteria, precompute_pairs


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer


_HEAD_PREFIXES = ("score.", "pooler.")


class SDiaRewardHead(PreTrainedModel):
    """The pooler and the score head of `SDiaRewardModel`, under the same names."""

    config: SDiaRewardConfig
    config_class = SDiaRewardConfig
    base_model_prefix = ""
    # A head has no attention: any attention implementation of its model is accepted.
    _supports_sdpa = _supports_flash_attn = True
    _keep_in_fp32_modules_strict = ["score", "pooler"]
    # The rest of a checkpoint, in any layout.
    _keys_to_ignore_on_load_unexpected = [r"^(?!score\.|pooler\.)"]

    def __init__(self, config: SDiaRewardConfig):
        super().__init__(config)
        hidden_size = config.get_text_config().hidden_size
        self.pooler = SDiaRewardPooler(hidden_size, config.pooling_mode)
        self.score = Float32Linear(hidden_size, 1, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            init.zeros_(parameter)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the head of a checkpoint that `SDiaRewardModel.from_pretrained` takes, and nothing else of it."""
        kwargs = SDiaRewardModel.with_foreign_config(pretrained_model_name_or_path, kwargs)
        config = kwargs.get("config") or SDiaRewardConfig.from_pretrained(pretrained_model_name_or_path)
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in cls(config).state_dict().items()}
        shapes = list_shapes(pretrained_model_name_or_path)
        found = {
            name: shape for name, shape in shapes.items() if (to_native_key(name) or "").startswith(_HEAD_PREFIXES)
        }
        check_shapes(found, expected, (), pretrained_model_name_or_path)
        return super().from_pretrained(
            pretrained_model_name_or_path,
            *args,
            **{**kwargs, "key_mapping": {r"^score_head\.": "score."}, "use_safetensors": True},
        )

    @classmethod
    def from_backbone(cls, pretrained_model_name_or_path: Any, *, pooling_mode: str = "mean") -> SDiaRewardHead:
        """Make the head, at zero, that `SDiaRewardModel.from_backbone` puts on a pretrained thinker."""
        thinker = read_thinker_config(pretrained_model_name_or_path)
        return cls(SDiaRewardConfig.from_thinker(thinker, pooling_mode=pooling_mode))

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> SDiaRewardOutput:
        """Compute rewards from features; a pooled vector is a sequence of one, kept by mean and last-token pooling."""
        with torch.autocast(hidden_states.device.type, enabled=False):
            pooled = self.pooler(hidden_states, attention_mask)
        return SDiaRewardOutput(logits=compute_reward(self.score, pooled, self.config.reward_scale), pooled=pooled)

    def put_into(self, model: SDiaRewardModel) -> None:
        model.pooler.load_state_dict(self.pooler.state_dict())
        model.score.load_state_dict(self.score.state_dict())


@dataclass(frozen=True)
class FeatureBatch(PairBatch):
    """Pairs with cached features as sides, each of shape `(num_rows, hidden_size)`."""

    def make_inputs(self) -> dict[str, Any]:
        """Return the arguments of `SDiaRewardHead.forward`, the chosen sides first, padded on the right."""
        features = self.chosen + self.rejected
        lengths = torch.tensor([len(feature) for feature in features])
        hidden_states = pad_sequence(features, batch_first=True)
        mask = torch.arange(hidden_states.shape[1]) < lengths[:, None]
        return {"hidden_states": hidden_states, "attention_mask": mask.long()}


class FeatureCollator:
    """Make a [`FeatureBatch`] of rows from `cache_pairs`."""

    def __init__(self, features: Mapping[str, torch.Tensor] | FeatureCache):
        self.features = features

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, PairBatch]:
        sides: dict[str, Any] = {side: [self.features[row[f"{side}_key"]] for row in rows] for side in SIDES}
        return {"pairs": FeatureBatch(**list_labels(rows), **sides)}


def cache_pairs(
    splits: Mapping[str, Any],
    cache: FeatureCache,
    load_scorer: Callable[[], Scorer],
    *,
    max_length: int | None = None,
    num_workers: int = 0,
) -> tuple[dict[str, datasets.Dataset], list[SkippedPair]]:
    """Compute missing features, under `accelerate launch` a share per process; return rows for `FeatureCollator`."""
    state = PartialState()
    scorer: Scorer | None = None
    rows, skipped, keys = {}, [], {}
    for split, pairs in splits.items():
        options: dict[str, Any] = {"split": split, "max_length": max_length, "num_workers": num_workers}
        found, bad = precompute_pairs(pairs, cache.processor, cache.folder / READ_AHEAD, **options)
        rows[split] = found.select_columns(["row", "pair_id", "num_cut", "content"])
        skipped += bad
        numbers, criteria = found["row"], list_criteria(pairs)
        dialogues = Dialogues(pairs, numbers)
        prompts, groups = [criteria[row] for row in numbers for _ in SIDES], [row for row in numbers for _ in SIDES]
        keys[split] = cache.keys(dialogues, prompts, progress=True)
        own = [
            key if index // 2 % state.num_processes == state.process_index else None
            for index, key in enumerate(keys[split])
        ]
        if cache.missing(own):
            scorer = scorer or load_scorer()
            cache.fill(scorer, dialogues, prompts, keys=own, groups=groups, progress=True)
    state.wait_for_everyone()
    cache.refresh()
    for split, found in rows.items():
        sides = [keys[split][number :: len(SIDES)] for number in range(len(SIDES))]
        for side, of_side in zip(SIDES, sides, strict=True):
            found = found.add_column(f"{side}_key", of_side)
        lengths = [sum(map(cache.num_rows, pair)) for pair in zip(*sides, strict=True)]
        rows[split] = found.add_column("length", lengths)
    return rows, skipped
