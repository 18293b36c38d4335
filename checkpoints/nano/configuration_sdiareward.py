"""Configuration of SDiaReward: every value that changes a reward, validated once, here.

Paper: SDiaReward, section 4 (pooling, criterion-specific system prompts). The configuration extends Qwen2.5-Omni's
thinker, flat, plus the fields of the reward model, so that a released thinker configuration is a subset of it.

Notable choices:

- The vision tower is not part of the reward model. `vision_config` is reduced to the smallest tower the library can
  construct, because its constructor builds one that the model then drops.
- Values of training (loss weights, learning rates) do not belong here: they do not change what a checkpoint computes.
"""

# mypy: allow-untyped-calls
# (the configuration methods of transformers carry no annotations)
from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from copy import copy
from typing import Any

from transformers import AutoConfig, Qwen2_5OmniThinkerConfig


POOLING_MODES = ("mean", "attention", "last_token")
# The longest recording that is read.
LONGEST_TURN_S = 3600.0
# The authors' code cuts a turn where its feature extractor does, at 300 s.
OFFICIAL_MAX_TURN_S = 300.0
# Configurations of a thinker and of a full Qwen2.5-Omni, which contains a thinker.
EXTERNAL_MODEL_TYPES = ("qwen2_5_omni_thinker", "qwen2_5_omni")
# `subsets` (by name: `offset`, `temperature`, `num_pairs`), `quantiles` (of the rewards of a reference set, at equal
# steps, the smallest first), `quantiles_by_criterion`, `num_pairs`, `prompt_version`, `data` (which pairs).
CALIBRATION_KEYS = ("subsets", "quantiles", "quantiles_by_criterion", "num_pairs", "prompt_version", "data")
# Where an exported checkpoint stores the fields that its layout lacks.
OWN_FIELDS_KEY = "sdiareward"

# Vectors of the audio tower in one token.
_MOST_STACKED = 64
PROMPT_VERSION = "1"
DEFAULT_PROMPTS = {
    "modality": (
        "You are judging one spoken dialogue between a user and an assistant. Listen to every turn together with its "
        "transcript and decide how much the conversation sounds like people really talking to each other. Weigh "
        "whether pitch, rhythm, pauses and emotion are natural and suit the moment, whether the voices and the "
        "acoustics stay consistent from turn to turn, and whether each reply follows from what was said and how it "
        "was said. Attend most to the last turn. Flat, read-aloud or mechanical delivery lowers the reward; a clean "
        "recording alone does not raise it."
    ),
    "colloquialness": (
        "You are judging one spoken dialogue between a user and an assistant. Decide how close it is to spontaneous, "
        "everyday speech rather than to edited writing read out loud. Weigh casual words, short or unfinished "
        "clauses, self-repairs, fillers, hesitations and backchannels, particles and exclamations that carry rhythm, "
        "and wording that reacts to the other speaker. Such features count only where they come naturally. Formal "
        "vocabulary, complete and evenly built sentences, lists and polished explanations lower the reward, however "
        "helpful or well pronounced they are."
    ),
    "joint": (
        "You are judging one spoken dialogue between a user and an assistant, by its sound and by its wording. Decide "
        "how far it could be a real conversation. For the sound, weigh natural pitch, rhythm, pauses and emotion, and "
        "voices and acoustics that stay coherent across turns. For the wording, weigh spontaneity: casual words, "
        "fragments, self-repairs and fillers where they come naturally. Replies should fit what was said before and "
        "answer it adequately. Mechanical or read-aloud delivery and formal, scripted language both lower the reward; "
        "recording quality alone does not change it."
    ),
}

_SMALLEST_VISION_CONFIG = {
    "depth": 0,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 1,
    "out_hidden_size": 16,
    "fullatt_block_indexes": [],
}


class SDiaRewardConfig(Qwen2_5OmniThinkerConfig):
    """Hold the thinker's configuration and everything else that a reward depends on.

    Args:
        pooling_mode (`str`, *optional*, defaults to `"mean"`): How the last hidden states become one vector (equation
            1): `"mean"` over all attended tokens, `"attention"` (learned softmax weights) or `"last_token"`.
        prompts (`dict[str, str]`, *optional*): System prompt of each criterion, by default `DEFAULT_PROMPTS`.
        prompt_version (`str`, *optional*, defaults to `"1"`): Name of this set of prompts; change it with any of them.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds of each turn that the model hears; the rest is cut.
        sampling_rate (`int`, *optional*, defaults to 16000): Rate of the audio behind the mel features, in Hz.
        stack_factor (`int`, *optional*, defaults to 1): Vectors of the audio tower, 25 a second, that become one token
            of the text model together, up to 64.
        reward_scale (`float`, *optional*, defaults to 1.0): Positive factor on the output of the score head.
        calibration (`dict`, *optional*): Calibration that makes rewards of different domains comparable, from
            `calibration.fit`. It is applied on request; the reward itself does not change.
        kwargs: Fields of `Qwen2_5OmniThinkerConfig`. `num_labels` is always 1.

    Raises:
        ValueError: A field has a value outside its range.

    Examples:
        >>> config = SDiaRewardConfig(pooling_mode="attention")
        >>> config.num_labels, sorted(config.prompts)
        (1, ['colloquialness', 'joint', 'modality'])
    """

    model_type = "sdiareward"
    # What `Trainer.predict` does not collect.
    keys_to_ignore_at_inference = ["pooled"]

    pooling_mode: str = "mean"
    prompts: dict[str, str] | None = None
    prompt_version: str = PROMPT_VERSION
    max_turn_s: float | int = 30.0
    sampling_rate: int = 16_000
    stack_factor: int = 1
    reward_scale: float | int = 1.0
    calibration: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.vision_config = dict(_SMALLEST_VISION_CONFIG)
        self.prompts = copy(DEFAULT_PROMPTS if self.prompts is None else self.prompts)
        if self.id2label is None:
            self.id2label, self.label2id = {0: "reward"}, {"reward": 0}
            self.num_labels = kwargs.pop("num_labels", 1)
        # A reward is no probability: without this, what is made for classifiers would apply a sigmoid.
        self.problem_type = self.problem_type or "regression"
        super().__post_init__(**kwargs)
        self._validate_reward_fields()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from a dictionary and overriding fields, which are validated too.

        The dictionary may describe a thinker, as released checkpoints of the authors have it: a turn is then heard
        for their 300 s, and what else the authors do not write down gets its default. Prompts that override others
        are named after their hash, unless `prompt_version` names them.

        Raises:
            ValueError: The dictionary is of another kind of model; its sizes would silently become defaults.
        """
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type in EXTERNAL_MODEL_TYPES:
            config_dict = cls._from_foreign(config_dict).to_dict()
        elif model_type != cls.model_type:
            raise ValueError(
                f"model_type is {model_type!r}; give a checkpoint of {cls.model_type!r} or of the authors, or start a "
                "new head on a thinker with SDiaRewardModel.from_backbone."
            )
        if kwargs.get("prompts", config_dict.get("prompts")) != config_dict.get("prompts"):
            kwargs.setdefault("prompt_version", name_prompts(kwargs["prompts"]))
        loaded = super().from_dict(config_dict, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        config._validate_reward_fields()
        return loaded

    def _validate_reward_fields(self) -> None:
        if self.num_labels != 1:
            raise ValueError(f"num_labels is {self.num_labels}; a reward model has 1: omit num_labels and id2label.")
        if self.problem_type != "regression":
            raise ValueError(f"problem_type is {self.problem_type!r}; a reward is a 'regression': omit it.")
        if self.pooling_mode not in POOLING_MODES:
            raise ValueError(f"pooling_mode is {self.pooling_mode!r}; choose one of {', '.join(POOLING_MODES)}.")
        validate_prompts(self.prompts, self.prompt_version)
        validate_max_turn_s(self.max_turn_s)
        if not isinstance(self.sampling_rate, int) or self.sampling_rate <= 0:
            raise ValueError(f"sampling_rate is {self.sampling_rate!r}; give a positive whole number of Hz.")
        validate_stack_factor(self.stack_factor)
        if not _is_positive_finite(self.reward_scale):
            raise ValueError(f"reward_scale is {self.reward_scale!r}; give a positive finite factor.")
        given = CALIBRATION_KEYS if self.calibration is None else self.calibration
        if missing := [key for key in CALIBRATION_KEYS if key not in given]:
            raise ValueError(f"calibration lacks {', '.join(missing)}; make it with sdiareward eval --calibrate.")

    @classmethod
    def _from_foreign(cls, config_dict: Mapping[str, Any]) -> SDiaRewardConfig:
        """Return the configuration of a reward model in a checkpoint whose configuration is a thinker's."""
        thinker = config_dict.get("thinker_config", config_dict)
        fields = {"max_turn_s": OFFICIAL_MAX_TURN_S, **config_dict.get(OWN_FIELDS_KEY, {})}
        config = cls.from_thinker(Qwen2_5OmniThinkerConfig.from_dict(thinker), **fields)
        places = (config_dict, thinker)
        config.dtype = next((d[key] for d in places for key in ("dtype", "torch_dtype") if d.get(key)), None)
        return config

    @classmethod
    def from_thinker(cls, thinker_config: Qwen2_5OmniThinkerConfig, **fields: Any) -> SDiaRewardConfig:
        """Build a configuration on a thinker's.

        Args:
            thinker_config (`Qwen2_5OmniThinkerConfig`): Configuration of the pretrained backbone.
            fields: Fields of the reward model, as in the constructor.
        """
        inherited = {name: getattr(thinker_config, name) for name in Qwen2_5OmniThinkerConfig.__annotations__}
        for name in ("audio_config", "text_config"):
            inherited[name] = inherited[name].to_dict()
        del inherited["vision_config"]
        return cls(**{**inherited, **fields})


def name_prompts(prompts: Mapping[str, str]) -> str:
    """Return a version for prompts that have none: `"custom-"` and a hash of them."""
    content = json.dumps(dict(prompts), sort_keys=True)
    return f"custom-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def validate_prompts(prompts: Any, prompt_version: Any) -> None:
    """Raise unless `prompts` maps criteria to texts and has a version.

    Raises:
        ValueError: A criterion or a text is empty or no string, or the version is.
    """
    if not isinstance(prompts, Mapping) or not prompts:
        raise ValueError(f"prompts is {prompts!r}; give a mapping of criteria to prompts with at least one entry.")
    for criterion, text in prompts.items():
        if not isinstance(criterion, str) or not isinstance(text, str) or not criterion or not text.strip():
            raise ValueError(f"prompts[{criterion!r}] is {text!r}; criterion and prompt must be non-empty strings.")
    if not isinstance(prompt_version, str) or not prompt_version:
        raise ValueError(f"prompt_version is {prompt_version!r}; name the set of prompts with a non-empty string.")


def validate_max_turn_s(max_turn_s: Any) -> None:
    """Raise unless `max_turn_s` is a duration.

    Raises:
        ValueError: It is not a positive number, or more than an hour.
    """
    if not _is_positive_finite(max_turn_s) or max_turn_s > LONGEST_TURN_S:
        raise ValueError(f"max_turn_s is {max_turn_s!r}; give a positive number of seconds up to {LONGEST_TURN_S:g}.")


def validate_stack_factor(stack_factor: Any) -> None:
    """Raise `ValueError` unless `stack_factor` is a number of vectors, from 1 (none stacked) to 64."""
    if type(stack_factor) is not int or not 1 <= stack_factor <= _MOST_STACKED:
        raise ValueError(f"stack_factor is {stack_factor!r}; give a whole number from 1 to {_MOST_STACKED}.")


def _is_positive_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


SDiaRewardConfig.register_for_auto_class()
# Lets the auto classes read our checkpoints without executing the code inside them once this package is imported.
AutoConfig.register(SDiaRewardConfig.model_type, SDiaRewardConfig, exist_ok=True)

__all__ = ["DEFAULT_PROMPTS", "POOLING_MODES", "PROMPT_VERSION", "SDiaRewardConfig", "name_prompts"]
