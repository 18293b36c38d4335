"""Scenarios of ChatReward: a question, and three answers that deserve 5, 3 and 1 points (equation 1, appendix A).

- content: 5 answers in a neutral voice, 3 has the same words in a voice that does not suit them.
- understanding: the user asks what is heard. 5 names it in a voice like the user's; 3 names another category, in its
  voice (appendix A).
- generation: the user asks for a voice. 5 has it, 3 has the same words in another voice.
- implicit: neither side names what is heard. 5 answers in a voice that suits it, 3 in one that does not.
- attribute `audio`, in both parts: the sound in the question that the answer speaks of decides.

1 is off topic in any voice. `scenarios.jsonl` was written for this project.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdiareward.common.package_files import CHATREWARD
from sdiareward.pairs.schema import make_stable_id

from ..llm_files import read_scenario_lines
from ..marks import remove_marks
from .labels import are_alike, find_named_categories, names_category
from .schema import CATEGORIES, DESIGN_SCORES, PARTS, PLAIN, TOPICS, find_voice_attribute


DEFAULT_SCENARIOS = CHATREWARD / "scenarios.jsonl"
DEFAULT_LICENSE = "Apache-2.0"
# Half of the 35 s that a dialogue may last (section 3.2.2), at 2 words per second.
MAX_WORDS = 35
# Implicit attributes that no text may name; the other attributes may be named in the answers.
_UNSPOKEN = ("emotion", "speed", "volume")


@dataclass(frozen=True)
class Line:
    text: str
    category: str | None = None  # Of the voice; with `audio`, the sound mixed in (question) or spoken of (answer).


@dataclass(frozen=True)
class Scenario:
    scenario_id: str
    part: str
    attribute: str | None  # None for the part content.
    category: str | None  # Heard or asked for.
    topic: str
    question: Line
    answers: Mapping[int, Line]  # By score.
    license: str = DEFAULT_LICENSE

    def __post_init__(self) -> None:
        try:
            _validate_labels(self)
            _validate_texts(self)
            _validate_part(self)
        except ValueError as error:
            raise ValueError(f"scenario {self.scenario_id!r}: {error}") from None

    @property
    def voices(self) -> str:
        """The attribute in which the voices of the answers differ."""
        return find_voice_attribute(self.attribute)

    def as_row(self) -> dict[str, Any]:
        """Return the JSON object that `make_scenario` takes."""
        row = asdict(self)
        row["answers"] = {str(score): line for score, line in row["answers"].items()}
        return row


def make_scenario(row: Mapping[str, Any]) -> Scenario:
    try:
        answers = {int(score): Line(**line) for score, line in row["answers"].items()}
        plain = {name: row[name] for name in ("scenario_id", "part", "attribute", "category", "topic")}
        license = row.get("license", DEFAULT_LICENSE)
        return Scenario(**plain, question=Line(**row["question"]), answers=answers, license=license)
    except (KeyError, TypeError, AttributeError) as error:
        name = row.get("scenario_id") if isinstance(row, Mapping) else None
        raise ValueError(
            f"scenario {name!r}: a field is missing or of another kind ({type(error).__name__}: {error})."
        ) from error


def read_scenarios(path: str | Path | None = None) -> list[Scenario]:
    """Read a JSONL file of scenarios; by default the project's own 140."""
    return read_scenario_lines(Path(path or DEFAULT_SCENARIOS), make_scenario)


def assign_splits(scenarios: Sequence[Scenario], *, test: float, seed: int) -> dict[str, str]:
    """Split the scenarios (appendix A: 85 to 15): `test` is the share of every attribute and part, to one scenario."""
    ordered = sorted(
        scenarios, key=lambda item: (item.attribute or "", item.part, make_stable_id(seed, item.scenario_id))
    )
    assignment = {}
    for number, scenario in enumerate(ordered):
        is_test = math.floor((number + 1.5) * test) > math.floor((number + 0.5) * test)
        assignment[scenario.scenario_id] = "test" if is_test else "train"
    return assignment


def take_evenly(scenarios: Sequence[Scenario], limit: int | None) -> list[Scenario]:
    """Return `limit` scenarios evenly spaced over the list."""
    if limit is None or limit >= len(scenarios):
        return list(scenarios)
    return [scenarios[number * len(scenarios) // limit] for number in range(limit)]


def _require_one_of(name: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {list(allowed)}.")


def _require_unnamed(name: str, text: str, attribute: str) -> None:
    if found := find_named_categories(text, attribute):
        raise ValueError(f"{name} names {found}; it must not name a category of {attribute!r}.")


def _list_lines(scenario: Scenario) -> list[tuple[str, Line]]:
    return [("question", scenario.question), *((f"answer {s}", line) for s, line in scenario.answers.items())]


def _validate_labels(scenario: Scenario) -> None:
    """Check every label, and that the wrong voice differs clearly from the right one."""
    if not isinstance(scenario.scenario_id, str) or not isinstance(scenario.license, str):
        raise ValueError("scenario_id and license must be texts.")
    _require_one_of("part", scenario.part, PARTS)
    _require_one_of("topic", scenario.topic, TOPICS)
    if (scenario.part == "content") != (scenario.attribute is None):
        raise ValueError(f"attribute is {scenario.attribute!r}; the part content has none, the others need one.")
    if scenario.attribute is not None:
        _require_one_of("attribute", scenario.attribute, CATEGORIES)
    if tuple(scenario.answers) != DESIGN_SCORES:
        raise ValueError(f"the answers have the scores {list(scenario.answers)}; they must be {list(DESIGN_SCORES)}.")
    for name, line in _list_lines(scenario):
        if line.category is not None or name in ("answer 5", "answer 3"):
            _require_one_of(f"{name}'s category", line.category, CATEGORIES[scenario.voices])
    right = scenario.category if scenario.attribute else PLAIN[scenario.voices]
    if scenario.answers[5].category != right:
        raise ValueError(f"answer 5 has the category {scenario.answers[5].category!r}; it must be {right!r}.")
    wrong = str(scenario.answers[3].category)
    if are_alike(scenario.voices, str(right), wrong):
        raise ValueError(f"answer 3 has the category {wrong!r}; it must be clearly another than {right!r}.")


def _validate_texts(scenario: Scenario) -> None:
    for name, line in _list_lines(scenario):
        if not isinstance(line.text, str) or not line.text.strip():
            raise ValueError(f"{name} has no text.")
        if marks := remove_marks(line.text)[1]:
            raise ValueError(f"{name} holds {marks[0]!r}, which is not spoken; write only what is said.")
        if (count := len(line.text.split())) > MAX_WORDS:
            raise ValueError(f"{name} has {count} words; at most {MAX_WORDS} are allowed.")
    if scenario.answers[1].text in (scenario.answers[5].text, scenario.answers[3].text):
        raise ValueError("answer 1 has the words of another; it must be off topic.")


def _validate_part(scenario: Scenario) -> None:
    """Check what each part asks of the question and of the words (rule 1 of figure 4)."""
    question, attribute = scenario.question, str(scenario.attribute)
    heard = PLAIN[scenario.voices] if scenario.part == "content" else scenario.category
    if scenario.part != "generation" and question.category != heard:
        raise ValueError(f"the question has the category {question.category!r}; it must be heard as {heard!r}.")
    if scenario.part == "content" and scenario.category is not None:
        raise ValueError(f"category is {scenario.category!r}; in the part content there is none.")
    if scenario.part == "understanding":
        # Each answer names what it heard.
        for score in (5, 3):
            line = scenario.answers[score]
            found = find_named_categories(line.text, attribute)
            if found != [line.category]:
                raise ValueError(f"answer {score} names {found}; it must name {line.category!r} alone.")
    if scenario.part == "generation":
        if attribute == "audio":
            raise ValueError("attribute is 'audio'; no voice can be asked for a sound, so use another part.")
        if not names_category(question.text, attribute, str(scenario.category)):
            raise ValueError(f"the question does not name {scenario.category!r}; it must ask for it.")
    if scenario.part == "implicit" or (scenario.part, attribute) == ("understanding", "audio"):
        _require_unnamed("the question", question.text, attribute)
    if scenario.part == "implicit" and attribute in _UNSPOKEN:
        for name, line in _list_lines(scenario)[1:]:
            _require_unnamed(name, line.text, attribute)
