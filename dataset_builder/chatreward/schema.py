"""What ChatReward is made of (section 3.2, Table 4 of the WavReward paper): parts, attributes, categories, columns."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import datasets

# Part -> its share of the samples (section 3.2.2).
PARTS: dict[str, float] = {"content": 0.15, "understanding": 0.25, "generation": 0.35, "implicit": 0.25}
# Attribute -> its categories (Table 4).
CATEGORIES: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female"),
    "age": ("children", "adolescent", "middle-aged", "elderly"),
    "language": ("chinese", "english"),
    "accent": ("indian", "canadian", "british", "singaporean", "american", "australian"),
    "emotion": ("neutral", "happy", "sad", "angry", "surprised", "disgusted", "fearful"),
    "pitch": ("low", "normal", "high"),
    "speed": ("slow", "normal", "fast"),
    "volume": ("low", "normal", "high"),
    "audio": (
        *("laughing", "crying", "bee", "bird", "car", "cat", "chirping", "clapping", "coughing", "dog", "screaming"),
        *("duck", "horse", "ice", "knocking", "ocean", "pig", "police", "sneezing", "thunder", "waterfall burbling"),
    ),
}
# Attribute -> its samples (Table 4): 28,209 of the 30,000. The content part has no row there; we count it under the
# attribute of its voices, so that the rest of that row is for the other parts.
SAMPLES: dict[str, int] = {
    **{"gender": 2177, "age": 2070, "language": 3583, "accent": 1618, "emotion": 9470},
    **{"pitch": 853, "speed": 2303, "volume": 2054, "audio": 4081},
}
# Attributes of a part; implicit dialogues go with these three (appendix D), and no voice can be asked for a sound.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "implicit": ("emotion", "speed", "volume"),
    "generation": tuple(name for name in CATEGORIES if name != "audio"),
    "understanding": tuple(CATEGORIES),
}
# Category of a voice without a request.
PLAIN: dict[str, str] = {"age": "middle-aged", "language": "english", "emotion": "neutral"} | dict.fromkeys(
    ("pitch", "speed", "volume"), "normal"
)
# The voices of the content part: right words in a voice that does not suit them get 3 points (equation 1).
CONTENT_VOICES = "emotion"
# Section 3.2.3, stage 1.
TOPICS = (
    *("daily_life", "health_management", "education", "entertainment", "family_relations", "dietary_culture"),
    *("healthcare", "shopping", "internet_usage", "fitness", "career_development", "social_interaction"),
)
# Scores of answers: content and voice right; content right, voice wrong; content wrong.
DESIGN_SCORES = (5, 3, 1)
SPLITS = ("train", "test")
# BCP-47 tags of the categories of `language`; "mul" stands for a dialogue in both.
LANGUAGE_TAGS = {"english": "en", "chinese": "zh"}
MIXED_LANGUAGES = "mul"
# Kind of the skipped lines that a cast has no voice for.
NO_VOICE = "no_voice"


def find_voice_attribute(attribute: str | None) -> str:
    """Return the attribute in which the voices of a scenario differ."""
    return attribute or CONTENT_VOICES


def features() -> datasets.Features:
    """Return the columns of a sample.

    `audio` is the question, 1 s of silence and the answer, mono, 16 kHz. `category` is the voice heard in the question
    or asked for by it; `response_category` is the answer's voice or, for `audio`, the sound that it speaks of.
    `question_wer` and `response_wer` are None where the recogniser does not know the language.
    """
    import datasets

    text, whole, real = datasets.Value("string"), datasets.Value("int32"), datasets.Value("float32")
    names = ("sample_id", "scenario_id", "part", "attribute", "category", "response_category", "topic")
    return datasets.Features(
        {
            **dict.fromkeys(names, text),
            "score": whole,
            "design_score": whole,
            "expert_scores": datasets.List(whole),
            "question": text,
            "response": text,
            "question_s": real,
            "response_s": real,
            "duration_s": real,
            "audio": datasets.Audio(sampling_rate=16_000, decode=False),
            "question_synthesizer": text,
            "synthesizer": text,
            "question_wer": real,
            "response_wer": real,
            "language": text,
            "license": text,
        }
    )
