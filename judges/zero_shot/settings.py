"""Judges by name: what a file of judges says of each, and how one is made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.common.package_files import CONFIGS
from sdiareward.common.settings import make_settings, read_mapping
from sdiareward.common.yaml_files import parse_yaml
from sdiareward.llm.settings import ChatSettings

from .prompts import PROMPT_VERSIONS
from .questions import MAX_TURN_S


if TYPE_CHECKING:
    from sdiareward.evaluation.pair_scoring import PairScorer

JUDGES_FILE = CONFIGS / "judges.yaml"
_ORDERS = "both"


@dataclass(frozen=True)
class EndpointSettings(ChatSettings):
    """A judge behind an OpenAI-compatible endpoint whose model takes `input_audio`.

    Args:
        attempts (`int`, *optional*, defaults to 3): How often a question is asked until its answer is valid.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds heard of each turn.
        cache_dir (`str`, *optional*): Where valid answers are kept; by default `cache` in the run's folder. Runs may
            share one.
    """

    backend: ClassVar[str] = "endpoint"
    attempts: int = 3
    max_turn_s: float = MAX_TURN_S
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_at_least(self, attempts=1)
        _check_positive(self, "max_turn_s")

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on: neither where the endpoint is nor how fast it is asked."""
        request = {name: value for name, value in self.request([]).items() if name != "messages"}
        return {**request, "attempts": self.attempts, **_heard(self.max_turn_s)}

    def load(self, folder: Path) -> PairScorer:
        """Return the judge of a run."""
        from sdiareward.llm.client import ChatClient

        from .backends import EndpointBackend
        from .judging import PairwiseJudge

        client = ChatClient(self, self.cache_dir or folder / "cache")
        return PairwiseJudge(EndpointBackend(client, self.attempts), folder, self.max_turn_s)


@dataclass(frozen=True)
class ThinkerSettings:
    """A judge in this process: the thinker of a Qwen2.5-Omni checkpoint.

    Args:
        path (`str`): Folder or Hub id.
        dtype, device (`str`, *optional*): Such as `"bfloat16"` and `"cuda:0"`.
        batch_size (`int`, *optional*, defaults to 8): Answers written at once.
        max_new_tokens (`int`, *optional*, defaults to 512): Longest answer.
        temperature (`float`, *optional*, defaults to 0.0): 0 takes the likeliest token each time.
        seed (`int`, *optional*, defaults to 0): Of the sampling.
        attempts (`int`, *optional*, defaults to 2): How often a question is asked until its answer is valid.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds heard of each turn.
    """

    backend: ClassVar[str] = "thinker"
    path: str
    dtype: str | None = None
    device: str | None = None
    batch_size: int = 8
    max_new_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    attempts: int = 2
    max_turn_s: float = MAX_TURN_S

    def __post_init__(self) -> None:
        _check_at_least(self, attempts=1, batch_size=1, max_new_tokens=1, temperature=0)
        _check_positive(self, "max_turn_s")

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on."""
        names = ("dtype", "max_new_tokens", "temperature", "seed", "attempts")
        return {**_checkpoint(self.path), **{name: getattr(self, name) for name in names}, **_heard(self.max_turn_s)}

    def load(self, folder: Path) -> PairScorer:
        """Return the judge of a run."""
        from ..thinker import Thinker
        from .backends import ThinkerBackend
        from .judging import PairwiseJudge

        thinker = Thinker.from_pretrained(self.path, dtype=self.dtype, device=self.device, batch_size=self.batch_size)
        backend = ThinkerBackend(
            thinker,
            self.attempts,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )
        return PairwiseJudge(backend, folder, self.max_turn_s)


@dataclass(frozen=True)
class ReplaySettings:
    """The recorded answers of a judge.

    Args:
        path (`str`): JSON lines, such as the `answers.jsonl` of a run; see `backends.ReplayBackend`.
    """

    backend: ClassVar[str] = "replay"
    path: str

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on."""
        if not Path(self.path).is_file():
            raise FileNotFoundError(f"{self.path}: no such file of answers; give the answers.jsonl of a run as path.")
        return {"answers": hashlib.sha256(Path(self.path).read_bytes()).hexdigest()}

    def load(self, folder: Path) -> PairScorer:
        """Return the judge of a run."""
        from .backends import ReplayBackend
        from .judging import PairwiseJudge

        return PairwiseJudge(ReplayBackend(self.path), folder)


@dataclass(frozen=True)
class WavRewardSettings:
    """WavReward, or a checkpoint asked as WavReward is, which scores each side by itself.

    Args:
        path (`str`): Folder or Hub id.
        reasoning (`bool`, *optional*, defaults to `True`): Ask for thoughts before the score.
        expected (`bool`, *optional*, defaults to `True`): Take the expected score for the reward, not the score.
        num_samples (`int`, *optional*, defaults to 1): Answers a side, whose scores vote.
        temperature (`float`, *optional*, defaults to 0.0): 0 takes the likeliest token each time.
        max_new_tokens (`int`, *optional*, defaults to 512): Longest answer.
        seed (`int`, *optional*, defaults to 0): Of the sampling.
        dtype, device (`str`, *optional*): Such as `"bfloat16"` and `"cuda:0"`.
        batch_size (`int`, *optional*, defaults to 8): Answers written at once.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds heard of each turn.
    """

    backend: ClassVar[str] = "wavreward"
    path: str
    reasoning: bool = True
    expected: bool = True
    num_samples: int = 1
    temperature: float = 0.0
    max_new_tokens: int = 512
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    batch_size: int = 8
    max_turn_s: float = MAX_TURN_S

    def __post_init__(self) -> None:
        _check_at_least(self, num_samples=1, batch_size=1, max_new_tokens=1, temperature=0)
        _check_positive(self, "max_turn_s")

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `WavRewardJudge.judge`."""
        names = ("expected", "num_samples", "temperature", "max_new_tokens", "seed")
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on."""
        from ..wavreward.prompts import prompt_of_judge

        settings = {"dtype": self.dtype, "reasoning": self.reasoning, **self.options}
        asked = {"max_turn_s": self.max_turn_s, "prompt_version": prompt_of_judge(self.path).version}
        return {**_checkpoint(self.path), **settings, **asked}

    def load(self, folder: Path) -> PairScorer:
        """Return the judge of a run."""
        from ..wavreward.judge import WavRewardJudge
        from .judging import PointwiseJudge

        judge = WavRewardJudge.from_pretrained(
            self.path, reasoning=self.reasoning, dtype=self.dtype, device=self.device, batch_size=self.batch_size
        )
        return PointwiseJudge(judge, folder, self.options, self.max_turn_s)


JudgeSettings = EndpointSettings | ThinkerSettings | ReplaySettings | WavRewardSettings
BACKENDS: dict[str, type[JudgeSettings]] = {
    kind.backend: kind for kind in (EndpointSettings, ThinkerSettings, ReplaySettings, WavRewardSettings)
}


@dataclass(frozen=True)
class JudgeSpec:
    """A judge that was chosen by name.

    Args:
        name (`str`): Its name in the file.
        settings (`JudgeSettings`): What the file and the overrides say.
    """

    name: str
    settings: JudgeSettings

    def identity(self) -> dict[str, Any]:
        """Return what the judge's scores depend on, for `run.json`."""
        return {"judge": self.name, "backend": self.settings.backend, "judge_settings": self.settings.identity()}

    def load(self, folder: Path) -> PairScorer:
        """Return the judge of a run, that writes to the run's folder."""
        return self.settings.load(folder)

    def describe(
        self,
        labels: Sequence[Mapping[str, Any]],
        scores: Mapping[str, Mapping[str, Any]],
        folder: Path,
        **options: Any,
    ) -> dict[str, Any]:
        """Return `judge`: how the judge of a finished run came to its decisions; see `summary`.

        Args:
            labels (`Sequence[Mapping]`): What `labels.describe_pairs` says of each scored pair.
            scores (`Mapping`): The line of each in `scores.jsonl`, by `pair_id`.
            folder (`Path`): The run's folder.
            **options: `num_bootstrap` and `seed` of the intervals.
        """
        from .summary import describe_comparisons, describe_scores

        describe = describe_scores if isinstance(self.settings, WavRewardSettings) else describe_comparisons
        found = describe(labels, scores, folder, options)
        usd = None
        if isinstance(self.settings, EndpointSettings):
            usd = self.settings.price_usd(found["prompt_tokens"], found["completion_tokens"])
        return {"judge": {"name": self.name, "backend": self.settings.backend, **found, "usd": usd}}


def choose_judge(name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()) -> JudgeSpec:
    """Read the settings of a judge from a file of judges.

    Args:
        name (`str`): A key of the file.
        judges_file (`str` or `Path`, *optional*): YAML, settings by name of judge, each with a `backend`; by default
            `configs/judges.yaml` of the package.
        overrides (`Sequence[str]`, *optional*): `KEY=VALUE` each, the value in YAML, in place of what the file says.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no such judge, or a setting is unknown, missing or out of range.
    """
    path = Path(judges_file or JUDGES_FILE)
    entries = read_mapping(path)
    if name not in entries:
        known = sorted(map(str, entries))
        raise ValueError(f"{path}: has no judge {name!r}; it has {known}. Add one, or name another file.")
    label = f"{path}: {name}"
    if not isinstance(entries[name], Mapping):
        raise ValueError(f"{label}: holds {type(entries[name]).__name__}; a mapping of settings is needed.")
    values = {**entries[name], **_read_overrides(overrides)}
    backend = values.pop("backend", None)
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise ValueError(f"{label}: backend is {backend!r}; it must be one of {sorted(BACKENDS)}.")
    return JudgeSpec(name, make_settings(BACKENDS[backend], values, label))


def _read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    found = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ValueError(f"judge_options holds {text!r}; give KEY=VALUE, such as temperature=0.5.")
        found[key] = parse_yaml(value, f"judge_options: {text!r}")
    return found


def _checkpoint(path: str) -> dict[str, Any]:
    return {"model": f"{path} ({fingerprint_model(path)})"}


def _heard(max_turn_s: float) -> dict[str, Any]:
    """Return what judges that compare have in common."""
    return {"max_turn_s": max_turn_s, "orders": _ORDERS, "prompt_versions": PROMPT_VERSIONS}


def _check_at_least(settings: Any, **least: float) -> None:
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            raise ValueError(f"{name} is {getattr(settings, name)}; it must be at least {bound}.")


def _check_positive(settings: Any, name: str) -> None:
    if getattr(settings, name) <= 0:
        raise ValueError(f"{name} is {getattr(settings, name)}; it must be more than 0.")
