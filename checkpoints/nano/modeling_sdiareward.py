"""SDiaReward: the thinker of Qwen2.5-Omni under the head of `pooling_sdiareward`.

Paper: SDiaReward, section 4, equation 1: `r = score(pool(H))`. Notable choices:

- No vision tower, language-model head, talker or vocoder in memory; their weights in a checkpoint are skipped.
- A new head and a new attention pooler start at zero, so that a run does not depend on a seed: every reward is 0 and
  attention pooling starts as mean pooling.
- Text and audio positions of the thinker are plain one-dimensional positions; they are counted from the mask, so
  padding on either side leaves them unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedConfig
from transformers import initialization as init
from transformers.conversion_mapping import (
    WeightRenaming,
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_utils import set_zero3_state
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniPreTrainedModel, Qwen2_5OmniThinkerModel
from transformers.utils.generic import can_return_tuple

from .configuration_sdiareward import EXTERNAL_MODEL_TYPES, SDiaRewardConfig
from .layouts_sdiareward import (
    HUB_KWARGS,
    check_keys,
    check_shapes,
    list_shapes,
    list_tensors,
    listed,
    read_foreign_config,
    read_thinker_config,
    to_native_key,
)
from .pooling_sdiareward import (
    Float32Linear,
    SDiaRewardOutput,
    SDiaRewardPooler,
    StackedProjection,
    compute_reward,
    locate_tokens,
    stack_vectors,
    weight_dtype,
)

# Registers itself: with the model, the processor of its checkpoints is known too.
from .processing_sdiareward import SDiaRewardProcessor  # noqa: F401


_NEW_HEAD_PREFIXES = ("score.", "pooler.")
_WITHOUT_EFFECT = {"use_cache", "num_items_in_batch"}  # trainers pass them to every model; neither changes a reward


class SDiaRewardModel(Qwen2_5OmniPreTrainedModel):
    """Score spoken dialogues with a scalar reward.

    Example:
        >>> model = SDiaRewardModel.from_pretrained("checkpoints/nano")  # doctest: +SKIP
        >>> rewards = model(**processor(dialogues, criterion="joint")).logits  # doctest: +SKIP
    """

    config: SDiaRewardConfig  # type: ignore[assignment]  # the parent's annotation is for the full Omni model
    config_class = SDiaRewardConfig
    base_model_prefix = "model"
    _no_split_modules = ["Qwen2_5OmniDecoderLayer", "Qwen2_5OmniAudioEncoderLayer"]
    # The loss is a mean over the batch, whatever is accumulated.
    accepts_loss_kwargs = False
    _keep_in_fp32_modules_strict = ["score", "pooler"]
    _keys_to_ignore_on_load_unexpected = [r"(^|\.)visual\.", r"(^|\.)lm_head\.", r"^talker", r"^token2wav"]

    def __init__(self, config: SDiaRewardConfig):
        super().__init__(config)
        self.model = Qwen2_5OmniThinkerModel(config)
        del self.model.visual
        hidden_size = self.model.language_model.config.hidden_size
        if config.stack_factor > 1:
            size = config.stack_factor * self.model.audio_tower.config.d_model
            self.model.audio_tower.proj = StackedProjection(size, hidden_size)
        self.pooler = SDiaRewardPooler(hidden_size, config.pooling_mode)
        self.score = Float32Linear(hidden_size, 1, bias=False)
        # By default the library concludes it from the name of the class.
        self.loss_type = "ForSequenceClassification"
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.score or module is getattr(self.pooler, "attn", None):
            init.zeros_(module.weight)

    @property
    def device(self) -> torch.device:
        """Where inputs belong: of a model that `accelerate` offloaded, where it computes."""
        device: torch.device = super().device
        hooks = (getattr(module, "_hf_hook", None) for module in self.modules()) if device.type == "meta" else ()
        found = (getattr(hook, "execution_device", None) for hook in hooks)
        return torch.device(next((place for place in found if place is not None), device))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        feature_attention_mask: torch.Tensor | None = None,
        audio_features: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        compute: Callable[..., SDiaRewardOutput] | None = None,
        **kwargs: Any,
    ) -> SDiaRewardOutput:
        """Compute `reward_scale * score(pool(H))` for a batch of dialogues.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`): Tokens, with one audio placeholder
                for each vector of the audio tower. Either these or `inputs_embeds` are required without `compute`.
            attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*): 1 on tokens, 0 on
                padding (either side); by default every token is attended.
            input_features (`torch.Tensor` of shape `(num_clips, num_mel_bins, num_frames)`, *optional*): Log-mel
                features of all clips of the batch, in order.
            feature_attention_mask (`torch.Tensor` of shape `(num_clips, num_frames)`, *optional*): 1 on real frames.
            audio_features (`torch.Tensor` of shape `(num_audio_tokens, stack_factor * d_model)`, *optional*): What
                `encode_audio` returned for the same clips; replaces `input_features`. With it a model can be exported.
            position_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): By default counted
                from the mask.
            inputs_embeds (`torch.Tensor` of shape `(batch_size, sequence_length, hidden_size)`, *optional*): In the
                place of `input_ids`; embeddings of placeholders are replaced by audio vectors.
            labels (`torch.Tensor` of shape `(batch_size,)`, *optional*): Rewards to regress on.
            output_hidden_states (`bool`, *optional*): Return the hidden states of the text model.
            output_attentions (`bool`, *optional*): Return its attention weights; requires
                `attn_implementation="eager"`.
            compute (`Callable`, *optional*): Computes the output from the model and `kwargs` alone. DDP, FSDP and PEFT
                wrap `forward` only: code that lays dialogues out in another way passes its function through here.
            kwargs: Passed to `compute`. Without it only `return_dict`, and what has no effect, is accepted.

        Returns:
            [`SDiaRewardOutput`], or a tuple of its values with `return_dict=False`.

        Raises:
            TypeError: Neither or both of `input_ids` and `inputs_embeds` are given, or an unknown argument is.
            ValueError: The number of audio vectors differs from the number of audio placeholders, that of labels from
                that of dialogues, or attention weights are requested of an implementation that has none.
        """
        if compute is not None:
            return compute(self, **kwargs)
        inputs_embeds = self.embed(input_ids, input_features, feature_attention_mask, audio_features, inputs_embeds)
        if attention_mask is None:
            attention_mask = torch.ones(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
        backbone_mask, positions = locate_tokens(attention_mask)
        outputs = self.model(
            inputs_embeds=inputs_embeds,
            attention_mask=backbone_mask,
            position_ids=(positions if position_ids is None else position_ids).expand(3, -1, -1),
            **self._require_known(kwargs, output_hidden_states, output_attentions),
            use_cache=False,
            return_dict=True,
        )
        hidden_states = outputs.last_hidden_state
        with torch.autocast(hidden_states.device.type, enabled=False):
            pooled = self.pooler(hidden_states, attention_mask)
        logits = self.reward(pooled)
        loss = None if labels is None else self._compute_loss(logits, labels)
        return SDiaRewardOutput(loss, logits, pooled, outputs.hidden_states, outputs.attentions)

    def _require_known(self, kwargs: Mapping[str, Any], *requested: bool | None) -> dict[str, bool]:
        """Return which outputs are requested; raise for what would be ignored."""
        # PEFT passes every argument of a text classifier, absent ones as None.
        if unknown := sorted(name for name in kwargs.keys() - _WITHOUT_EFFECT if kwargs[name] is not None):
            raise TypeError(f"forward takes no {', '.join(unknown)}; pass what SDiaRewardProcessor returns.")
        given = zip(("output_hidden_states", "output_attentions"), requested, strict=True)
        outputs = {name: getattr(self.config, name) if value is None else value for name, value in given}
        if outputs["output_attentions"] and (kind := self.model.language_model.config._attn_implementation) != "eager":
            raise ValueError(f"attn_implementation is {kind!r}, which returns no attentions; load with 'eager'.")
        return outputs

    def _compute_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if labels.numel() != len(logits):
            raise ValueError(
                f"labels are of shape {list(labels.shape)} for {len(logits)} dialogues; give one for each."
            )
        loss: Any = self.loss_function(labels=labels.to(logits.dtype), pooled_logits=logits, config=self.config)
        return loss

    def embed(
        self,
        input_ids: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        feature_attention_mask: torch.Tensor | None = None,
        audio_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the input of the text model: token embeddings, and audio vectors in the place of placeholders.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*): As in `forward`.
            input_features (`torch.Tensor`, *optional*): As in `forward`.
            feature_attention_mask (`torch.Tensor`, *optional*): As in `forward`.
            audio_features (`torch.Tensor`, *optional*): As in `forward`.
            inputs_embeds (`torch.Tensor`, *optional*): As in `forward`.

        Returns:
            `torch.Tensor` of shape `(batch_size, sequence_length, hidden_size)`.

        Raises:
            TypeError: Neither or both of `input_ids` and `inputs_embeds` are given.
            ValueError: The number of audio vectors differs from the number of audio placeholders.
        """
        if (input_ids is None) == (inputs_embeds is None):
            found = "both are given" if input_ids is not None else "input_ids are missing"
            raise TypeError(f"{found}; pass input_ids, as SDiaRewardProcessor returns them, or inputs_embeds.")
        if inputs_embeds is None:
            inputs_embeds = self.model.get_input_embeddings()(input_ids)
        if audio_features is None and input_features is not None and self.config.stack_factor > 1:
            assert feature_attention_mask is not None
            audio_features = self.encode_audio(input_features, feature_attention_mask)
        if audio_features is not None:
            projection = self.model.audio_tower.proj
            audio_embeds = projection(audio_features.to(weight_dtype(projection)))
        elif input_features is not None:
            audio_embeds = self.model.get_audio_features(input_features, feature_attention_mask).last_hidden_state
        else:
            return inputs_embeds
        return self._insert_audio(inputs_embeds, input_ids, audio_embeds)

    def encode_audio(
        self, input_features: torch.Tensor, feature_attention_mask: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Run the audio tower up to, not including, its final projection; a frozen tower's output can be cached.

        With a `stack_factor` the vectors of each clip come stacked, and filled up with zeros.

        Args:
            input_features (`torch.Tensor` of shape `(num_clips, num_mel_bins, num_frames)`): Log-mel features.
            feature_attention_mask (`torch.Tensor` of shape `(num_clips, num_frames)`): 1 on real frames.
            kwargs: Passed to the audio tower.

        Returns:
            `torch.Tensor` of shape `(num_audio_tokens, stack_factor * d_model)`: All clips, one after the other.
        """
        before_projection: list[torch.Tensor] = []
        handle = self.model.audio_tower.proj.register_forward_pre_hook(
            lambda module, inputs: before_projection.append(inputs[0])
        )
        try:
            self.model.get_audio_features(input_features, feature_attention_mask, **kwargs)
        finally:
            handle.remove()
        if self.config.stack_factor == 1:
            return before_projection[0]
        _, counts = self.model.audio_tower._get_feat_extract_output_lengths(feature_attention_mask.sum(dim=1))
        return stack_vectors(before_projection[0], counts.tolist(), self.config.stack_factor)

    def count_audio_tokens(self, num_frames: torch.Tensor) -> torch.Tensor:
        """Return how many tokens clips become.

        Args:
            num_frames (`torch.Tensor` of shape `(num_clips,)`): Mel frames of each clip.
        """
        _, counts = self.model.audio_tower._get_feat_extract_output_lengths(num_frames)
        return -(-counts // self.config.stack_factor)

    def freeze_backbone(self) -> None:
        """Leave only the score head and the attention pooler trainable."""
        self.model.requires_grad_(False)

    def freeze_audio_tower(self) -> None:
        """Freeze the audio tower but not its projection into the text model, so that `encode_audio` can be cached."""
        self.model.audio_tower.requires_grad_(False)
        self.model.audio_tower.proj.requires_grad_(True)

    def _insert_audio(
        self, inputs_embeds: torch.Tensor, input_ids: torch.Tensor | None, audio_embeds: torch.Tensor
    ) -> torch.Tensor:
        """Put `(num_audio_tokens, hidden_size)` vectors on the audio placeholders, in order."""
        if input_ids is None:
            is_audio = self.model.get_placeholder_mask(None, inputs_embeds)[-1].squeeze(-1)
        else:
            is_audio = input_ids == self.config.audio_token_id
        # The number is data, which a traced graph does not know.
        if not torch.compiler.is_compiling() and int(is_audio.sum()) != audio_embeds.shape[0]:
            raise ValueError(
                f"the dialogues hold {int(is_audio.sum())} audio placeholders but {audio_embeds.shape[0]} audio "
                "vectors came with them; build both with one call of SDiaRewardProcessor."
            )
        return inputs_embeds.masked_scatter(is_audio.unsqueeze(-1), audio_embeds.to(inputs_embeds))

    def reward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Compute the rewards of pooled vectors, as `compute_reward` does."""
        return compute_reward(self.score, pooled, self.config.reward_scale)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint of this model or a released one of the authors, completely or not at all.

        Arguments are those of `transformers`; fields of [`SDiaRewardConfig`] override the checkpoint's. The authors'
        checkpoints lack pooling and system prompt: give `prompts`, and `pooling_mode="last_token"` where it applies.

        Raises:
            FileNotFoundError: The checkpoint holds no safetensors; files of other kinds are not read.
            ValueError: The checkpoint lacks a tensor of the model, holds an unknown one or one of another shape, has
                no reward head, or contradicts the given `pooling_mode`.
        """
        if pretrained_model_name_or_path is not None and not isinstance(kwargs.get("config"), PreTrainedConfig):
            kwargs = cls.with_foreign_config(pretrained_model_name_or_path, kwargs)
        return cls._load_complete(pretrained_model_name_or_path, *args, may_lack=(), **kwargs)

    @classmethod
    def with_foreign_config(cls, name_or_path: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the configuration of a foreign checkpoint; for a native one unchanged."""
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        config_dict, _ = SDiaRewardConfig.get_config_dict(name_or_path, **hub_kwargs)
        if config_dict.get("model_type") not in EXTERNAL_MODEL_TYPES:
            return kwargs
        given = {name: kwargs[name] for name in SDiaRewardConfig.__annotations__ if name in kwargs}
        names = list_tensors(name_or_path, **hub_kwargs)
        config = read_foreign_config(config_dict, names, name_or_path, **given)
        with torch.device("meta"), set_zero3_state():
            check_keys(names, cls(config).state_dict(), name_or_path)
        return {**{name: value for name, value in kwargs.items() if name not in given}, "config": config}

    @classmethod
    def from_backbone(
        cls, pretrained_model_name_or_path: Any, *, pooling_mode: str = "mean", **kwargs: Any
    ) -> SDiaRewardModel:
        """Add a new head, at zero, to a pretrained thinker.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Hub id, such as `"Qwen/Qwen2.5-Omni-3B"`, or folder of a
                full Qwen2.5-Omni checkpoint or of its thinker alone.
            pooling_mode (`str`, *optional*, defaults to `"mean"`): As in [`SDiaRewardConfig`].
            kwargs: Fields of [`SDiaRewardConfig`] (`prompts`, `max_turn_s`, ...) and arguments of `from_pretrained`
                (`dtype`, `attn_implementation`, `revision`, ...).

        Raises:
            ValueError: The checkpoint is no thinker, or already holds a reward head.
        """
        own_fields = {name: kwargs.pop(name) for name in SDiaRewardConfig.__annotations__ if name in kwargs}
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        thinker_config = read_thinker_config(pretrained_model_name_or_path, **hub_kwargs)
        config = SDiaRewardConfig.from_thinker(thinker_config, pooling_mode=pooling_mode, **own_fields)
        names = list_tensors(pretrained_model_name_or_path, **hub_kwargs)
        if heads := sorted(name for name in names if (to_native_key(name) or "").startswith(_NEW_HEAD_PREFIXES)):
            raise ValueError(
                f"{pretrained_model_name_or_path}: holds a reward head already ({listed(heads)}); load it with "
                "from_pretrained, or make it a checkpoint of this package with sdiareward convert."
            )
        return cls._load_complete(pretrained_model_name_or_path, config=config, may_lack=_NEW_HEAD_PREFIXES, **kwargs)

    @classmethod
    def _load_complete(cls, name_or_path: Any, *args: Any, may_lack: tuple[str, ...], **kwargs: Any) -> Any:
        wants_info = kwargs.pop("output_loading_info", False)
        if name_or_path is not None:
            cls._check_files(name_or_path, kwargs, may_lack)
        # Files of another kind could run code.
        options = {**kwargs, "output_loading_info": True, "use_safetensors": True}
        loaded: Any = super().from_pretrained(name_or_path, *args, **options)
        model, info = loaded
        # Every tensor of the headers must have been loaded.
        strange = {key for key in info["missing_keys"] if not key.startswith(may_lack or ("\0",))}
        if strange := strange | set(info["unexpected_keys"]):
            raise ValueError(
                f"{name_or_path}: {len(strange)} tensors are missing or have no place in the model "
                f"({listed(sorted(strange))}); give a complete checkpoint of this model or of Qwen2.5-Omni."
            )
        return (model, info) if wants_info else model

    @classmethod
    def _check_files(cls, name_or_path: Any, kwargs: dict[str, Any], may_lack: tuple[str, ...]) -> None:
        """Check that the files hold what the configuration asks for; only headers are read, nothing is allocated."""
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        config: Any = kwargs.get("config")
        if not isinstance(config, PreTrainedConfig):
            fields = {name: kwargs[name] for name in SDiaRewardConfig.__annotations__ if name in kwargs}
            config = SDiaRewardConfig.from_pretrained(config or name_or_path, **hub_kwargs, **fields)
        # Under DeepSpeed's ZeRO-3 transformers would shard this model, and write values into its tensors without data.
        with torch.device("meta"), set_zero3_state():
            expected = {name: tuple(tensor.shape) for name, tensor in cls(config).state_dict().items()}
        check_shapes(list_shapes(name_or_path, **hub_kwargs), expected, may_lack, name_or_path)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model with the code that loads it; arguments as in `transformers`.

        Tensors keep the names they have in memory, whatever the layout of the checkpoint they came from.
        """
        # Imported here to be copied beside the model; it needs what a model does not.
        from .pipeline_sdiareward import TASKS, SDiaRewardPipeline

        module = type(self).__module__.rpartition(".")[2]
        self.config.auto_map = {
            "AutoConfig": "configuration_sdiareward.SDiaRewardConfig",
            "AutoModel": f"{module}.{type(self).__name__}",
            "AutoModelForSequenceClassification": f"{module}.{type(self).__name__}",
        }
        impl = f"pipeline_sdiareward.{SDiaRewardPipeline.__name__}"
        self.config.custom_pipelines = {task: {"impl": impl, "pt": ["AutoModel"]} for task in TASKS}
        super().save_pretrained(save_directory, *args, **{"save_original_format": False, **kwargs})


SDiaRewardModel.register_for_auto_class("AutoModel")
AutoModel.register(SDiaRewardConfig, SDiaRewardModel, exist_ok=True)
AutoModelForSequenceClassification.register(SDiaRewardConfig, SDiaRewardModel, exist_ok=True)
# transformers applies its built-in key conversions only to its own classes: without this line a thinker's checkpoint
# would leave the text model random.
register_checkpoint_conversion_mapping(
    SDiaRewardModel.__name__,
    [
        *get_checkpoint_conversion_mapping("Qwen2_5OmniThinkerForConditionalGeneration"),
        WeightRenaming(r"^(language_model\.score|score_head)\.", "score."),
    ],
    overwrite=True,
)

__all__ = ["Float32Linear", "SDiaRewardModel", "SDiaRewardOutput", "SDiaRewardPooler", "compute_reward"]
