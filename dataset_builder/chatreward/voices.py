"""Speak the lines of ChatReward in the voices that their categories need (section 3.2.3, stage 2).

Gender, accent and language are voices of a cast; four of Table 4's accents need an endpoint. Speed and volume are
always signal processing, as in the paper. Age, emotion and pitch depend on the cast:

- Offline they are rules on a vocoded voice (`SHAPES`). These rules are toys: they make a pipeline run, and a judge
  learns the rule from them, not age or emotion of people.
- The cast `openai-speech` follows instructions, as the paper's GPT-4o-mini-TTS does for accent, pitch and emotion.
- The cast `voice-cloning` clones reference speakers of each age, as the paper's Step-Audio does with 1,000 of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.dataset_builder.synthesis import SynthesisError, Synthesizer, is_available, load_synthesizer
from sdiareward.dataset_builder.synthesis.custom import select_speakers
from sdiareward.pairs.schema import make_stable_id
from sdiareward.perturbations.voices import VoiceShape

from ..pairing.plausible_speech import require_language, require_plausible
from .schema import CATEGORIES


ENDPOINT = "openai-speech"
CLONING = "voice-cloning"
_GENDERS = ("female", "male")
# Attributes with a voice of the cast for each category.
_BY_VOICE = ("gender", "accent", "language")
# Toys. After Murray and Arnott (1993) and Burkhardt and Sendlmeier (2000): the directions are theirs, the sizes ours.
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
# Sent to an endpoint; section 3.2.3 words it as "repeat this sentence with the ... of ...".
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
    number: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[int, ...] = ()  # Each scenario draws one; default: `number`.

    def draw(self, seed: int) -> Voice:
        """Return one of `choices`, the same for the same seed."""
        return replace(self, number=self.choices[seed % len(self.choices)]) if self.choices else self


@dataclass(frozen=True)
class Cast:
    name: str
    voices: Mapping[str, Voice]  # By role (female, male) and by category of gender, accent and language.
    instructed: tuple[str, ...] = ()  # Attributes that the engine follows by instruction.
    by_voice: tuple[str, ...] = _BY_VOICE

    def is_shaped(self, attribute: str) -> bool:
        """Whether an attribute is a rule on a voice."""
        return attribute not in (*self.instructed, *self.by_voice)

    @property
    def engines(self) -> frozenset[str]:
        return frozenset(voice.engine for voice in self.voices.values())

    def drop_engines(self, engines: frozenset[str]) -> Cast:
        return replace(self, voices={r: v for r, v in self.voices.items() if v.engine not in engines})

    def find_voice(self, attribute: str, category: str | None, gender: str) -> Voice | None:
        """Return the voice for a category; `gender` decides where the category does not."""
        if category is None:
            return self.voices.get(gender)
        if attribute in self.instructed:
            voice = self.voices.get(gender)
            if voice is None:
                return None
            instructions = INSTRUCTIONS[attribute].format(category=category)
            body = {**voice.options.get("extra_body", {}), "instructions": instructions}
            return replace(voice, options={**voice.options, "extra_body": body})
        return self.voices.get(category if attribute in self.by_voice else gender)


MANDARIN = Voice("espeak-ng", options={"voices": ["cmn"], "languages": ["zh"]})
CASTS: dict[str, Cast] = {
    "neural": Cast(
        "neural",
        {
            "female": Voice("hibari"),
            "male": Voice("piper"),
            "english": Voice("hibari"),
            "chinese": MANDARIN,
        },
    ),
    "flite": Cast(
        "flite",
        {
            "female": Voice("flite", 0),
            "male": Voice("flite", 1),
            "american": Voice("flite", 1),
            # A Scottish speaker.
            "british": Voice("flite", 2),
        },
    ),
    "espeak-ng": Cast(
        "espeak-ng",
        {
            "female": Voice("espeak-ng", 1),
            "male": Voice("espeak-ng", 0),
            "american": Voice("espeak-ng", 0),
            "british": Voice("espeak-ng", 4),
            "english": Voice("espeak-ng", 0),
            "chinese": MANDARIN,
        },
    ),
}


def make_endpoint_cast(options: Mapping[str, Any], attributes: Sequence[str]) -> Cast:
    """Return the cast of a speech endpoint; its `voices` alternate: female, male, female, ..."""
    if unknown := sorted(set(attributes) - set(INSTRUCTIONS)):
        raise ValueError(f"endpoint: attributes {unknown} are not instructed; choose from {sorted(INSTRUCTIONS)}.")
    count = len(options.get("voices", ()))
    if not count or count % 2:
        raise ValueError(f"endpoint: voices are {options.get('voices')!r}; give two, female and male, or more pairs.")
    voices = {
        gender: Voice(ENDPOINT, number, dict(options), tuple(range(number, count, 2)) if count > 2 else ())
        for number, gender in enumerate(_GENDERS)
    }
    return Cast(ENDPOINT, voices, tuple(attributes))


def make_cloning_cast(options: Mapping[str, Any], attributes: Sequence[str]) -> Cast:
    voices: dict[str, Voice] = {}
    for attribute in ("gender", *attributes):
        found = {}
        for category in CATEGORIES.get(attribute, ()):
            where = {attribute: category}
            if count := len(select_speakers(str(options.get("speakers")), where)):
                found[category] = Voice(CLONING, 0, {**options, "where": where}, tuple(range(count)))
        if not found or (attribute == "gender" and len(found) < len(_GENDERS)):
            raise ValueError(
                f"cloning: {options.get('speakers')} has speakers of {attribute} {sorted(found)}; Table 4 has "
                f"{list(CATEGORIES.get(attribute, ()))}. Add {attribute!r} to its lines."
            )
        voices |= found
    return Cast(CLONING, voices, by_voice=tuple(dict.fromkeys((*_BY_VOICE, *attributes))))


def find_missing_engines(cast: Cast) -> list[str]:
    found = {voice.engine: voice.options for voice in cast.voices.values()}
    return sorted(name for name, options in found.items() if not is_available(name, options or None))


def read_engine_versions(casts: Sequence[Cast]) -> dict[str, str]:
    voices = {voice.engine: voice for cast in casts for voice in cast.voices.values()}
    return {name: _load(voice).version for name, voice in sorted(voices.items())}


def order_casts(casts: Sequence[Cast], seed: int, key: str) -> list[Cast]:
    """Return casts in an order that depends on a seed and a key alone."""
    return sorted(casts, key=lambda cast: make_stable_id(seed, key, cast.name))


def speak_line(
    text: str, voice: Voice, attribute: str, category: str | None, *, is_shaped: bool, language: str = "en"
) -> np.ndarray:
    """Return mono 16 kHz float32 speech without silence at its ends; `is_shaped` applies the rule of the category."""
    engine = _load(voice)
    require_language(engine, voice.engine, language, text)
    speech = engine.speak(text, voice=voice.number)
    require_plausible([text], [speech], voice.engine, engine=f"{voice.engine} {json.dumps(dict(voice.options))}")
    by_rule = is_shaped and attribute in SHAPES
    shape = SHAPES[attribute][category] if by_rule and category else VoiceShape()
    return replace(shape, is_vocoded=by_rule and attribute in VOCODED)(speech, SAMPLING_RATE)


def _load(voice: Voice) -> Synthesizer:
    engine = load_synthesizer(voice.engine, voice.options or None)
    if not isinstance(engine, Synthesizer):
        raise SynthesisError(f"{voice.engine} speaks whole dialogues only; use another engine for ChatReward.")
    return engine
