"""What ChatReward is made of (section 3.2, Table 4 of the WavReward paper): parts, attributes, categories, columns."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.pairs.loading import make_builder


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
PLAIN: dict[str, str] = {
    **{"age": "middle-aged", "language": "english", "emotion": "neutral"},
    **{"pitch": "normal", "speed": "normal", "volume": "normal"},
}
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


# Attribute -> category -> words that name it; any other category is named by itself.
_WORDS: dict[str, dict[str, str]] = {
    "gender": {"male": "male man men man's gentleman guy", "female": "female woman women woman's lady girl"},
    "age": {
        "children": "child children child's kid kids",
        "adolescent": "adolescent adolescents teen teens teenager teenage",
        "middle-aged": "middle-aged|middle aged",
        "elderly": "elderly|senior|old man|old lady|old woman|old person",
    },
    "language": {"chinese": "chinese mandarin 中文 汉语 普通话", "english": "english 英语 英文"},
    "emotion": {
        "happy": "happy happily happiness cheerful joy joyful glad delighted excited thrilled",
        "sad": "sad sadly sadness sorrow sorrowful unhappy gloomy depressed miserable",
        "angry": "angry angrily anger furious fury mad rage annoyed outraged",
        "surprised": "surprised surprise surprising amazed amazement astonished shocked stunned",
        "disgusted": "disgusted disgust disgusting revolted revolting",
        "fearful": "fearful fear afraid scared frightened frightening terrified terrifying panic",
    },
    "pitch": {"low": "low lower deep deeper", "high": "high higher squeaky"},
    "speed": {"slow": "slow slowly slower", "fast": "fast faster quick quickly rapid rapidly hurry rush"},
    "volume": {
        "low": "low quiet quietly whisper whispering soft softly silent silently",
        "high": "high loud loudly louder shout shouting yell yelling",
    },
    "audio": {
        "bee": "bee bees buzzing",
        "bird": "bird birds",
        "car": "car cars engine",
        "chirping": "chirp chirps chirping",
        "clapping": "clap claps clapping applause",
        "crying": "cry cries crying weeping",
        "coughing": "cough coughs coughing",
        "horse": "horse horses hooves",
        "knocking": "knock knocks knocking",
        "laughing": "laugh laughs laughing laughter",
        "ocean": "ocean sea waves",
        "police": "police siren",
        "screaming": "scream screams screaming",
        "sneezing": "sneeze sneezes sneezing",
        "waterfall burbling": "waterfall burbling stream brook",
    },
}
# Too similar for a right and a wrong label.
_ALIKE = {
    "age": ({"children", "adolescent"}, {"adolescent", "middle-aged"}, {"middle-aged", "elderly"}),
    "accent": ({"american", "canadian"},),
    "emotion": ({"happy", "surprised"}, {"angry", "disgusted"}, {"sad", "fearful"}),
    "audio": ({"bird", "chirping"}, {"ocean", "waterfall burbling"}, {"crying", "screaming"}),
}


def find_voice_attribute(attribute: str | None) -> str:
    """Return the attribute in which the voices of a scenario differ."""
    return attribute or CONTENT_VOICES


def find_named_categories(text: str, attribute: str) -> list[str]:
    """Return the categories of an attribute that a text names, in the order of Table 4."""
    return [category for category in CATEGORIES[attribute] if _compile_pattern(attribute, category).search(text)]


def are_alike(attribute: str, first: str, second: str) -> bool:
    """Check whether two categories are too similar for a right and a wrong label."""
    return first == second or {first, second} in _ALIKE.get(attribute, ())


@cache
def _compile_pattern(attribute: str, category: str) -> re.Pattern[str]:
    listed = _WORDS.get(attribute, {}).get(category, category)
    # Several words make a name where bars stand between the names.
    names = listed.split("|") if "|" in listed or listed == category else listed.split()
    # Chinese has no spaces, so there are no word boundaries.
    bordered = [re.escape(name) if not name.isascii() else rf"\b{re.escape(name)}\b" for name in names]
    return re.compile("|".join(bordered), re.IGNORECASE)


def load_samples(path: str | Path, split: str) -> datasets.Dataset:
    """Load one split of a ChatReward folder; `audio` stays encoded, as `read_audio` takes it."""
    import datasets

    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {list(SPLITS)}.")
    pattern = f"data/{split}-*.parquet"
    if Path(path).is_dir():
        files = sorted(map(str, Path(path).glob(pattern)))
        if not files:
            raise FileNotFoundError(f"{path}: holds no {pattern}; build the data set first.")
        samples = datasets.Dataset.from_parquet(files, split=split)
    else:
        builder = make_builder(path, data_files={split: pattern})
        builder.download_and_prepare()
        samples = builder.as_dataset(split)
    if missing := sorted(set(features()) - set(samples.column_names)):
        raise ValueError(f"{path}: lacks the columns {missing}; give a ChatReward folder.")
    return samples.cast_column("audio", datasets.Audio(sampling_rate=16_000, decode=False))


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
            **dict.fromkeys(("score", "design_score"), whole),
            "expert_scores": datasets.List(whole),
            **dict.fromkeys(("question", "response"), text),
            **dict.fromkeys(("question_s", "response_s", "duration_s"), real),
            "audio": datasets.Audio(sampling_rate=16_000, decode=False),
            **dict.fromkeys(("question_synthesizer", "synthesizer"), text),
            **dict.fromkeys(("question_wer", "response_wer"), real),
            **dict.fromkeys(("language", "license"), text),
        }
    )
