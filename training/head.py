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
from accelerate.utils import gather_object
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
from sdiareward.pairs.labels import name_criterion
from sdiareward.pairs.loading import name_pairs
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.scoring.feature_cache import FeatureCache

from .batches import PairBatch, list_labels
from .usable_pairs import CountedDialogues, SkippedPair, explain_equal_sides, explain_side, select_usable


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer


_HEAD_PREFIXES = ("score.", "pooler.")
# Largest relative difference between two computations of a feature, in bfloat16 and in different batches.
_ROUNDING = 0.05


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
    def __init__(self, cache: FeatureCache):
        self.cache = cache

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, PairBatch]:
        sides: dict[str, Any] = {side: [self.cache[row[f"{side}_key"]] for row in rows] for side in SIDES}
        return {"pairs": FeatureBatch(**list_labels(rows), **sides)}


def cache_pairs(
    splits: Mapping[str, datasets.Dataset], cache: FeatureCache, load_scorer: Callable[[], Scorer]
) -> tuple[dict[str, datasets.Dataset], list[SkippedPair]]:
    """Compute missing features, under `accelerate launch` a share per process; return rows for `FeatureCollator`."""
    state = PartialState()
    scorer: Scorer | None = None
    keys: dict[str, list[str | None]] = {}
    dialogues: dict[str, CountedDialogues] = {}
    found: list[tuple[str, int, str]] = []
    for split, pairs in splits.items():
        sides, criteria = CountedDialogues(pairs, cache.processor.max_turn_s), _list_criteria(pairs)
        dialogues[split] = sides
        rows = [index // len(SIDES) for index in range(len(sides))]
        bad: dict[int, str] = {}
        keys[split] = cache.keys(sides, criteria, skipped=bad, progress=True)
        own = [
            key if row % state.num_processes == state.process_index else None
            for row, key in zip(rows, keys[split], strict=True)
        ]
        if cache.missing(own):
            scorer = scorer or load_scorer()
            cache.fill(scorer, sides, criteria, keys=own, groups=rows, skipped=bad, progress=True)
        found += [(split, index, reason) for index, reason in bad.items()]
    found = gather_object(found)
    cache.refresh()
    usable, skipped = {}, []
    for split, pairs in splits.items():
        # The first side that cannot be used gives the reason.
        of_split = sorted(((index, reason) for name, index, reason in found if name == split), reverse=True)
        reasons = {index // len(SIDES): explain_side(index % len(SIDES), reason) for index, reason in of_split}
        reasons |= _find_equal_sides(dialogues[split], _list_criteria(pairs), keys[split], cache, reasons)
        rows, of_pairs = select_usable(split, name_pairs(pairs), reasons)
        num_cut = dialogues[split].num_cut.reshape(-1, len(SIDES)).sum(axis=1)[rows]
        usable[split] = _make_rows(pairs, rows, keys[split], cache).add_column("num_cut", num_cut)
        skipped += of_pairs
    return usable, skipped


def _find_equal_sides(
    dialogues: Dialogues, criteria: Sequence[str], keys: Sequence[str | None], cache: FeatureCache, known: Any
) -> dict[int, str]:
    """Return the reason for each pair with equal sides; only pairs with nearly equal features are decoded."""
    prepare = DialoguePreparer(cache.processor, with_mels=False)
    reasons = {}
    for row in range(len(keys) // len(SIDES)):
        both = range(len(SIDES) * row, len(SIDES) * (row + 1))
        if row not in known and _are_nearly_equal(*(cache[str(keys[side])] for side in both)):
            batch = prepare(both, dialogues, criteria)
            if not batch.failures and (reason := explain_equal_sides(batch.dialogues)):
                reasons[row] = reason
    return reasons


def _are_nearly_equal(chosen: torch.Tensor, rejected: torch.Tensor) -> bool:
    """Compare the last vectors, which depend on all tokens: they differ by rounding if the dialogues are equal."""
    first, second = chosen[-1].float(), rejected[-1].float()
    return len(chosen) == len(rejected) and bool((first - second).norm() <= _ROUNDING * first.norm())


def _list_criteria(pairs: datasets.Dataset) -> list[str]:
    names = pairs["criterion"] if "criterion" in pairs.column_names else [None] * len(pairs)
    return [name_criterion(name) for name in names for _ in SIDES]


def _make_rows(
    pairs: datasets.Dataset, rows: Sequence[int], keys: Sequence[str | None], cache: FeatureCache
) -> datasets.Dataset:
    """Return what `FeatureCollator` takes of the pairs at `rows`; `keys` are those of all sides."""
    names = name_pairs(pairs)
    sides = [[str(key) for key in keys[len(SIDES) * row : len(SIDES) * (row + 1)]] for row in rows]
    return datasets.Dataset.from_dict(
        {
            "row": list(rows),
            "pair_id": [names[row] for row in rows],
            **{f"{side}_key": [pair[index] for pair in sides] for index, side in enumerate(SIDES)},
            "length": [sum(map(cache.num_rows, pair)) for pair in sides],
            "content": list(map(" ".join, sides)),
        }
    )
