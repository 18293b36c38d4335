"""The features of an ablation: one pass of a backbone over each dialogue serves every pooling and every layer.

`Scorer` runs the pass, packed and with prefix sharing, and a `FeatureCache` stores its hidden states. The first rows
of a dialogue are the means of the lower layers; the hidden states of its tokens follow.

Notable choices:

- The text model returns several layers side by side as one wide layer, because `Scorer` works with any width. The
  alternative is one pass per layer, including the audio tower.
- Means and last tokens are also stored as vectors (float32), so that a head on vectors does not read all tokens. The
  mean of the last layer is computed from its tokens, not from a rounded mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from benchmarks.ablation_data import Study
from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.feature_shards import FeatureShards
from sdiareward.scoring.scorer import Features, Scorer
from sdiareward.training.head import FeatureCollator, SDiaRewardHead, cache_pairs
from sdiareward.training.setup import choose_backbone_dtype, load_model


if TYPE_CHECKING:
    from trl import RewardConfig

    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.training.arguments import TrainArguments

POOLINGS = ("last_token", "attention", "mean")
MAX_LAYERS = 9


class AllLayersScorer(Scorer):
    """Return the means of several layers and the hidden states of the last one from one pass.

    Args:
        model ([`SDiaRewardModel`]): The model.
        processor ([`SDiaRewardProcessor`]): Its processor.
        layers (`Sequence[int]`): Text layers, 0 being the embeddings.
        options: Options of `Scorer`.
    """

    def __init__(self, model: SDiaRewardModel, processor: SDiaRewardProcessor, layers: Sequence[int], **options: Any):
        super().__init__(model, processor, **options)
        self.layers = tuple(layers)

    def iter_features(
        self,
        dialogues: Sequence[Any],
        criterion: str | Sequence[str] = "joint",
        *,
        layer: int = -1,
        per_token: bool = True,
        groups: Sequence[Any] | None = None,
        skipped: MutableMapping[int, str] | None = None,
        progress: bool = False,
    ) -> Iterator[tuple[int, Features]]:
        """Yield like `Scorer.iter_features`; `hidden_states` holds the layer means, then the last layer's tokens.

        `hidden_states` has the shape `(num_layers + num_tokens, hidden_size)`; `layer` and `per_token` say nothing.
        """
        options: dict[str, Any] = {"groups": groups, "skipped": skipped, "progress": progress}
        with _side_by_side(self.model.model.language_model, self.layers):
            for index, features in super().iter_features(dialogues, criterion, layer=0, per_token=True, **options):
                yield index, replace(features, hidden_states=_means_first(features, len(self.layers) + 1))


def _means_first(features: Features, num_layers: int) -> np.ndarray:
    """Return the mean of each layer but the last, then the tokens of the last one."""
    assert features.hidden_states is not None
    below, last = np.split(
        features.hidden_states, [features.hidden_states.shape[1] // num_layers * (num_layers - 1)], 1
    )
    means = below.mean(axis=0, dtype=np.float64).astype(np.float32).reshape(num_layers - 1, -1)
    return np.concatenate([means, last])


@contextmanager
def _side_by_side(text_model: Any, layers: Sequence[int]) -> Iterator[None]:
    """Make the text model return these layers and the last one side by side in place of layer 0."""

    def widen(module: Any, inputs: Any, output: Any) -> Any:
        states = [output.hidden_states[layer] for layer in layers]
        output.hidden_states = (torch.cat([*states, output.last_hidden_state], dim=-1),)
        return output

    handle = text_model.register_forward_hook(widen)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class Backbone:
    """What head runs need from a backbone; small enough to send to another process.

    Args:
        title (`str`): Its name in tables.
        revision (`str`): Hash of its weights.
        dtype (`str`): Dtype of its computation.
        layers (`tuple[int, ...]`): Text layers with stored means.
        folder (`Path`): Folder of its configuration and its features.
        rows (`dict[str, list[dict]]`): Rows of `FeatureCollator`, by split.
        labels (`list[dict]`): Labels of the rows of `test`.
    """

    title: str
    revision: str
    dtype: str
    layers: tuple[int, ...]
    folder: Path
    rows: dict[str, list[dict[str, Any]]]
    labels: list[dict[str, Any]]

    @property
    def feature_sets(self) -> tuple[str, ...]:
        """Feature sets for heads: each pooling of the last layer, then the mean of each layer below it."""
        return (*POOLINGS, *(f"layer_{layer}" for layer in self.layers))

    def new_head(self, features: str) -> tuple[SDiaRewardHead, SDiaRewardProcessor]:
        """Return a zero head for a feature set, and the processor."""
        # A vector is a sequence of one, of which the mean is itself.
        pooling_mode = "attention" if features == "attention" else "mean"
        config = SDiaRewardConfig.from_pretrained(self.folder / "head", pooling_mode=pooling_mode)
        return SDiaRewardHead(config), SDiaRewardProcessor.from_pretrained(self.folder / "head")

    def collator(self, features: str) -> FeatureCollator:
        """Return the collator of a feature set."""
        return FeatureCollator(_open_features(self.folder, features, self.revision, self.dtype, self.layers))

    def rows_of(self, split: str, features: str) -> list[dict[str, Any]]:
        """Return the rows of a split; a vector has length 1, so dialogue lengths do not split a step."""
        if features == "attention":
            return self.rows[split]
        return [{**row, "length": len(SIDES)} for row in self.rows[split]]


def compute_features(
    title: str, args: TrainArguments, training: RewardConfig, study: Study, folder: Path
) -> tuple[Backbone, list[dict[str, Any]]]:
    """Compute the missing features of a backbone; those computed before a kill are kept.

    Args:
        title (`str`): Name of the backbone.
        args ([`TrainArguments`]): Names the backbone.
        training (`trl.RewardConfig`): Decides dtype and device.
        study ([`Study`]): The pairs.
        folder (`Path`): Folder of the features of all backbones.

    Returns:
        `tuple[Backbone, list[dict]]`: The backbone, and what `skipped.jsonl` says of each skipped pair.
    """
    weights: dict[str, Any] = {"dtype": choose_backbone_dtype(training), "pooling_mode": args.pooling_mode}
    head, processor = load_model(args.model_name_or_path, **weights, head_only=True)
    head.config.pooling_mode = "mean"
    num_layers = head.config.get_text_config().num_hidden_layers
    layers = tuple(sorted({round(k) for k in np.linspace(0, num_layers - 1, min(MAX_LAYERS, num_layers))}))
    revision, dtype = fingerprint_model(args.model_name_or_path), "bfloat16" if training.bf16 else "float32"
    own = folder / f"{revision[:12]}_{dtype}"
    head.config.save_pretrained(own / "head")
    processor.save_pretrained(own / "head")
    cache = _open_cache(own, head.config, processor, revision, dtype, layers)

    def load_scorer() -> AllLayersScorer:
        model, _ = load_model(args.model_name_or_path, **weights)
        # Its own pooler cannot take wide states; what is kept here is pooled afterwards.
        model.config.pooling_mode = "mean"
        return AllLayersScorer(model, processor, layers, device=training.device)

    rows, skipped = cache_pairs(study.pairs, cache, load_scorer)
    found = {split: list(table) for split, table in rows.items()}
    keys = {row[f"{side}_key"]: None for split in found.values() for row in split for side in SIDES}
    _write_vectors(cache, list(keys), layers, own)
    labels = [study.labels["test"][row["row"]] for row in found["test"]]
    return Backbone(title, revision, dtype, layers, own, found, labels), [pair.to_dict() for pair in skipped]


def _open_cache(
    folder: Path,
    config: SDiaRewardConfig,
    processor: SDiaRewardProcessor,
    revision: str,
    dtype: str,
    layers: Sequence[int],
) -> FeatureCache:
    # These features are not what others would look for under the name of the weights alone.
    name = f"{revision}, below the means of layers {' '.join(map(str, layers))}"
    return FeatureCache(folder / "features", config, processor, model_revision=name, dtype=dtype, per_token=True)


def _write_vectors(cache: FeatureCache, keys: Sequence[str], layers: Sequence[int], folder: Path) -> None:
    from tqdm.auto import tqdm

    for name in ("mean", "last_token", *(f"layer_{layer}" for layer in layers)):
        shards = _open_vectors(folder, name, cache)
        missing = [key for key in keys if key not in shards]
        if missing:
            shards.write((key, _vector(cache[key], name, layers)) for key in tqdm(missing, name, unit="dialogue"))


def _open_vectors(folder: Path, name: str, cache: FeatureCache) -> FeatureShards:
    return FeatureShards(folder / "vectors" / name, {**cache.identity, "vectors": name}, torch.float32)


def _vector(rows: torch.Tensor, name: str, layers: Sequence[int]) -> torch.Tensor:
    """Return one vector of a dialogue, shape `(1, hidden_size)`, from its cache entry."""
    if name == "mean":
        return rows[len(layers) :].float().mean(dim=0, keepdim=True)
    if name == "last_token":
        return rows[-1:].float()
    return rows[layers.index(int(name.removeprefix("layer_")))][None].float()


class _Tokens:
    """The hidden states of the last layer, without the means above them."""

    def __init__(self, cache: FeatureCache, num_means: int):
        self.cache = cache
        self.num_means = num_means

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.cache[key][self.num_means :]


# Opening reads the header of every shard, and checks each when it is first used.
@lru_cache(maxsize=8)
def _open_features(folder: Path, features: str, revision: str, dtype: str, layers: tuple[int, ...]) -> FeatureCache:
    """Return features by key, as `FeatureCollator` looks them up."""
    config = SDiaRewardConfig.from_pretrained(folder / "head")
    processor = SDiaRewardProcessor.from_pretrained(folder / "head")
    cache = _open_cache(folder, config, processor, revision, dtype, layers)
    found: Mapping[str, torch.Tensor] | FeatureShards | _Tokens
    found = _Tokens(cache, len(layers)) if features == "attention" else _open_vectors(folder, features, cache)
    return cast(FeatureCache, found)
