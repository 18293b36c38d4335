"""The settings of a ChatReward build, read from YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.settings import make_settings, read_mapping
from sdiareward.pairs.messages import GAP_S
from sdiareward.pairs.schema import make_stable_id

from ..pipeline.settings import FasterWhisperSettings
from .filters import EmotionSettings
from .schema import CATEGORIES
from .voices import (
    CASTS,
    CLONING,
    ENDPOINT,
    INSTRUCTIONS,
    Cast,
    find_missing_engines,
    make_cloning_cast,
    make_endpoint_cast,
)


# Settings that may differ between two builds of the same data set.
_PLACES = ("output_dir", "num_workers")


@dataclass(frozen=True)
class EventSettings:
    folder: str = ""  # Clips, FOLDER/CATEGORY/*.wav.
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # Folders of a category with other names.
    snr_db: float = 6.0
    lead_s: float = 1.0  # Time that the sound is heard before the speech.

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.classes) - set(CATEGORIES["audio"])):
            raise ValueError(f"classes names {unknown}; Table 4 has {list(CATEGORIES['audio'])}.")
        if wrong := [name for name, folders in self.classes.items() if isinstance(folders, str) or not folders]:
            raise ValueError(f"classes of {wrong} are no lists; give the names of their folders.")
        if self.lead_s < 0:
            raise ValueError(f"lead_s is {self.lead_s}; it must be at least 0.")
        if not self.folder or not Path(self.folder).is_dir():
            raise ValueError(
                f"events.folder is {self.folder!r}, which is not a folder; the sounds of the attribute 'audio' need "
                "clips in FOLDER/CATEGORY/*.wav (docs/chatreward.md)."
            )


@dataclass(frozen=True)
class EndpointSettings:
    options: Mapping[str, Any]  # `voices` alternate: female, male, female, ...
    attributes: tuple[str, ...] = tuple(sorted(INSTRUCTIONS))  # Followed by instruction.


@dataclass(frozen=True)
class CloningSettings:
    options: Mapping[str, Any]
    attributes: tuple[str, ...] = ("age",)  # With reference speakers per category.


@dataclass(frozen=True)
class ChatRewardConfig:
    output_dir: str
    scenarios: str | None = None
    limit: int | None = None  # Number of scenarios, evenly spaced over the file.
    casts: tuple[str, ...] = tuple(CASTS)  # Or "openai-speech" (`endpoint`), "voice-cloning" (`cloning`).
    casts_by_attribute: Mapping[str, Sequence[str]] = field(default_factory=dict)  # Default: all speak an attribute.
    left_out: tuple[str, ...] = ()  # Engines that speak in the test split only.
    endpoint: EndpointSettings | None = None
    cloning: CloningSettings | None = None
    events: EventSettings = field(default_factory=EventSettings)
    gap_s: float = GAP_S  # Silence between question and answer.
    max_wer: float | None = 0.05  # None: no recogniser.
    asr: FasterWhisperSettings = field(default_factory=lambda: FasterWhisperSettings(prompt=""))
    emotion: EmotionSettings | None = None
    min_s: float = 5.0  # Section 3.2.2: 5 to 35 s.
    max_s: float = 35.0
    test: float = 0.15  # Share of the scenarios.
    seed: int = 0
    num_workers: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.test < 1:
            raise ValueError(f"test is {self.test}; it must be a share between 0 and 1.")
        if self.num_workers < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"num_workers={self.num_workers}, limit={self.limit}: must be at least 1.")
        if not 0 <= self.min_s < self.max_s:
            raise ValueError(f"min_s={self.min_s}, max_s={self.max_s}: must be at least 0 and in this order.")
        known = [*CASTS, *([ENDPOINT] if self.endpoint else []), *([CLONING] if self.cloning else [])]
        if not self.casts or set(self.casts) - set(known):
            raise ValueError(
                f"casts is {list(self.casts)}; name some of {known} ({ENDPOINT!r} needs the settings 'endpoint', "
                f"{CLONING!r} the settings 'cloning')."
            )
        for attribute, names in self.casts_by_attribute.items():
            if attribute not in CATEGORIES or isinstance(names, str) or not names or set(names) - set(self.casts):
                raise ValueError(
                    f"casts_by_attribute has {attribute!r}: {names!r}; attributes are {list(CATEGORIES)}, and each "
                    f"needs a list of some of the casts {list(self.casts)}."
                )

    def read_casts(self) -> list[Cast]:
        made = dict(CASTS)
        if self.endpoint:
            made[ENDPOINT] = make_endpoint_cast(self.endpoint.options, self.endpoint.attributes)
        if self.cloning:
            made[CLONING] = make_cloning_cast(self.cloning.options, self.cloning.attributes)
        casts = [made[name] for name in self.casts]
        missing = sorted({engine for cast in casts for engine in find_missing_engines(cast)})
        if missing:
            raise ValueError(f"engines {missing} are not installed; install them or take their casts out of 'casts'.")
        engines = frozenset().union(*(cast.engines for cast in casts))
        if set(self.left_out) - engines or engines <= set(self.left_out):
            raise ValueError(f"left_out is {list(self.left_out)}; name some of {sorted(engines)}, not all.")
        return casts

    def identity(self) -> dict[str, Any]:
        """Return the values that determine the content, as JSON."""
        values = {key: value for key, value in asdict(self).items() if key not in _PLACES}
        if self.cloning is not None:
            path = Path(str(self.cloning.options.get("speakers")))
            values["speakers"] = make_stable_id(path.read_text(encoding="utf-8")) if path.is_file() else None
        return {**values, "asr": self.asr.identity()}


def read_config(path: Path, overrides: Mapping[str, Any] | None = None) -> ChatRewardConfig:
    """Read a `ChatRewardConfig` from YAML; `overrides` replace its values."""
    values = read_mapping(path) | {key: value for key, value in (overrides or {}).items() if value is not None}
    sections: dict[str, type] = {
        "endpoint": EndpointSettings,
        "cloning": CloningSettings,
        "events": EventSettings,
        "asr": FasterWhisperSettings,
        "emotion": EmotionSettings,
    }
    if values.get("asr"):
        # Whisper's prompt of fillers is for spontaneous speech; synthesised lines have none.
        values["asr"] = {"prompt": "", **values["asr"]}
    for name in sections.keys() & {name for name, value in values.items() if value is not None}:
        values[name] = make_settings(sections[name], values[name], f"{path}: {name}")
    return make_settings(ChatRewardConfig, values, str(path))
