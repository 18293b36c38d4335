"""The words by which a category is named, and which categories are too alike to be right and wrong (figure 4)."""

from __future__ import annotations

import re
from functools import cache

from .schema import CATEGORIES


# Attribute -> category -> words that name it. An unlisted category is named by itself.
_WORDS: dict[str, dict[str, str]] = {
    "gender": {
        "male": "male man men man's gentleman guy",
        "female": "female woman women woman's lady girl",
    },
    "age": {
        "children": "child children child's kid kids",
        "adolescent": "adolescent adolescents teen teens teenager teenage",
        "middle-aged": "middle-aged|middle aged",
        "elderly": "elderly|senior|old man|old lady|old woman|old person",
    },
    "language": {"chinese": "chinese mandarin 中文 汉语 普通话", "english": "english 英语 英文"},
    "emotion": {
        "neutral": "neutral",
        "happy": "happy happily happiness cheerful joy joyful glad delighted excited thrilled",
        "sad": "sad sadly sadness sorrow sorrowful unhappy gloomy depressed miserable",
        "angry": "angry angrily anger furious fury mad rage annoyed outraged",
        "surprised": "surprised surprise surprising amazed amazement astonished shocked stunned",
        "disgusted": "disgusted disgust disgusting revolted revolting",
        "fearful": "fearful fear afraid scared frightened frightening terrified terrifying panic",
    },
    "pitch": {"low": "low lower deep deeper", "high": "high higher squeaky", "normal": "normal"},
    "speed": {
        "slow": "slow slowly slower",
        "fast": "fast faster quick quickly rapid rapidly hurry rush",
        "normal": "normal",
    },
    "volume": {
        "low": "low quiet quietly whisper whispering soft softly silent silently",
        "high": "high loud loudly louder shout shouting yell yelling",
        "normal": "normal",
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
        "ice": "ice",
        "knocking": "knock knocks knocking",
        "laughing": "laugh laughs laughing laughter",
        "ocean": "ocean sea waves",
        "police": "police siren",
        "screaming": "scream screams screaming",
        "sneezing": "sneeze sneezes sneezing",
        "thunder": "thunder",
        "waterfall burbling": "waterfall burbling stream brook",
    },
}
# Too similar for a right and a wrong label.
_ALIKE: dict[str, tuple[frozenset[str], ...]] = {
    "age": (
        frozenset({"children", "adolescent"}),
        frozenset({"adolescent", "middle-aged"}),
        frozenset({"middle-aged", "elderly"}),
    ),
    "accent": (frozenset({"american", "canadian"}),),
    "emotion": (frozenset({"happy", "surprised"}), frozenset({"angry", "disgusted"}), frozenset({"sad", "fearful"})),
    "audio": (
        frozenset({"bird", "chirping"}),
        frozenset({"ocean", "waterfall burbling"}),
        frozenset({"crying", "screaming"}),
    ),
}


def names_category(text: str, attribute: str, category: str) -> bool:
    return _compile_pattern(attribute, category).search(text) is not None


def find_named_categories(text: str, attribute: str) -> list[str]:
    """Return the categories of an attribute that a text names, in the order of Table 4."""
    return [category for category in CATEGORIES[attribute] if names_category(text, attribute, category)]


def are_alike(attribute: str, first: str, second: str) -> bool:
    """Check whether two categories are too similar for a right and a wrong label."""
    return first == second or frozenset({first, second}) in _ALIKE.get(attribute, ())


@cache
def _compile_pattern(attribute: str, category: str) -> re.Pattern[str]:
    listed = _WORDS.get(attribute, {}).get(category, category)
    # Several words make a name where bars stand between the names.
    names = listed.split("|") if "|" in listed or listed == category else listed.split()
    # Chinese has no spaces, so there are no word boundaries.
    bordered = [re.escape(name) if not name.isascii() else rf"\b{re.escape(name)}\b" for name in names]
    return re.compile("|".join(bordered), re.IGNORECASE)
