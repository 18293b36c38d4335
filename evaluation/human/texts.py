"""What raters read before they begin: instructions and consent, by default or from a YAML file of the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdiareward.common.settings import make_settings, read_mapping


MAX_CHARACTERS = 8000
INSTRUCTIONS = """You will hear pairs of short conversations. Answer the question above each pair.

Listen to both conversations before you choose. Headphones and a quiet room help.

Pay attention to how the people speak and what words they use, not to who they are or to what they want. There are \
no right or wrong answers. You can change an answer, take a break, and come back later under the same name."""
INSTRUCTIONS_OF_SCORES = """You will hear conversations, each with two scores from 1 to 5. Choose the score that fits \
the answer better.

Listen to the whole conversation before you choose. Headphones and a quiet room help.

There are no right or wrong answers. You can change an answer, take a break, and come back under the same name."""
CONSENT = """Taking part is voluntary. You can stop at any time by closing this page.

The study saves your answers, when you gave them, which recordings you played, and the name under which you rate. You \
do not need to use your real name. The answers are used to measure how well models agree with people.

Whoever invited you can tell you who is responsible for the study, how long the answers are kept, and how to have \
yours deleted."""


@dataclass(frozen=True)
class StudyTexts:
    """What raters read before they begin; an empty line begins a new paragraph."""

    instructions: str = INSTRUCTIONS
    consent: str = CONSENT

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if not isinstance(text, str) or not text.strip() or len(text) > MAX_CHARACTERS:
                raise ValueError(f"{name} must be a text of 1 to {MAX_CHARACTERS} characters.")

    def as_fields(self) -> dict[str, str]:
        return asdict(self)


def read_texts(path: Path | None, *, of_scores: bool = False) -> StudyTexts:
    """Read the texts of a study; with `of_scores` raters compare scores, not dialogues."""
    defaults = {"instructions": INSTRUCTIONS_OF_SCORES if of_scores else INSTRUCTIONS, "consent": CONSENT}
    given: Mapping[str, Any] = {} if path is None else read_mapping(path)
    return make_settings(StudyTexts, {**defaults, **given}, str(path or "texts"))
