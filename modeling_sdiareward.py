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
from threading import get_ident
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers import initialization as init
from transformers.conversion_mapping import (
    WeightRenaming,
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniThinkerModel
from transformers.utils.generic import can_return_tuple

from .configuration_sdiareward import SDiaRewardConfig
from .loading_sdiareward import SDiaRewardPreTrainedModel
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


_WITHOUT_EFFECT = {"use_cache", "num_items_in_batch"}  # trainers pass them to every model; neither changes a reward


class SDiaRewardModel(SDiaRewardPreTrainedModel):
    """Score spoken dialogues with a scalar reward; [`Scorer`] does so in batches.

    Args:
        config ([`SDiaRewardConfig`]): Sizes, pooling and prompts. `from_pretrained` loads a checkpoint instead.

    Examples:
        >>> from sdiareward import SDiaRewardModel, SDiaRewardProcessor, example_dialogues
        >>> model, processor = SDiaRewardModel.from_pretrained("nano"), SDiaRewardProcessor.from_pretrained("nano")
        >>> inputs = processor(example_dialogues(), criterion="modality")
        >>> model(**inputs).logits.shape  # Rewards; higher is better.
        torch.Size([2, 1])
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
                padding (either side). Required where rows are padded; by default every token is attended.
            input_features (`torch.Tensor` of shape `(num_clips, num_mel_bins, num_frames)`, *optional*): Log-mel
                features of all clips of the batch, in order.
            feature_attention_mask (`torch.Tensor` of shape `(num_clips, num_frames)`, *optional*): 1 on real frames;
                required with `input_features`.
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
            ValueError: The audio vectors do not match the audio placeholders, the labels do not match the dialogues,
                rows are padded without a mask, or attention weights are requested of an implementation that has
                none.
        """
        if compute is not None:
            return compute(self, **kwargs)
        inputs_embeds = self.embed(input_ids, input_features, feature_attention_mask, audio_features, inputs_embeds)
        if attention_mask is None:
            self._require_unpadded(inputs_embeds, input_ids)
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
            raise ValueError(f"labels are of shape {list(labels.shape)} for {len(logits)} dialogues; give one each.")
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
        if audio_features is None and input_features is not None:
            if feature_attention_mask is None:
                raise ValueError("input_features have no feature_attention_mask; pass the processor's mask.")
            if self.config.stack_factor > 1:
                audio_features = self.encode_audio(input_features, feature_attention_mask)
        if audio_features is not None:
            projection = self.model.audio_tower.proj
            audio_embeds = projection(audio_features.to(weight_dtype(projection)))
        elif input_features is not None:
            audio_embeds = self.model.get_audio_features(input_features, feature_attention_mask).last_hidden_state
        else:
            audio_embeds = None
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
        caller = get_ident()

        def keep(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if get_ident() == caller:  # Another thread may use the model at the same time.
                before_projection.append(inputs[0])

        handle = self.model.audio_tower.proj.register_forward_pre_hook(keep)
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

    def _require_unpadded(self, inputs_embeds: torch.Tensor, input_ids: torch.Tensor | None) -> None:
        """Raise if a row begins or ends with the token of padding."""
        configs = self.config, self.config.get_text_config()
        pad = next((each for config in configs if (each := getattr(config, "pad_token_id", None)) is not None), None)
        if pad is None or torch.compiler.is_compiling():
            return
        if input_ids is not None:
            is_padding = input_ids[:, [0, -1]] == pad
        else:
            vector = self.model.get_input_embeddings()(torch.tensor(pad, device=inputs_embeds.device))
            is_padding = (inputs_embeds[:, [0, -1]] == vector).all(dim=-1)
        if bool(is_padding.any()):
            raise ValueError(
                f"rows begin or end with padding ({pad}); pass the attention_mask of SDiaRewardProcessor."
            )

    def _insert_audio(
        self, inputs_embeds: torch.Tensor, input_ids: torch.Tensor | None, audio_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        """Put `(num_audio_tokens, hidden_size)` vectors on the audio placeholders, in order."""
        if input_ids is None:
            is_audio = self.model.get_placeholder_mask(None, inputs_embeds)[-1].squeeze(-1)
        else:
            is_audio = input_ids == self.config.audio_token_id
        # The number is data, which a traced graph does not know.
        num_vectors = 0 if audio_embeds is None else audio_embeds.shape[0]
        if not torch.compiler.is_compiling() and int(is_audio.sum()) != num_vectors:
            found = f"the dialogues hold {int(is_audio.sum())} audio placeholders and {num_vectors} audio vectors"
            raise ValueError(f"{found}; build both with one call of SDiaRewardProcessor.")
        if audio_embeds is None:
            return inputs_embeds
        return inputs_embeds.masked_scatter(is_audio.unsqueeze(-1), audio_embeds.to(inputs_embeds))

    def reward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Compute the rewards of pooled vectors, as `compute_reward` does."""
        return compute_reward(self.score, pooled, self.config.reward_scale)

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
