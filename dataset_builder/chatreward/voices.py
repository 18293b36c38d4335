"""The voices of ChatReward, the speech filters, and the settings.

Voices of a cast cover gender, accent and language; four accents of Table 4 need an endpoint. Speed and volume are
always signal processing, as in the paper. Age, emotion and pitch depend on the cast:

- Offline, rules change a vocoded voice (`SHAPES`). These rules are toys: they let the pipeline run, but a judge learns
  the rules, not people's age or emotion.
- The cast `openai-speech` follows instructions, like the paper's GPT-4o-mini-TTS for accent, pitch and emotion.
- The cast `voice-cloning` clones reference speakers of each age, like the paper's Step-Audio with 1,000 speakers.

Then speech recognition checks the words and a classifier the emotions (section 3.2.3, steps 2 and 3). The paper uses
Whisper large-v3 and Emotion2Vec (in FunASR). Offline, the tiny English Whisper of a package checks the words, with
more errors of its own, and emotions are not checked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic.dataclasses
from pydantic import NonNegativeFloat, PositiveInt

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.settings import make_settings, read_mapping
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.synthesis import is_available, load_synthesizer
from sdiareward.dataset_builder.synthesis.servers import select_speakers
from sdiareward.pairs.messages import GAP_S
from sdiareward.pairs.schema import make_stable_id
from sdiareward.perturbations.voices import VoiceShape

from ..pairing.plausible_speech import require_language, require_plausible
from ..pipeline.components import FasterWhisperTranscriber
from ..pipeline.settings import ComponentError, FasterWhisperSettings
from .scenarios import CATEGORIES, NO_VOICE


ENDPOINT = "openai-speech"
CLONING = "voice-cloning"
GENDERS = ("female", "male")
# Attributes for which the cast has a voice per category.
_BY_VOICE = ("gender", "accent", "language")
# Toys. The directions follow Murray and Arnott (1993) and Burkhardt and Sendlmeier (2000); the sizes are ours.
SHAPES: dict[str, dict[str, VoiceShape]] = {
    "age": {
        "children": VoiceShape(pitch=1.35, formants=1.17, pitch_range=1.2),
        "adolescent": VoiceShape(pitch=1.12, formants=1.07),
        "middle-aged": VoiceShape(),
        "elderly": VoiceShape(pitch=0.86, tremor=0.04, tremor_hz=5.0, breath=0.3, tilt_db=-1.5, tempo=0.82),
    },
    "emotion": {
        "neutral": VoiceShape(),
        "happy": VoiceShape(pitch=1.18, pitch_range=1.5, tempo=1.08, gain_db=2.0, tilt_db=1.0),
        "sad": VoiceShape(pitch=0.9, pitch_range=0.45, tempo=0.8, gain_db=-5.0, tilt_db=-2.5, breath=0.15),
        "angry": VoiceShape(pitch=1.06, pitch_range=1.35, tempo=1.14, gain_db=6.0, tilt_db=3.0),
        "surprised": VoiceShape(pitch=1.26, pitch_range=1.7, rise=1.5, gain_db=2.0),
        "disgusted": VoiceShape(pitch=0.82, pitch_range=0.8, tempo=0.86, gain_db=-1.0, tremor=0.05, tremor_hz=25.0),
        "fearful": VoiceShape(pitch=1.3, pitch_range=0.8, tempo=1.18, gain_db=-3.0, tremor=0.06, breath=0.3),
    },
    "pitch": {"low": VoiceShape(pitch=0.7), "normal": VoiceShape(), "high": VoiceShape(pitch=1.5)},
    "speed": {"slow": VoiceShape(tempo=0.68), "normal": VoiceShape(), "fast": VoiceShape(tempo=1.45)},
    "volume": {"low": VoiceShape(gain_db=-14.0), "normal": VoiceShape(), "high": VoiceShape(gain_db=9.0)},
}
VOCODED = ("age", "emotion", "pitch")
# Instructions for an endpoint; section 3.2.3 has "repeat this sentence with the ... of ...".
INSTRUCTIONS: dict[str, str] = {
    "accent": "Speak English with a strong {category} accent.",
    "age": "Speak as somebody of the age group {category} does.",
    "emotion": "Let your voice sound {category} throughout, and add nothing to the words.",
    "language": "Speak {category} like a native speaker.",
    "pitch": "Speak in a voice of clearly {category} pitch.",
}


@dataclass(frozen=True)
class Voice:
    engine: str
    numbers: Sequence[int] = (0,)  # Voices of the engine; a seed draws one.
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cast:
    name: str
    voices: Mapping[str, Voice]  # By role (female, male) and by category of gender, accent and language.
    instructed: tuple[str, ...] = ()  # Attributes that the engine follows by instruction.
    by_voice: tuple[str, ...] = _BY_VOICE

    def drop_engines(self, engines: frozenset[str]) -> Cast:
        return replace(self, voices={r: v for r, v in self.voices.items() if v.engine not in engines})

    def find_voice(self, attribute: str, category: str | None, gender: str) -> Voice | None:
        """Return the voice for a category; `gender` decides if the category does not."""
        is_instructed = attribute in self.instructed
        voice = self.voices.get(category if category and attribute in self.by_voice and not is_instructed else gender)
        if voice and category and is_instructed:
            instructions = INSTRUCTIONS[attribute].format(category=category)
            body = {**voice.options.get("extra_body", {}), "instructions": instructions}
            return replace(voice, options={**voice.options, "extra_body": body})
        return voice

    def speak(
        self, text: str, attribute: str, category: str | None, gender: str, *, language: str = "en", seed: int = 0
    ) -> tuple[np.ndarray, str]:
        """Return mono 16 kHz float32 speech without silence at its ends, and the engine that spoke."""
        voice = self.find_voice(attribute, category, gender)
        if voice is None:
            raise SkipError(NO_VOICE, f"has no voice for {attribute} {category!r}.")
        engine = load_synthesizer(voice.engine, voice.options)
        require_language(engine, voice.engine, language, text)
        speech = engine.speak(text, voice=voice.numbers[seed % len(voice.numbers)])
        require_plausible([text], [speech], voice.engine, engine=f"{voice.engine} {json.dumps(dict(voice.options))}")
        # Rules, if the cast has no voice or instruction for it.
        shapes = {} if attribute in (*self.instructed, *self.by_voice) else SHAPES.get(attribute, {})
        shape = shapes[category] if shapes and category else VoiceShape()
        shape = replace(shape, is_vocoded=bool(shapes) and attribute in VOCODED)
        return shape(speech, SAMPLING_RATE), voice.engine


MANDARIN = Voice("espeak-ng", options={"voices": ["cmn"], "languages": ["zh"]})
_HIBARI = Voice("hibari")
# The British voice of flite is a Scottish speaker.
_FLITE = {"female": 0, "male": 1, "american": 1, "british": 2}
_ESPEAK = {"female": 1, "male": 0, "american": 0, "british": 4, "english": 0}
_OF_ESPEAK = {role: Voice("espeak-ng", (number,)) for role, number in _ESPEAK.items()}
CASTS = {
    "neural": Cast("neural", {"female": _HIBARI, "male": Voice("piper"), "english": _HIBARI, "chinese": MANDARIN}),
    "flite": Cast("flite", {role: Voice("flite", (number,)) for role, number in _FLITE.items()}),
    "espeak-ng": Cast("espeak-ng", {**_OF_ESPEAK, "chinese": MANDARIN}),
}


def make_endpoint_cast(options: Mapping[str, Any], attributes: Sequence[str]) -> Cast:
    """Return the cast of a speech endpoint; its `voices` alternate: female, male, female, ..."""
    if unknown := sorted(set(attributes) - set(INSTRUCTIONS)):
        raise ValueError(f"endpoint: attributes {unknown} have no instruction; choose from {sorted(INSTRUCTIONS)}.")
    count = len(options.get("voices", ()))
    if not count or count % 2:
        raise ValueError(f"endpoint: voices are {options.get('voices')!r}; give two, female and male, or more pairs.")
    voices = {gender: Voice(ENDPOINT, range(first, count, 2), options) for first, gender in enumerate(GENDERS)}
    return Cast(ENDPOINT, voices, tuple(attributes))


def make_cloning_cast(options: Mapping[str, Any], attributes: Sequence[str]) -> Cast:
    voices: dict[str, Voice] = {}
    speakers = str(options.get("speakers"))
    for attribute in ("gender", *attributes):
        categories, found = CATEGORIES.get(attribute, ()), dict[str, Voice]()
        for category in categories:
            where = {attribute: category}
            if count := len(select_speakers(speakers, where)):
                found[category] = Voice(CLONING, range(count), {**options, "where": where})
        if len(found) < (len(GENDERS) if attribute == "gender" else 1):
            raise ValueError(
                f"cloning: {speakers} has {attribute} {sorted(found)}; add speakers of {list(categories)}."
            )
        voices |= found
    return Cast(CLONING, voices, by_voice=tuple(dict.fromkeys((*_BY_VOICE, *attributes))))


class WordErrors:
    def __init__(self, settings: FasterWhisperSettings):
        self._settings = settings

    @cached_property
    def _transcriber(self) -> FasterWhisperTranscriber:
        logging.getLogger("faster_whisper").setLevel(logging.WARNING)
        return FasterWhisperTranscriber(self._settings)

    def rate(self, text: str, array: np.ndarray, language: str) -> float | None:
        """Return the word error rate of 16 kHz mono speech; None for other languages and for fillers only."""
        try:
            return word_error_rate(text, self._transcriber.transcribe(array, language), language)
        except SkipError:
            return None


def word_error_rate(reference: str, hypothesis: str, language: str = "en") -> float:
    """Return the word error rate (characters in a language without spaces), with Whisper's text normalisation."""
    import jiwer
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    code = language.lower().split("-")[0]
    normalize = EnglishTextNormalizer({}) if code == "en" else BasicTextNormalizer()
    said, heard = normalize(reference).strip(), normalize(hypothesis).strip()
    if not any(character.isalnum() for character in said):
        raise SkipError("no_words", f"{reference!r} has no words; a word error rate needs some.")
    if code in ("zh", "ja", "th"):
        return float(jiwer.cer(said.replace(" ", ""), heard.replace(" ", "")))
    return float(jiwer.wer(said, heard))


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class EmotionSettings:
    model: str
    # Label of the model -> emotion of Table 4; other labels do not count. Of `生气/angry` the second part counts.
    labels: Mapping[str, str] = field(default_factory=lambda: {name: name for name in CATEGORIES["emotion"]})
    threshold: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.5  # Minimum score of the requested emotion.
    device: str = "cpu"
    backend: Literal["transformers", "funasr"] = "transformers"
    hub: Literal["hf", "ms"] = "hf"  # For FunASR: Hugging Face or ModelScope.

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.labels.values()) - set(CATEGORIES["emotion"])):
            raise ValueError(f"labels name {unknown}; Table 4 has {list(CATEGORIES['emotion'])}.")


def load_classifier(settings: EmotionSettings) -> Callable[[np.ndarray], dict[str, float]]:
    """Return a function that scores mono 16 kHz speech from 0 to 1, by emotion of Table 4 that has a label."""
    score_labels = (_load_funasr if settings.backend == "funasr" else _load_transformers)(settings)

    def score_emotions(array: np.ndarray) -> dict[str, float]:
        found = score_labels(array)
        if not found.keys() & settings.labels.keys():
            raise ValueError(f"{settings.model}: has the labels {sorted(found)}; map them to emotions in 'labels'.")
        scores: dict[str, float] = {}
        for label, emotion in settings.labels.items():
            if label in found:
                scores[emotion] = scores.get(emotion, 0.0) + float(found[label])
        return scores

    return score_emotions


def _load_transformers(settings: EmotionSettings) -> Callable[[np.ndarray], dict[str, float]]:
    """Load an audio classifier of `transformers`, such as a fine-tuned wav2vec 2.0."""
    from transformers import pipeline

    classify: Any = pipeline("audio-classification", model=settings.model, device=settings.device)
    # The pipeline consumes the mapping.
    take = {"sampling_rate": SAMPLING_RATE}
    return lambda array: {each["label"]: each["score"] for each in classify({"raw": array, **take}, top_k=None)}


def _load_funasr(settings: EmotionSettings) -> Callable[[np.ndarray], dict[str, float]]:
    """Load Emotion2Vec (Ma et al. 2023), the paper's classifier. A checkpoint without a head has no labels."""
    try:
        from funasr import AutoModel
    except ImportError as error:
        raise ComponentError(f"emotion: {settings.model} needs FunASR ({error}); pip install funasr.") from error
    options = {"device": settings.device, "hub": settings.hub, "disable_update": True, "disable_pbar": True}
    model: Any = AutoModel(model=settings.model, **options)

    def score(array: np.ndarray) -> dict[str, float]:
        (found,) = model.generate(array, fs=SAMPLING_RATE, granularity="utterance", extract_embedding=False)
        labels = (str(label).rpartition("/")[2] for label in found["labels"])
        return dict(zip(labels, found["scores"], strict=False))

    return score


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class EventSettings:
    folder: str = ""  # Clips, FOLDER/CATEGORY/*.wav.
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Category -> folders with other names.
    snr_db: float = 6.0
    lead_s: NonNegativeFloat = 1.0  # The sound starts this long before the speech.

    def __post_init__(self) -> None:
        if wrong := [name for name, found in self.classes.items() if name not in CATEGORIES["audio"] or not found]:
            raise ValueError(f"classes has {wrong}; give folders to categories of {list(CATEGORIES['audio'])}.")
        if not self.folder or not Path(self.folder).is_dir():
            raise ValueError(f"events.folder {self.folder!r} is not a folder; put clips into FOLDER/CATEGORY/*.wav.")


@dataclass(frozen=True)
class EndpointSettings:
    options: Mapping[str, Any]  # `voices` alternate: female, male, female, ...
    attributes: tuple[str, ...] = tuple(sorted(INSTRUCTIONS))  # Given as instructions.


@dataclass(frozen=True)
class CloningSettings:
    options: Mapping[str, Any]
    attributes: tuple[str, ...] = ("age",)  # With reference speakers per category.


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class ChatRewardConfig:
    output_dir: str
    scenarios: str | None = None
    limit: PositiveInt | None = None  # Number of scenarios, evenly spaced over the file.
    casts: tuple[str, ...] = tuple(CASTS)  # Or "openai-speech" (`endpoint`), "voice-cloning" (`cloning`).
    casts_by_attribute: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # By default, all casts.
    left_out: tuple[str, ...] = ()  # Engines used only in the test split.
    endpoint: EndpointSettings | None = None
    cloning: CloningSettings | None = None
    events: EventSettings = field(default_factory=EventSettings)
    gap_s: float = GAP_S  # Silence between question and answer.
    max_wer: NonNegativeFloat | None = 0.05  # None: no recogniser.
    asr: FasterWhisperSettings = field(default_factory=lambda: FasterWhisperSettings(prompt=""))
    emotion: EmotionSettings | None = None
    min_s: NonNegativeFloat = 5.0  # Section 3.2.2: 5 to 35 s.
    max_s: float = 35.0
    test: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.15  # Share of the scenarios.
    seed: int = 0
    num_workers: PositiveInt = 2

    def __post_init__(self) -> None:
        if not self.min_s < self.max_s:
            raise ValueError(f"min_s={self.min_s}, max_s={self.max_s}: min_s must not exceed max_s.")
        known = [*CASTS, *([ENDPOINT] if self.endpoint else []), *([CLONING] if self.cloning else [])]
        if not self.casts or set(self.casts) - set(known):
            raise ValueError(f"casts is {list(self.casts)}; name some of {known}, or add 'endpoint' or 'cloning'.")
        for attribute, names in self.casts_by_attribute.items():
            if attribute not in CATEGORIES or not names or set(names) - set(self.casts):
                needed = f"give one of {list(CATEGORIES)} some of {list(self.casts)}"
                raise ValueError(f"casts_by_attribute has {attribute!r}: {names!r}; {needed}.")

    def read_casts(self) -> list[Cast]:
        made = dict(CASTS)
        if self.endpoint:
            made[ENDPOINT] = make_endpoint_cast(self.endpoint.options, self.endpoint.attributes)
        if self.cloning:
            made[CLONING] = make_cloning_cast(self.cloning.options, self.cloning.attributes)
        casts = [made[name] for name in self.casts]
        engines = {voice.engine: voice.options for cast in casts for voice in cast.voices.values()}
        if missing := sorted(name for name, options in engines.items() if not is_available(name, options)):
            raise ValueError(f"engines {missing} are not installed; install them or remove their casts from 'casts'.")
        if set(self.left_out) - set(engines) or set(engines) <= set(self.left_out):
            raise ValueError(f"left_out is {list(self.left_out)}; name some of {sorted(engines)}, not all.")
        return casts

    def identity(self) -> dict[str, Any]:
        """Return the values that determine the content, as JSON."""
        values = {key: value for key, value in asdict(self).items() if key not in ("output_dir", "num_workers")}
        if self.cloning is not None:
            path = Path(str(self.cloning.options.get("speakers")))
            values["speakers"] = make_stable_id(path.read_text(encoding="utf-8")) if path.is_file() else None
        return {**values, "asr": self.asr.identity()}


def read_config(path: Path, overrides: Mapping[str, Any] | None = None) -> ChatRewardConfig:
    """Read a `ChatRewardConfig` from YAML; `overrides` replace its values."""
    values = read_mapping(path) | {key: value for key, value in (overrides or {}).items() if value is not None}
    if isinstance(values.get("asr"), dict):
        # Whisper's filler prompt is for spontaneous speech; synthesised lines have no fillers.
        values["asr"] = {"prompt": "", **values["asr"]}
    return make_settings(ChatRewardConfig, values, str(path))
