"""The settings of the judges of pairs, by the name of their back end, and how each judge is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pydantic.dataclasses
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from sdiareward.checkpoint_io.models import describe_model
from sdiareward.common.hub import resolve_revision
from sdiareward.common.llm import ChatClient
from sdiareward.common.settings import make_settings
from sdiareward.pairs.prompts import read_prompt_file
from sdiareward.scoring.outcomes import PairScorer

from ..settings import MAX_TURN_S, EndpointSettings, read_judge
from ..wavreward.judge import MAX_ANSWER_TOKENS, WavRewardJudge, choose_prompt
from . import judging
from .answers import PROMPTS
from .judging import Orders
from .summary import summarise_judge


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class Pairwise:
    """How the two sides of a pair are compared, whatever answers."""

    attempts: PositiveInt = 2  # The largest number of answers until one is valid.
    orders: Orders = "both"
    transcripts: bool = False  # Give the judge the words of each turn, too.
    max_turn_s: PositiveFloat = MAX_TURN_S
    prompt_file: str | None = None  # YAML of prompts that replace shipped ones.

    def describe(self) -> dict[str, Any]:
        prompts = read_prompt_file(self.prompt_file)
        versions = {criterion: prompts.compute_version(*names) for criterion, names in PROMPTS.items()}
        how = {name: getattr(self, name) for name in ("attempts", "max_turn_s", "orders", "transcripts")}
        return {**how, "prompt_versions": versions}

    def make_judge(self, answer: judging.Backend, folder: Path, **more: Any) -> judging.PairwiseJudge:
        prompts = read_prompt_file(self.prompt_file)
        return judging.PairwiseJudge(answer, folder, self.max_turn_s, prompts, self.orders, self.transcripts, **more)


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class PairwiseEndpoint(Pairwise, EndpointSettings):
    """An endpoint that compares the two sides of a pair."""

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on, which excludes the endpoint's address and its speed."""
        return {"model": self.model, **self.parameters, **self.describe()}

    def load(self, folder: Path) -> PairScorer:
        client = ChatClient(self, self.cache_dir or folder / "cache")
        return self.make_judge(
            partial(judging.ask_endpoint, client, self.attempts), folder, usage=lambda: client.usage
        )


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class LocalSettings:
    """A checkpoint that runs in this process."""

    path: str
    revision: str | None = None  # Of a name on the Hub.
    dtype: str | None = None
    device: str | None = None
    batch_size: PositiveInt = 8
    max_new_tokens: PositiveInt = 512
    temperature: NonNegativeFloat = 0.0  # 0 is greedy decoding.
    seed: int = 0
    max_turn_s: PositiveFloat = MAX_TURN_S
    prompt_file: str | None = None

    @property
    def checkpoint(self) -> str:
        return resolve_revision(self.path, self.revision) if self.revision else self.path

    @property
    def sampling(self) -> dict[str, Any]:
        return {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": self.seed}

    @property
    def placement(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.device, "batch_size": self.batch_size}

    def identity(self) -> dict[str, Any]:
        model = describe_model(self.checkpoint)
        return {"model": model, "dtype": self.dtype, **self.sampling, "max_turn_s": self.max_turn_s}


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class ThinkerSettings(LocalSettings, Pairwise):
    """A thinker of a Qwen2.5-Omni checkpoint that compares the two sides of a pair."""

    backend: ClassVar[str] = "thinker"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), **self.describe()}

    def load(self, folder: Path) -> PairScorer:
        from ..thinker import Thinker

        thinker = Thinker.from_pretrained(self.checkpoint, **self.placement)
        return self.make_judge(partial(judging.ask_thinker, thinker, self.attempts, self.sampling), folder)


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class ReplaySettings:
    """The recorded answers of a judge."""

    backend: ClassVar[str] = "replay"
    path: str
    orders: Orders = "both"

    def identity(self) -> dict[str, Any]:
        return {
            "answers": hashlib.sha256(judging.read_file(Path(self.path)).encode()).hexdigest(),
            "orders": self.orders,
        }

    def load(self, folder: Path) -> PairScorer:
        return judging.PairwiseJudge(judging.Recorded(self.path), folder, orders=self.orders)


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True, kw_only=True)
class WavRewardSettings(LocalSettings):
    """WavReward, or another checkpoint with its prompt, which scores each side by itself."""

    backend: ClassVar[str] = "wavreward"
    max_new_tokens: PositiveInt = MAX_ANSWER_TOKENS
    reasoning: bool = True
    expected: bool = True  # The reward is the expected score, which hardly ever ties, instead of the score.
    num_samples: PositiveInt = 1  # Answers per side; the majority of their scores counts.

    @property
    def options(self) -> dict[str, Any]:
        return {"expected": self.expected, "num_samples": self.num_samples, **self.sampling}

    def identity(self) -> dict[str, Any]:
        prompt_version = choose_prompt(self.checkpoint, self.prompt_file).version
        return {**super().identity(), "reasoning": self.reasoning, **self.options, "prompt_version": prompt_version}

    def load(self, folder: Path) -> PairScorer:
        options: dict[str, Any] = {"reasoning": self.reasoning, "prompt_file": self.prompt_file}
        judge = WavRewardJudge.from_pretrained(self.checkpoint, **options, **self.placement)
        return judging.PointwiseJudge(judge, folder, self.options, self.max_turn_s)


JudgeSettings = PairwiseEndpoint | ThinkerSettings | ReplaySettings | WavRewardSettings
BACKENDS: dict[str, type[JudgeSettings]] = {
    kind.backend: kind for kind in (PairwiseEndpoint, ThinkerSettings, ReplaySettings, WavRewardSettings)
}


@dataclass(frozen=True)
class JudgeSpec:
    """The name and the settings of a judge in a file of judges."""

    name: str
    settings: JudgeSettings

    def identity(self) -> dict[str, Any]:
        return {"judge": self.name, "backend": self.settings.backend, "judge_settings": self.settings.identity()}

    def load(self, folder: Path) -> PairScorer:
        return self.settings.load(folder)

    def describe(
        self, labels: judging.Labels, scores: Mapping[str, Mapping[str, Any]], folder: Path, **options: Any
    ) -> dict[str, Any]:
        """Return `judge`: how it reached its decisions, and what that cost."""
        found = summarise_judge(self.name, labels, scores, folder, options, getattr(self.settings, "orders", None))
        usd = None
        if isinstance(self.settings, PairwiseEndpoint):
            usd = self.settings.compute_price_usd(found["prompt_tokens"], found["completion_tokens"])
        return {"judge": {"name": self.name, "backend": self.settings.backend, **found, "usd": usd}}


def choose_judge(name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()) -> JudgeSpec:
    values, label = read_judge(name, judges_file, overrides)
    backend = values.pop("backend", None)
    if backend not in list(BACKENDS):
        raise ValueError(f"{label}: backend is {backend!r}; it must be one of {sorted(BACKENDS)}.")
    return JudgeSpec(name, make_settings(BACKENDS[backend], values, label))
