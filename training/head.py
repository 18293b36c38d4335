"""Train the head of a reward model on cached features, without the backbone (paper, section 4 and appendix A).

The published recipe leaves the backbone frozen: what is trained there is the score head, and the attention pooler
where there is one, on hidden states that never change. Here they come from a `FeatureCache`; loss, sampling and
optimizer are those of `SDiaRewardTrainer`, so a run gives the same numbers as one through the backbone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import datasets
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers import initialization as init

from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.layouts_sdiareward import read_thinker_config
from sdiareward.modeling_sdiareward import SDiaRewardModel, SDiaRewardOutput, SDiaRewardPooler
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.loading import pair_names
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.feature_cache import FeatureCache

from .batches import PairBatch, make_batch


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer

logger = logging.getLogger(__name__)


class SDiaRewardHead(PreTrainedModel):
    """The pooler and the score head of `SDiaRewardModel`, under the same names.

    Args:
        config ([`SDiaRewardConfig`]): Of the whole model.
    """

    config: SDiaRewardConfig
    config_class = SDiaRewardConfig
    base_model_prefix = ""
    # There is no attention in it; whatever its model computes with shall not stop it.
    _supports_sdpa = _supports_flash_attn = True
    _keep_in_fp32_modules_strict = ["score", "pooler"]
    # The rest of a checkpoint, in any layout.
    _keys_to_ignore_on_load_unexpected = [r"^(?!score\.|pooler\.)"]

    def __init__(self, config: SDiaRewardConfig):
        super().__init__(config)
        hidden_size = config.get_text_config().hidden_size
        self.pooler = SDiaRewardPooler(hidden_size, config.pooling_mode)
        self.score = nn.Linear(hidden_size, 1, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            init.zeros_(parameter)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the head of a checkpoint that `SDiaRewardModel.from_pretrained` takes, and nothing else of it.

        Raises:
            ValueError: The checkpoint lacks a tensor of the head.
        """
        kwargs = SDiaRewardModel.with_foreign_config(pretrained_model_name_or_path, kwargs)
        loaded: Any = super().from_pretrained(
            pretrained_model_name_or_path,
            *args,
            **{
                **kwargs,
                "key_mapping": {r"^score_head\.": "score."},
                "output_loading_info": True,
                "use_safetensors": True,
            },
        )
        head, info = loaded
        if info["missing_keys"]:
            raise ValueError(
                f"{pretrained_model_name_or_path}: lacks {', '.join(sorted(info['missing_keys']))}; give a complete "
                "checkpoint, or make a new head on a backbone with from_backbone."
            )
        return head

    @classmethod
    def from_backbone(cls, pretrained_model_name_or_path: Any, *, pooling_mode: str = "mean") -> SDiaRewardHead:
        """Make the head, at zero, that `SDiaRewardModel.from_backbone` puts on a pretrained thinker.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Hub id or folder of a Qwen2.5-Omni checkpoint.
            pooling_mode (`str`, *optional*, defaults to `"mean"`): As in [`SDiaRewardConfig`].
        """
        thinker = read_thinker_config(pretrained_model_name_or_path)
        return cls(SDiaRewardConfig.from_thinker(thinker, pooling_mode=pooling_mode))

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> SDiaRewardOutput:
        """Compute rewards from features as `SDiaRewardModel` does from its hidden states.

        Args:
            hidden_states (`torch.Tensor` of shape `(batch_size, sequence_length, hidden_size)`): Features; a pooled
                vector is a sequence of one, which mean and last-token pooling leave as it is.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`): 1 on features, 0 on padding.
            kwargs: Ignored; TRL passes arguments meant for a backbone.
        """
        with torch.autocast(hidden_states.device.type, enabled=False):
            pooled = self.pooler(hidden_states, attention_mask)
        # The formula has one home; it needs nothing but the head and the configuration.
        rewards = SDiaRewardModel.reward(cast(SDiaRewardModel, self), pooled)
        return SDiaRewardOutput(logits=rewards, pooled=pooled)

    def put_into(self, model: SDiaRewardModel) -> None:
        """Give a complete model this head."""
        model.pooler.load_state_dict(self.pooler.state_dict())
        model.score.load_state_dict(self.score.state_dict())


class FeatureCollator:
    """Make batches of cached pairs.

    Args:
        cache ([`FeatureCache`]): Where the features are.
    """

    def __init__(self, cache: FeatureCache):
        self.cache = cache

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, PairBatch]:
        """Look up the features of rows that `cache_pairs` gave."""
        sides = {side: [self.cache[row[f"{side}_key"]] for row in rows] for side in SIDES}
        return make_batch(rows, sides, _collate)


def _collate(features: list[torch.Tensor]) -> dict[str, Any]:
    """Pad features of shape `(num_rows, hidden_size)` on the right."""
    lengths = torch.tensor([len(feature) for feature in features])
    hidden_states = pad_sequence(features, batch_first=True)
    mask = torch.arange(hidden_states.shape[1]) < lengths[:, None]
    return {"hidden_states": hidden_states, "attention_mask": mask.long()}


def cache_pairs(
    splits: Mapping[str, datasets.Dataset], cache: FeatureCache, load_scorer: Callable[[], Scorer]
) -> tuple[dict[str, datasets.Dataset], list[dict[str, Any]]]:
    """Compute the features of pairs that the cache lacks, and return the rows that `FeatureCollator` takes.

    Under `accelerate launch` each process computes its share.

    Args:
        splits (`dict[str, datasets.Dataset]`): Pairs as `loading.load_pairs` gives them, by the name of the split.
        cache ([`FeatureCache`]): Where features are and go.
        load_scorer (`Callable`): Returns the scorer; called only if something is missing, and let go of at the end.

    Returns:
        `tuple[dict, list]`: For each split rows of `row`, `pair_id`, `chosen_key`, `rejected_key` and `length` (rows
        of both features); and for each pair left out its `split`, `row`, `pair_id` and `reason`.

    Raises:
        ValueError: Nothing of a split can be used.
    """
    state = PartialState()
    scorer: Scorer | None = None
    keys: dict[str, list[str | None]] = {}
    reasons: list[tuple[str, int, str]] = []
    for split, pairs in splits.items():
        sides, criteria = Dialogues(pairs, range(len(pairs))), _criteria(pairs)
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
        reasons += [(split, index, reason) for index, reason in bad.items()]
    reasons = gather_object(reasons)
    cache.refresh()
    skipped = {
        (split, index // len(SIDES)): _describe_skipped(splits[split], split, index, reason)
        for split, index, reason in sorted(reasons, reverse=True)
    }
    usable = {split: _rows(pairs, split, keys[split], cache) for split, pairs in splits.items()}
    return usable, [skipped[pair] for pair in sorted(skipped)]


def _criteria(pairs: datasets.Dataset) -> list[str]:
    """Return the criterion of each side of each pair."""
    names = pairs["criterion"] if "criterion" in pairs.column_names else [None] * len(pairs)
    return [name or "joint" for name in names for _ in SIDES]


def _rows(pairs: datasets.Dataset, split: str, keys: Sequence[str | None], cache: FeatureCache) -> datasets.Dataset:
    sides = [(str(chosen), str(rejected)) for chosen, rejected in zip(keys[::2], keys[1::2], strict=True)]
    complete = [row for row, (chosen, rejected) in enumerate(sides) if chosen in cache and rejected in cache]
    if not complete:
        raise ValueError(f"none of the {len(sides)} pairs of {split!r} can be used; check their recordings.")
    if len(complete) < len(sides):
        logger.warning("%d of %d pairs of %r cannot be used.", len(sides) - len(complete), len(sides), split)
    names = pair_names(pairs)
    columns = {
        "row": complete,
        "pair_id": [names[row] for row in complete],
        **{f"{side}_key": [sides[row][index] for row in complete] for index, side in enumerate(SIDES)},
        "length": [sum(map(cache.num_rows, sides[row])) for row in complete],
    }
    return datasets.Dataset.from_dict(columns)


def _describe_skipped(pairs: datasets.Dataset, split: str, index: int, reason: str) -> dict[str, Any]:
    row, side = divmod(index, len(SIDES))
    return {"split": split, "row": row, "pair_id": pair_names(pairs)[row], "reason": f"{SIDES[side]}, {reason}"}
