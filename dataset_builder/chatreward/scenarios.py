"""The categories of ChatReward (section 3.2, Table 4) and its scenarios: a question and three answers.

The answers deserve 5, 3 and 1 points (equation 1, appendix A):

- content: 5 answers in a neutral voice, 3 says the same words in an unsuitable voice.
- understanding: the user asks what can be heard. 5 names it in a voice like the user's; 3 names another category, in
  its voice (appendix A).
- generation: the user asks for a voice. 5 has it, 3 says the same words in another voice.
- implicit: neither side names what can be heard. 5 answers in a suitable voice, 3 in an unsuitable one.
- attribute `audio`, in both parts: the question contains a sound; 5 refers to it, 3 to another sound.

1 is off topic, in any voice. `scenarios.jsonl` was written for this project. A language model writes more (section
3.2.3, stage 1; figure 4): first a plan of labels, with the paper's shares of parts and attributes and alternating
categories, then one scenario per request. Every answer must pass the same checks; errors are sent back to the model.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic.dataclasses
from pydantic import Field, TypeAdapter

from sdiareward.common.errors import Skipped
from sdiareward.common.llm import ChatClient, FailureLimit
from sdiareward.common.package import CHATREWARD
from sdiareward.common.settings import explain_error
from sdiareward.pairs.loading import make_builder
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import make_stable_id, make_stable_seed

from ..marks import remove_marks
from ..sources.reading import read_scenario_lines, write_lines


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
# attribute of its voices, and the other parts get the rest of that row.
SAMPLES: dict[str, int] = {
    **{"gender": 2177, "age": 2070, "language": 3583, "accent": 1618, "emotion": 9470},
    **{"pitch": 853, "speed": 2303, "volume": 2054, "audio": 4081},
}
# Attributes of a part; implicit dialogues have these three (appendix D), and a voice cannot produce a sound.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "implicit": ("emotion", "speed", "volume"),
    "generation": tuple(name for name in CATEGORIES if name != "audio"),
    "understanding": tuple(CATEGORIES),
}
# Category of a voice if none is requested.
PLAIN: dict[str, str] = {
    **{"age": "middle-aged", "language": "english", "emotion": "neutral"},
    **{"pitch": "normal", "speed": "normal", "volume": "normal"},
}
# The voices of the content part: right words in an unsuitable voice get 3 points (equation 1).
CONTENT_VOICES = "emotion"
# Section 3.2.3, stage 1.
TOPICS = (
    *("daily_life", "health_management", "education", "entertainment", "family_relations", "dietary_culture"),
    *("healthcare", "shopping", "internet_usage", "fitness", "career_development", "social_interaction"),
)
# Scores of answers: content and voice right; content right, voice wrong; content wrong.
DESIGN_SCORES = (5, 3, 1)
# BCP-47 tags of the categories of `language`; "mul" means both.
LANGUAGE_TAGS = {"english": "en", "chinese": "zh"}
MIXED_LANGUAGES = "mul"
# Kind of a skipped line if a cast has no voice for it.
NO_VOICE = "no_voice"


# Attribute -> category -> words that name it; other categories are their own words.
_WORDS: dict[str, dict[str, str]] = {
    "gender": {"male": "male man men man's gentleman guy", "female": "female woman women woman's lady girl"},
    "age": {
        "children": "child children child's kid kids",
        "adolescent": "adolescent adolescents teen teens teenager teenage",
        **{
            "middle-aged": "middle-aged|middle aged",
            "elderly": "elderly|senior|old man|old lady|old woman|old person",
        },
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
        **{"bee": "bee bees buzzing", "bird": "bird birds", "car": "car cars engine", "horse": "horse horses hooves"},
        **{"chirping": "chirp chirps chirping", "clapping": "clap claps clapping applause", "police": "police siren"},
        **{"crying": "cry cries crying weeping", "coughing": "cough coughs coughing", "ocean": "ocean sea waves"},
        **{"knocking": "knock knocks knocking", "laughing": "laugh laughs laughing laughter"},
        **{"screaming": "scream screams screaming", "sneezing": "sneeze sneezes sneezing"},
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


def find_named_categories(text: str, attribute: str) -> list[str]:
    """Return the categories of an attribute that a text names, in the order of Table 4."""
    return [category for category in CATEGORIES[attribute] if _compile_pattern(attribute, category).search(text)]


def are_alike(attribute: str, first: str, second: str) -> bool:
    """Check whether two categories are too similar for a right and a wrong label."""
    return first == second or {first, second} in _ALIKE.get(attribute, ())


@cache
def _compile_pattern(attribute: str, category: str) -> re.Pattern[str]:
    listed = _WORDS.get(attribute, {}).get(category, category)
    # With bars as separators, a name can have several words.
    names = listed.split("|") if "|" in listed or listed == category else listed.split()
    # Chinese has no spaces, so there are no word boundaries.
    bordered = [re.escape(name) if not name.isascii() else rf"\b{re.escape(name)}\b" for name in names]
    return re.compile("|".join(bordered), re.IGNORECASE)


def load_samples(path: str | Path, split: str) -> datasets.Dataset:
    """Load one split of a ChatReward folder; `audio` stays encoded, as input for `read_audio`."""
    import datasets

    pattern = f"data/{split}-*.parquet"
    if Path(path).is_dir():
        if not (files := sorted(map(str, Path(path).glob(pattern)))):
            raise FileNotFoundError(f"{path}: has no {pattern}; build the data set first.")
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

    `audio` is the question, 1 s of silence and the answer, mono, 16 kHz. `category` is the voice in the question, or
    the requested one; `response_category` is the answer's voice or, for `audio`, the sound that it mentions.
    `question_wer` and `response_wer` are None if the recogniser does not support the language.
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


DEFAULT_LICENSE = "Apache-2.0"
# Half of the maximum 35 s of a dialogue (section 3.2.2), at 2 words per second.
MAX_WORDS = 35
# Implicit attributes that no text may name; answers may name the others.
_UNSPOKEN = ("emotion", "speed", "volume")
_LABELS = ("scenario_id", "part", "attribute", "category", "topic")
PROMPTS = (
    *("scenario_writing", "scenario_labels"),
    *(f"scenario_rules_{part}" for part in PARTS),
    *("scenario_mistaken_field", "scenario_rules_language", "scenario_request"),
)


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class Line:
    text: str
    category: str | None = None  # Of the voice; with `audio`, the sound mixed in (question) or mentioned (answer).


@dataclass(frozen=True)
class Scenario:
    scenario_id: str
    part: str
    attribute: str | None  # None for the part content.
    category: str | None  # Heard or requested.
    topic: str
    question: Line
    answers: Mapping[int, Line]  # By score.
    license: str = DEFAULT_LICENSE

    def __post_init__(self) -> None:
        for is_right, found, needed in _check(self):
            if not is_right:
                raise ValueError(f"{found}; {needed}")

    @property
    def voices(self) -> str:
        """The attribute in which the voices of the answers differ."""
        return self.attribute or CONTENT_VOICES

    def as_row(self) -> dict[str, Any]:
        """Return the JSON object that `make_scenario` takes."""
        return _SCENARIO.dump_python(self, mode="json")


_SCENARIO = TypeAdapter(Scenario)


def make_scenario(row: Any) -> Scenario:
    try:
        return _SCENARIO.validate_python(row)
    except ValueError as error:
        name = row.get("scenario_id") if isinstance(row, Mapping) else None
        raise ValueError(f"scenario {name!r}: {explain_error(error)}") from error


def read_scenarios(path: str | Path | None = None) -> list[Scenario]:
    """Read a JSONL file of scenarios, by default the project's 140."""
    return read_scenario_lines(path or CHATREWARD / "scenarios.jsonl", make_scenario)


def assign_splits(scenarios: Sequence[Scenario], *, test: float, seed: int) -> dict[str, str]:
    """Split the scenarios (appendix A: 85 to 15); each attribute and part has the share `test`, to one scenario."""
    by_id = {scenario.scenario_id: scenario for scenario in scenarios}
    ordered = sorted((item.attribute or "", item.part, make_stable_id(seed, i), i) for i, item in by_id.items())
    is_test = [math.floor((i + 1.5) * test) > math.floor((i + 0.5) * test) for i in range(len(ordered))]
    return {name: "test" if test else "train" for (*_, name), test in zip(ordered, is_test, strict=True)}


def take_evenly(scenarios: Sequence[Scenario], limit: int | None) -> list[Scenario]:
    """Return `limit` scenarios evenly spaced over the list."""
    count = len(scenarios) if limit is None else min(limit, len(scenarios))
    return [scenarios[number * len(scenarios) // count] for number in range(count)]


def _check(scenario: Scenario) -> Iterator[tuple[object, str, str]]:
    """Yield for each rule whether it holds, the problem and the remedy; a rule relies on earlier ones."""
    part, attribute, category, answers = scenario.part, scenario.attribute, scenario.category, scenario.answers
    question, voices = scenario.question, scenario.voices
    lines = [("question", question), *((f"answer {score}", line) for score, line in answers.items())]
    labels: dict[str, tuple[Any, Sequence[Any]]] = {"part": (part, [*PARTS]), "topic": (scenario.topic, TOPICS)}
    labels["attribute"] = attribute, [*CATEGORIES] if part != "content" else [None]
    for name, (value, allowed) in labels.items():
        yield value in allowed, f"{name} is {value!r}", f"it must be one of {list(allowed)}."
    scores, names = tuple(answers), CATEGORIES[voices]
    yield scores == DESIGN_SCORES, f"the answers have the scores {scores}", f"they must be {DESIGN_SCORES}."
    for name, line in lines:
        if line.category is not None or name in ("answer 5", "answer 3"):
            yield line.category in names, f"{name}'s category is {line.category!r}", f"give one of {list(names)}."
    # The wrong voice differs clearly from the right one.
    right = category if attribute else PLAIN[voices]
    given, wrong = (str(answers[score].category) for score in (5, 3))
    yield given == right, f"answer 5 has the category {given!r}", f"it must be {right!r}."
    yield not are_alike(voices, given, wrong), f"answer 3 has {wrong!r}", f"it must differ clearly from {right!r}."
    for name, line in lines:
        yield line.text.strip(), f"{name} has no text", "write its words."
        _, marks = remove_marks(line.text)
        yield not marks, f"{name} has {marks[:1]}, which is not spoken", "write spoken words only."
        count = len(line.text.split())
        yield count <= MAX_WORDS, f"{name} has {count} words", f"at most {MAX_WORDS} are allowed."
    others = (answers[5].text, answers[3].text)
    yield answers[1].text not in others, "answer 1 has the words of another answer", "it must be off topic."
    # Requirements of each part on the question and the words (rule 1 of figure 4).
    if part != "generation":
        yield question.category == right, f"the question has {question.category!r}", f"it must be heard as {right!r}."
    if part == "content":
        yield category is None, f"category is {category!r}", "the part content has none."
    if part == "understanding":
        for score in (5, 3):
            heard, named = answers[score].category, find_named_categories(answers[score].text, voices)
            yield named == [heard], f"answer {score} names {named}", f"it must name {heard!r} alone."
    if part == "generation":
        yield attribute != "audio", "attribute is 'audio'", "a voice cannot produce a sound; use another part."
        named = find_named_categories(question.text, voices)
        yield category in named, f"the question does not name {category!r}", "it must ask for it."
    # Neither side names what is heard.
    unspoken = lines[:1] if part == "implicit" or (part, attribute) == ("understanding", "audio") else []
    for name, line in [*unspoken, *(lines[1:] if part == "implicit" and attribute in _UNSPOKEN else ())]:
        named = find_named_categories(line.text, voices)
        yield not named, f"{name} names {named}", f"it must not name a category of {attribute!r}."


@dataclass(frozen=True)
class ScenarioSettings:
    count: Annotated[int, Field(ge=1)]
    seed: int = 0
    license: str = "LicenseRef-model-output"  # The terms of the model's provider decide.
    max_failed: float = 0.5  # Maximum share of failures, checked from 20 questions on.


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
        """Whether the answer of 3 points differs in its words, not only its voice."""
        return self.part == "understanding" or self.attribute in ("audio", "language")


def plan_slots(count: int, *, seed: int = 0) -> list[Slot]:
    """Plan `count` scenarios with the paper's shares; a longer plan starts with the shorter one."""
    shares, done, slots = compute_shares(), Counter[tuple[str | None, ...]](), []
    for number in range(1, count + 1):
        # The part furthest below its share; likewise its attribute.
        part = max(PARTS, key=lambda name, number=number: PARTS[name] * number - done[name,])  # type: ignore[misc]
        done[part,] += 1
        lacks = {name: share * done[part,] / PARTS[part] - done[part, name] for name, share in shares[part].items()}
        attribute = max(lacks, key=lambda name: lacks[name])
        # An implicit dialogue cannot react to a plain voice.
        skipped = set(PLAIN.values()) if part == "implicit" else set()
        categories = [name for name in CATEGORIES.get(attribute or "", (None,)) if name not in skipped]
        category = categories[done[part, attribute] % len(categories)]
        done[part, attribute] += 1
        topic = TOPICS[make_stable_seed(seed, number) % len(TOPICS)]
        slots.append(Slot(number, part, attribute, category, topic))
    return slots


def compute_shares() -> dict[str, dict[str | None, float]]:
    """Return the share of each attribute in each part; the sums match section 3.2.2 and Table 4.

    The paper gives only the sums. Parts draw in the order of `ATTRIBUTES`, each the same fraction of the rest.
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
    slots = {slot.scenario_id: slot for slot in plan_slots(settings.count, seed=settings.seed)}
    limit = FailureLimit(settings.max_failed, "the model failed to write {} scenarios", "max_failed")

    def make(name: str) -> dict[str, Any]:
        read = partial(_read_answer, slot=slots[name], license=settings.license)
        return client.ask_json(_make_messages(slots[name], prompts), read).as_row() | writer

    def find_words(row: Mapping[str, Any]) -> str:
        return " ".join(row["question"]["text"].casefold().split())

    kinds = ("writing_failed", "duplicate_question")
    return write_lines(path, client, writer, slots, make, find_words, limit, "scenarios", kinds)


def _make_messages(slot: Slot, prompts: PromptSet) -> list[dict[str, str]]:
    attribute = slot.attribute or CONTENT_VOICES
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
    """Make a scenario from the model's answer; raise `ValueError` with the correction."""
    needed = ["question", "good_answer", "off_topic_answer", "appropriate_label", "incorrect_label"]
    needed += ["mistaken_answer"] if slot.has_mistake else []
    if not isinstance(answer, dict) or set(answer) != set(needed):
        raise ValueError(f"the answer must be a JSON object with exactly the fields {needed}.")
    if empty := [name for name in needed if not isinstance(answer[name], str) or not answer[name].strip()]:
        raise ValueError(f"{empty} must be text.")
    words = {name: " ".join(text.split()) for name, text in answer.items()}
    right = slot.category or PLAIN[slot.attribute or CONTENT_VOICES]
    if (label := words["appropriate_label"]) != right:
        raise ValueError(f"appropriate_label is {label!r}; it must be {right!r}.")
    heard: str | None = right
    if slot.part == "generation":
        heard = PLAIN["language"] if slot.attribute == "language" else None
    wrong = Line(words.get("mistaken_answer", words["good_answer"]), words["incorrect_label"])
    off_topic = Line(words["off_topic_answer"], None if slot.attribute == "audio" else right)
    answers = {5: Line(words["good_answer"], right), 3: wrong, 1: off_topic}
    labels = {name: getattr(slot, name) for name in _LABELS}
    return Scenario(**labels, question=Line(words["question"], heard), answers=answers, license=license)
