"""Scenarios of ChatReward: a question, and three answers that deserve 5, 3 and 1 points (equation 1, appendix A).

- content: 5 answers in a neutral voice, 3 has the same words in a voice that does not suit them.
- understanding: the user asks what is heard. 5 names it in a voice like the user's; 3 names another category, in its
  voice (appendix A).
- generation: the user asks for a voice. 5 has it, 3 has the same words in another voice.
- implicit: neither side names what is heard. 5 answers in a voice that suits it, 3 in one that does not.
- attribute `audio`, in both parts: the sound in the question that the answer speaks of decides.

1 is off topic in any voice. `scenarios.jsonl` was written for this project. A language model writes more (section
3.2.3, stage 1; figure 4): a plan of labels, in which parts and attributes have the paper's shares and categories
alternate, then one question each. Every answer must pass the same checks; errors are sent back to the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.common.errors import Skipped
from sdiareward.common.llm import ChatClient, ChatError, FailureLimit
from sdiareward.common.package import CHATREWARD
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import make_stable_id, make_stable_seed

from ..llm_files import open_written, read_scenario_lines
from ..marks import remove_marks
from .schema import (
    ATTRIBUTES,
    CATEGORIES,
    CONTENT_VOICES,
    DESIGN_SCORES,
    PARTS,
    PLAIN,
    SAMPLES,
    TOPICS,
    are_alike,
    find_named_categories,
    find_voice_attribute,
)


DEFAULT_LICENSE = "Apache-2.0"
# Half of the 35 s that a dialogue may last (section 3.2.2), at 2 words per second.
MAX_WORDS = 35
# Implicit attributes that no text may name; the other attributes may be named in the answers.
_UNSPOKEN = ("emotion", "speed", "volume")
_LABELS = ("scenario_id", "part", "attribute", "category", "topic")
PROMPTS = (
    *("scenario_writing", "scenario_labels"),
    *(f"scenario_rules_{part}" for part in PARTS),
    *("scenario_mistaken_field", "scenario_rules_language", "scenario_request"),
)


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
            _require_labels(self)
            _require_texts(self)
            _require_part(self)
        except ValueError as error:
            raise ValueError(f"scenario {self.scenario_id!r}: {error}") from None

    @property
    def voices(self) -> str:
        """The attribute in which the voices of the answers differ."""
        return find_voice_attribute(self.attribute)

    def list_lines(self) -> list[tuple[str, Line]]:
        return [("question", self.question), *((f"answer {s}", line) for s, line in self.answers.items())]

    def as_row(self) -> dict[str, Any]:
        """Return the JSON object that `make_scenario` takes."""
        return {**asdict(self), "answers": {str(score): asdict(line) for score, line in self.answers.items()}}


def make_scenario(row: Mapping[str, Any]) -> Scenario:
    try:
        answers = {int(score): Line(**line) for score, line in row["answers"].items()}
        labels = {name: row[name] for name in _LABELS}
        license = row.get("license", DEFAULT_LICENSE)
        return Scenario(**labels, question=Line(**row["question"]), answers=answers, license=license)
    except (KeyError, TypeError, AttributeError) as error:
        name, found = row.get("scenario_id") if isinstance(row, Mapping) else None, f"{type(error).__name__}: {error}"
        raise ValueError(f"scenario {name!r}: a field is missing or of another kind ({found}).") from error


def read_scenarios(path: str | Path | None = None) -> list[Scenario]:
    """Read a JSONL file of scenarios; by default the project's own 140."""
    return read_scenario_lines(Path(path or CHATREWARD / "scenarios.jsonl"), make_scenario)


def assign_splits(scenarios: Sequence[Scenario], *, test: float, seed: int) -> dict[str, str]:
    """Split the scenarios (appendix A: 85 to 15): `test` is the share of every attribute and part, to one scenario."""
    by_id = {scenario.scenario_id: scenario for scenario in scenarios}
    ordered = sorted((item.attribute or "", item.part, make_stable_id(seed, i), i) for i, item in by_id.items())
    is_test = [math.floor((i + 1.5) * test) > math.floor((i + 0.5) * test) for i in range(len(ordered))]
    return {name: "test" if test else "train" for (*_, name), test in zip(ordered, is_test, strict=True)}


def take_evenly(scenarios: Sequence[Scenario], limit: int | None) -> list[Scenario]:
    """Return `limit` scenarios evenly spaced over the list."""
    if limit is None or limit >= len(scenarios):
        return list(scenarios)
    return [scenarios[number * len(scenarios) // limit] for number in range(limit)]


def _require(is_right: object, found: str, needed: str) -> None:
    if not is_right:
        raise ValueError(f"{found}; {needed}")


def _require_one_of(name: str, value: Any, allowed: Any) -> None:
    _require(value in allowed, f"{name} is {value!r}", f"it must be one of {list(allowed)}.")


def _require_unnamed(name: str, text: str, attribute: str) -> None:
    found = find_named_categories(text, attribute)
    _require(not found, f"{name} names {found}", f"it must not name a category of {attribute!r}.")


def _require_labels(scenario: Scenario) -> None:
    """Check every label, and that the wrong voice differs clearly from the right one."""
    texts = (scenario.scenario_id, scenario.license)
    _require(all(isinstance(text, str) for text in texts), f"scenario_id and license are {texts}", "give texts.")
    _require_one_of("part", scenario.part, PARTS)
    _require_one_of("topic", scenario.topic, TOPICS)
    attributes = [*CATEGORIES] if scenario.part != "content" else [None]
    _require_one_of("attribute", scenario.attribute, attributes)
    scores = tuple(scenario.answers)
    _require(scores == DESIGN_SCORES, f"the answers have the scores {scores}", f"they must be {DESIGN_SCORES}.")
    for name, line in scenario.list_lines():
        if line.category is not None or name in ("answer 5", "answer 3"):
            _require_one_of(f"{name}'s category", line.category, CATEGORIES[scenario.voices])
    right = scenario.category if scenario.attribute else PLAIN[scenario.voices]
    given, wrong = (str(scenario.answers[score].category) for score in (5, 3))
    _require(given == right, f"answer 5 has the category {given!r}", f"it must be {right!r}.")
    is_other = not are_alike(scenario.voices, given, wrong)
    _require(is_other, f"answer 3 has the category {wrong!r}", f"it must be clearly another than {right!r}.")


def _require_texts(scenario: Scenario) -> None:
    for name, line in scenario.list_lines():
        _require(isinstance(line.text, str) and line.text.strip(), f"{name} has no text", "write its words.")
        _, marks = remove_marks(line.text)
        _require(not marks, f"{name} holds {marks[:1]}, which is not spoken", "write spoken words only.")
        count = len(line.text.split())
        _require(count <= MAX_WORDS, f"{name} has {count} words", f"at most {MAX_WORDS} are allowed.")
    others = (scenario.answers[5].text, scenario.answers[3].text)
    _require(scenario.answers[1].text not in others, "answer 1 has the words of another", "it must be off topic.")


def _require_part(scenario: Scenario) -> None:
    """Check what each part asks of the question and of the words (rule 1 of figure 4)."""
    question, part, attribute, category = scenario.question, scenario.part, str(scenario.attribute), scenario.category
    heard = question.category
    if part == "content":
        plain = PLAIN[scenario.voices]
        _require(heard == plain, f"the question has the category {heard!r}", f"it must be heard as {plain!r}.")
        _require(category is None, f"category is {category!r}", "in the part content there is none.")
    elif part != "generation":
        _require(heard == category, f"the question has the category {heard!r}", f"it must be heard as {category!r}.")
    if part == "understanding":
        # Each answer names what it heard.
        for score in (5, 3):
            right, found = (
                scenario.answers[score].category,
                find_named_categories(scenario.answers[score].text, attribute),
            )
            _require(found == [right], f"answer {score} names {found}", f"it must name {right!r} alone.")
    if part == "generation":
        _require(attribute != "audio", "attribute is 'audio'", "no voice can be asked for a sound, use another part.")
        is_named = category in find_named_categories(question.text, attribute)
        _require(is_named, f"the question does not name {category!r}", "it must ask for it.")
    if part == "implicit" or (part, attribute) == ("understanding", "audio"):
        _require_unnamed("the question", question.text, attribute)
    if part == "implicit" and attribute in _UNSPOKEN:
        for name, line in scenario.list_lines()[1:]:
            _require_unnamed(name, line.text, attribute)


@dataclass(frozen=True)
class ScenarioSettings:
    count: int
    seed: int = 0
    license: str = "LicenseRef-model-output"  # The terms of the model's provider decide.
    max_failed: float = 0.5  # Largest share of failures, checked from 20 questions on.


@dataclass(frozen=True)
class Slot:
    number: int
    part: str
    attribute: str | None
    category: str | None
    topic: str

    @property
    def scenario_id(self) -> str:
        return f"llm-{self.part}-{self.attribute or 'text'}-{self.number:05d}"

    @property
    def has_mistake(self) -> bool:
        """Whether the answer of 3 points has its own words, not only another voice."""
        return self.part == "understanding" or self.attribute in ("audio", "language")


def plan_slots(count: int, *, seed: int = 0) -> list[Slot]:
    """Plan `count` scenarios with the paper's shares; a longer plan begins with the shorter one."""
    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1.")
    shares, done, slots = compute_shares(), Counter[tuple[str | None, ...]](), []
    for number in range(1, count + 1):
        # The part that lacks most of its share, and of its attributes the one that does.
        part = max(PARTS, key=lambda name, number=number: PARTS[name] * number - done[name,])  # type: ignore[misc]
        done[part,] += 1
        lacks = {name: share * done[part,] / PARTS[part] - done[part, name] for name, share in shares[part].items()}
        attribute = max(lacks, key=lambda name: lacks[name])
        # A plain voice gives an implicit dialogue nothing to react to.
        skipped = set(PLAIN.values()) if part == "implicit" else set()
        categories = [name for name in CATEGORIES.get(attribute or "", (None,)) if name not in skipped]
        category = categories[done[part, attribute] % len(categories)]
        done[part, attribute] += 1
        topic = TOPICS[make_stable_seed(seed, number) % len(TOPICS)]
        slots.append(Slot(number, part, attribute, category, topic))
    return slots


def compute_shares() -> dict[str, dict[str | None, float]]:
    """Return the share of each attribute in each part, of all samples: sums are those of section 3.2.2 and Table 4.

    The paper has the sums alone. Parts take in the order of `ATTRIBUTES`, each the same fraction of what is left.
    """
    left = {name: count / sum(SAMPLES.values()) for name, count in SAMPLES.items()}
    left[CONTENT_VOICES] -= PARTS["content"]
    shares: dict[str, dict[str | None, float]] = {"content": {None: PARTS["content"]}}
    for part, names in ATTRIBUTES.items():
        taken = PARTS[part] / sum(left[name] for name in names)
        shares[part] = {name: left[name] * taken for name in names}
        left |= {name: left[name] * (1 - taken) for name in names}
    return shares


def write_scenarios(
    path: str | Path, client: ChatClient, settings: ScenarioSettings, prompts: PromptSet | None = None
) -> list[Skipped]:
    """Append scenarios to a JSONL file that `read_scenarios` reads; resume an earlier run."""
    prompts = prompts or PromptSet()
    writer = {"writer": client.settings.model, "prompt_version": prompts.compute_version(*PROMPTS)}
    file, written = open_written(path, writer)
    known = {row["scenario_id"] for row in written}
    questions = {_normalise(row["question"]["text"]) for row in written}
    slots = [slot for slot in plan_slots(settings.count, seed=settings.seed) if slot.scenario_id not in known]
    skipped = []
    limit = FailureLimit(settings.max_failed, "the model failed to write {} scenarios", "max_failed")

    def ask(slot: Slot) -> Scenario | Skipped:
        try:
            read = partial(_read_answer, slot=slot, license=settings.license)
            return client.ask_json(_make_messages(slot, prompts), read)
        except ChatError as error:
            return Skipped(slot.scenario_id, "writing_failed", f"{slot.scenario_id}: {error}")

    found: Any
    for slot, found in zip(slots, client.map(ask, slots, failures=(), description="scenarios"), strict=True):
        limit.count(found.reason if isinstance(found, Skipped) else None)
        if isinstance(found, Scenario) and _normalise(found.question.text) in questions:
            found = Skipped(slot.scenario_id, "duplicate_question", "was asked before; raise the temperature.")
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            questions.add(_normalise(found.question.text))
            file.append([{**found.as_row(), **writer}])
    return skipped


def _make_messages(slot: Slot, prompts: PromptSet) -> list[dict[str, str]]:
    attribute = find_voice_attribute(slot.attribute)
    names = {"attribute": attribute, "category": slot.category, "categories": ", ".join(CATEGORIES[attribute])}
    rules = prompts.fill(f"scenario_rules_{slot.part}", **names, labels=prompts.fill("scenario_labels", **names))
    if attribute == "language":
        rules += f"\n{prompts.fill('scenario_rules_language')}"
    fields = prompts.fill("scenario_mistaken_field") if slot.has_mistake else ""
    what = f"{slot.attribute}: {slot.category}." if slot.attribute else ""
    topic = slot.topic.replace("_", " ")
    request = prompts.fill("scenario_request", number=slot.number, part=slot.part, what=what, topic=topic)
    system = prompts.fill("scenario_writing", max_words=MAX_WORDS, rules=rules, fields=fields)
    return [{"role": "system", "content": system}, {"role": "user", "content": request}]


def _read_answer(answer: Any, *, slot: Slot, license: str) -> Scenario:
    """Make a scenario of the model's answer; raise `ValueError` with what to correct."""
    needed = ["question", "good_answer", "off_topic_answer", "appropriate_label", "incorrect_label"]
    needed += ["mistaken_answer"] if slot.has_mistake else []
    if not isinstance(answer, dict) or set(answer) != set(needed):
        raise ValueError(f"the answer must be a JSON object with exactly the fields {needed}.")
    if empty := [name for name in needed if not isinstance(answer[name], str) or not answer[name].strip()]:
        raise ValueError(f"{empty} must be texts.")
    words = {name: " ".join(text.split()) for name, text in answer.items()}
    right = slot.category or PLAIN[find_voice_attribute(slot.attribute)]
    label = words["appropriate_label"]
    _require(label == right, f"appropriate_label is {label!r}", f"it must be {right!r}.")
    heard: str | None = right
    if slot.part == "generation":
        heard = PLAIN["language"] if slot.attribute == "language" else None
    wrong = Line(words.get("mistaken_answer", words["good_answer"]), words["incorrect_label"])
    off_topic = Line(words["off_topic_answer"], None if slot.attribute == "audio" else right)
    answers = {5: Line(words["good_answer"], right), 3: wrong, 1: off_topic}
    labels = {name: getattr(slot, name) for name in _LABELS}
    return Scenario(**labels, question=Line(words["question"], heard), answers=answers, license=license)


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split())
