"""Have a language model write scenarios (section 3.2.3, stage 1; figure 4): a plan of labels, then one question each.

The plan gives parts and attributes the paper's shares and alternates categories. Every answer must pass the checks of
the bundled scenarios; errors are sent back to the model. Scenarios are appended to a JSONL file: a killed run resumes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.common.llm import ChatClient, ChatError, FailureLimit
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import make_stable_seed

from ..llm_files import open_written
from .scenarios import MAX_WORDS, Scenario, make_scenario
from .schema import ATTRIBUTES, CATEGORIES, CONTENT_VOICES, PARTS, PLAIN, SAMPLES, TOPICS, find_voice_attribute


PROMPTS = (
    "scenario_writing",
    "scenario_labels",
    *(f"scenario_rules_{part}" for part in PARTS),
    "scenario_mistaken_field",
    "scenario_rules_language",
    "scenario_request",
)


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
        categories = _list_categories(part, attribute)
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


def _list_categories(part: str, attribute: str | None) -> tuple[str | None, ...]:
    if attribute is None:
        return (None,)
    # A plain voice gives an implicit dialogue nothing to react to.
    skipped = set(PLAIN.values()) if part == "implicit" else set()
    return tuple(category for category in CATEGORIES[attribute] if category not in skipped)


def write_scenarios(
    path: str | Path, client: ChatClient, settings: ScenarioSettings, prompts: PromptSet | None = None
) -> list[Skipped]:
    """Write scenarios to a JSONL file that `scenarios.read_scenarios` reads; resume an earlier run."""
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
    fields = prompts.fill("scenario_mistaken_field") if _has_mistake(slot) else ""
    what = f"{slot.attribute}: {slot.category}." if slot.attribute else ""
    topic = slot.topic.replace("_", " ")
    request = prompts.fill("scenario_request", number=slot.number, part=slot.part, what=what, topic=topic)
    system = prompts.fill("scenario_writing", max_words=MAX_WORDS, rules=rules, fields=fields)
    return [{"role": "system", "content": system}, {"role": "user", "content": request}]


def _has_mistake(slot: Slot) -> bool:
    """Check whether the answer of 3 points has its own words, not only another voice."""
    return slot.part == "understanding" or slot.attribute in ("audio", "language")


def _read_answer(answer: Any, *, slot: Slot, license: str) -> Scenario:
    """Make a scenario of the model's answer; raise `ValueError` with what to correct."""
    needed = ["question", "good_answer", "off_topic_answer", "appropriate_label", "incorrect_label"]
    needed += ["mistaken_answer"] if _has_mistake(slot) else []
    if not isinstance(answer, dict) or set(answer) != set(needed):
        raise ValueError(f"the answer must be a JSON object with exactly the fields {needed}.")
    if empty := [name for name in needed if not isinstance(answer[name], str) or not answer[name].strip()]:
        raise ValueError(f"{empty} must be texts.")
    words = {name: " ".join(text.split()) for name, text in answer.items()}
    right = slot.category or PLAIN[find_voice_attribute(slot.attribute)]
    if words["appropriate_label"] != right:
        raise ValueError(f"appropriate_label is {words['appropriate_label']!r}; it must be {right!r}.")
    heard = right
    if slot.part == "generation":
        heard = PLAIN["language"] if slot.attribute == "language" else ""
    row = {
        **{name: getattr(slot, name) for name in ("scenario_id", "part", "attribute", "category", "topic")},
        "question": {"text": words["question"], "category": heard or None},
        "answers": {
            "5": {"text": words["good_answer"], "category": right},
            "3": {
                "text": words.get("mistaken_answer", words["good_answer"]),
                "category": words["incorrect_label"],
            },
            "1": {"text": words["off_topic_answer"], "category": None if slot.attribute == "audio" else right},
        },
        "license": license,
    }
    return make_scenario(row)


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split())
