"""Settings of judges, one class per back end, read from a file of judges by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from sdiareward.common.hub import resolve_revision
from sdiareward.common.llm import ChatSettings
from sdiareward.common.package import CONFIGS
from sdiareward.common.settings import make_settings, parse_yaml, read_mapping, require_mapping


JUDGES_FILE = CONFIGS / "judges.yaml"
# Seconds heard of each turn, as for the reward model.
MAX_TURN_S = 30.0
# WavReward's limit, as in training (appendix F).
MAX_ANSWER_TOKENS = 5120
Orders = Literal["both", "one"]


@dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class PairwiseSettings:
    """How the two sides of a pair are compared, for all back ends."""

    attempts: PositiveInt = 2  # Maximum number of requests until an answer is valid.
    orders: Orders = "both"
    transcripts: bool = False  # Also give the judge the words of each turn.
    max_turn_s: PositiveFloat = MAX_TURN_S
    prompt_file: str | None = None  # YAML of prompts that replace shipped ones.


@dataclass(config={"extra": "forbid"}, frozen=True)
class EndpointSettings(PairwiseSettings, ChatSettings):
    """A judge on an OpenAI-compatible endpoint; its model must accept `input_audio`."""

    backend: ClassVar[str] = "endpoint"
    # Cache of valid answers, which runs can share; by default `cache` in the run's folder.
    cache_dir: str | None = None


@dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class LocalSettings:
    """A checkpoint that runs in this process."""

    path: str
    revision: str | None = None  # Revision on the Hub.
    dtype: str | None = None
    device: str | None = None
    batch_size: PositiveInt = 8
    max_new_tokens: PositiveInt = 512
    temperature: NonNegativeFloat = 0.0  # 0 is greedy decoding.
    seed: int = 0

    @property
    def checkpoint(self) -> str:
        return resolve_revision(self.path, self.revision) if self.revision else self.path

    @property
    def placement(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.device, "batch_size": self.batch_size}

    @property
    def sampling(self) -> dict[str, Any]:
        return {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": self.seed}


@dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class ThinkerSettings(LocalSettings, PairwiseSettings):
    """The thinker of a Qwen2.5-Omni checkpoint, which compares the two sides of a pair."""

    backend: ClassVar[str] = "thinker"


@dataclass(config={"extra": "forbid"}, frozen=True)
class ReplaySettings:
    """The recorded answers of a judge."""

    backend: ClassVar[str] = "replay"
    path: str
    orders: Orders = "both"


@dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class WavRewardSettings(LocalSettings):
    """WavReward, or another checkpoint with its prompt; it scores each side separately."""

    backend: ClassVar[str] = "wavreward"
    max_new_tokens: PositiveInt = MAX_ANSWER_TOKENS
    max_turn_s: PositiveFloat = MAX_TURN_S
    prompt_file: str | None = None
    reasoning: bool = True
    expected: bool = True  # Reward: the expected score, which rarely ties, instead of the score.
    num_samples: PositiveInt = 1  # Answers per side; their scores are combined by majority vote.


JudgeSettings = EndpointSettings | ThinkerSettings | ReplaySettings | WavRewardSettings
BACKENDS: dict[str, type[JudgeSettings]] = {
    kind.backend: kind for kind in (EndpointSettings, ThinkerSettings, ReplaySettings, WavRewardSettings)
}


def read_judge(
    name: str,
    judges_file: str | Path | None = None,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> JudgeSettings:
    """Read the settings of a judge; `overrides` are `KEY=VALUE` in YAML, `defaults` fill gaps of the file."""
    path = Path(judges_file or JUDGES_FILE)
    entries = read_mapping(path)
    if name not in entries:
        known = sorted(map(str, entries))
        raise ValueError(f"{path}: has no judge {name!r}; choose from {known}, or give another file.")
    label = f"{path}: {name}"
    require_mapping(entries[name], label)
    values = {**defaults, **entries[name]}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ValueError(f"judge_options has {text!r}; give KEY=VALUE, such as temperature=0.5.")
        values[key] = parse_yaml(value, f"judge_options: {text!r}")
    backend = values.pop("backend", None)
    if backend not in list(BACKENDS):
        raise ValueError(f"{label}: backend is {backend!r}; it must be one of {sorted(BACKENDS)}.")
    return make_settings(BACKENDS[backend], values, label)


def read_endpoint(name: str, *more: Any) -> EndpointSettings:
    """Read the settings of a judge like `read_judge`; it must be an endpoint."""
    settings = read_judge(name, *more)
    if not isinstance(settings, EndpointSettings):
        raise ValueError(f"judge {name!r} has the backend {settings.backend!r}; choose an endpoint.")
    return settings
