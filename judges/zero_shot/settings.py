"""Settings of the judges of pairs, by the name of their back end, and how each judge is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from sdiareward.checkpoint_io.models import describe_model
from sdiareward.common.hub import resolve_revision
from sdiareward.common.settings import make_settings
from sdiareward.pairs.prompts import read_prompt_file

from ..settings import AT_LEAST_ONE, MAX_TURN_S, EndpointSettings, check_turn_length, read_judge
from ..wavreward.answers import MAX_ANSWER_TOKENS
from .prompts import PROMPTS
from .questions import Backend, Orders


if TYPE_CHECKING:
    from sdiareward.scoring.engine import PairScorer


@dataclass(frozen=True)
class PairwiseEndpoint(EndpointSettings):
    """An endpoint that compares the two sides of a pair."""

    orders: Orders = "both"
    # Give the judge the words of each turn, too.
    transcripts: bool = False

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on, which excludes the endpoint's address and its speed."""
        request = {name: value for name, value in self.request([]).items() if name != "messages"}
        return {**request, "attempts": self.attempts, **_make_pairwise_identity(self)}

    def load(self, folder: Path) -> PairScorer:
        from sdiareward.common.llm.client import ChatClient

        from .backends import EndpointBackend

        client = ChatClient(self, self.cache_dir or folder / "cache")
        return _load_pairwise(self, EndpointBackend(client, self.attempts), folder)


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """A checkpoint that runs in this process."""

    path: str
    revision: str | None = None  # Of a name on the Hub.
    dtype: str | None = None
    device: str | None = None
    batch_size: int = field(default=8, metadata=AT_LEAST_ONE)
    max_new_tokens: int = field(default=512, metadata=AT_LEAST_ONE)
    # 0 is greedy decoding.
    temperature: float = field(default=0.0, metadata={"minimum": 0})
    seed: int = 0
    max_turn_s: float = MAX_TURN_S

    def __post_init__(self) -> None:
        check_turn_length(self.max_turn_s)

    @property
    def checkpoint(self) -> str:
        return resolve_revision(self.path, self.revision) if self.revision else self.path

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments of `Thinker.generate`."""
        return {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": self.seed}

    def identity(self) -> dict[str, Any]:
        model = describe_model(self.checkpoint)
        return {"model": model, "dtype": self.dtype, **self.sampling, "max_turn_s": self.max_turn_s}

    @property
    def placement(self) -> dict[str, Any]:
        """Arguments of `Thinker.from_pretrained`."""
        return {"dtype": self.dtype, "device": self.device, "batch_size": self.batch_size}


@dataclass(frozen=True, kw_only=True)
class ThinkerSettings(LocalSettings):
    """A thinker of a Qwen2.5-Omni checkpoint that compares the two sides of a pair."""

    backend: ClassVar[str] = "thinker"
    # The largest number of answers until one is valid.
    attempts: int = field(default=2, metadata=AT_LEAST_ONE)
    prompt_file: str | None = None
    orders: Orders = "both"
    transcripts: bool = False

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "attempts": self.attempts, **_make_pairwise_identity(self)}

    def load(self, folder: Path) -> PairScorer:
        from ..thinker import Thinker
        from .backends import ThinkerBackend

        thinker = Thinker.from_pretrained(self.checkpoint, **self.placement)
        return _load_pairwise(self, ThinkerBackend(thinker, self.attempts, self.sampling), folder)


@dataclass(frozen=True)
class ReplaySettings:
    """The recorded answers of a judge."""

    backend: ClassVar[str] = "replay"
    path: str
    orders: Orders = "both"

    def identity(self) -> dict[str, Any]:
        if not Path(self.path).is_file():
            raise FileNotFoundError(f"{self.path}: no such file of answers; give the answers.jsonl of a run as path.")
        return {"answers": hashlib.sha256(Path(self.path).read_bytes()).hexdigest(), "orders": self.orders}

    def load(self, folder: Path) -> PairScorer:
        from .backends import ReplayBackend
        from .judging import PairwiseJudge

        return PairwiseJudge(ReplayBackend(self.path), folder, orders=self.orders)


@dataclass(frozen=True, kw_only=True)
class WavRewardSettings(LocalSettings):
    """WavReward, or another checkpoint with its prompt, which scores each side by itself."""

    backend: ClassVar[str] = "wavreward"
    max_new_tokens: int = field(default=MAX_ANSWER_TOKENS, metadata=AT_LEAST_ONE)
    reasoning: bool = True
    # The reward is the expected score, which hardly ever ties, instead of the score.
    expected: bool = True
    # Answers per side; the majority of their scores counts.
    num_samples: int = field(default=1, metadata=AT_LEAST_ONE)
    prompt_file: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `WavRewardJudge.judge`."""
        return {"expected": self.expected, "num_samples": self.num_samples, **self.sampling}

    def identity(self) -> dict[str, Any]:
        from ..wavreward.prompts import choose_prompt

        prompt_version = choose_prompt(self.checkpoint, self.prompt_file).version
        return {**super().identity(), "reasoning": self.reasoning, **self.options, "prompt_version": prompt_version}

    def load(self, folder: Path) -> PairScorer:
        from ..wavreward.judge import WavRewardJudge
        from .judging import PointwiseJudge

        options: dict[str, Any] = {"reasoning": self.reasoning, "prompt_file": self.prompt_file}
        judge = WavRewardJudge.from_pretrained(self.checkpoint, **options, **self.placement)
        return PointwiseJudge(judge, folder, self.options, self.max_turn_s)


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
        self,
        labels: Sequence[Mapping[str, Any]],
        scores: Mapping[str, Mapping[str, Any]],
        folder: Path,
        **options: Any,
    ) -> dict[str, Any]:
        """Return `judge`, the result of `summary.summarise_pairwise` or `summarise_pointwise`, and the price."""
        from .summary import require_decision, summarise_pairwise, summarise_pointwise

        if isinstance(self.settings, WavRewardSettings):
            found = summarise_pointwise(labels, scores, folder, options)
        else:
            found = summarise_pairwise(labels, scores, folder, options, self.settings.orders)
        require_decision(self.name, labels, scores, folder, found["problems"])
        usd = None
        if isinstance(self.settings, PairwiseEndpoint):
            usd = self.settings.compute_price_usd(found["prompt_tokens"], found["completion_tokens"])
        return {"judge": {"name": self.name, "backend": self.settings.backend, **found, "usd": usd}}


def choose_judge(name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()) -> JudgeSpec:
    values, label = read_judge(name, judges_file, overrides)
    backend = values.pop("backend", None)
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise ValueError(f"{label}: backend is {backend!r}; it must be one of {sorted(BACKENDS)}.")
    if (orders := values.get("orders", "both")) not in get_args(Orders):
        raise ValueError(f"{label}: orders is {orders!r}; it must be one of {list(get_args(Orders))}.")
    return JudgeSpec(name, make_settings(BACKENDS[backend], values, label))


def _load_pairwise(settings: PairwiseEndpoint | ThinkerSettings, backend: Backend, folder: Path) -> PairScorer:
    from .judging import PairwiseJudge

    how: dict[str, Any] = {"orders": settings.orders, "transcripts": settings.transcripts}
    return PairwiseJudge(backend, folder, settings.max_turn_s, read_prompt_file(settings.prompt_file), **how)


def _make_pairwise_identity(settings: PairwiseEndpoint | ThinkerSettings) -> dict[str, Any]:
    prompts = read_prompt_file(settings.prompt_file)
    versions = {criterion: prompts.compute_version(*names) for criterion, names in PROMPTS.items()}
    how = {name: getattr(settings, name) for name in ("max_turn_s", "orders", "transcripts")}
    return {**how, "prompt_versions": versions}
