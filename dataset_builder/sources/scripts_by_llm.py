"""Write colloquialness scripts with a language model: several variations per scenario, then each in spoken style.

Section 3.1 and figures 10 and 11: ten variations each of 250 scenarios in ten domains give the paper's 2,500 pairs.
The scenarios (`scenarios.jsonl`) were written for this project. A dialogue is first written in full sentences, then
rewritten in spoken style, turn by turn.

Figure 10 asks for 4 to 16 rounds of one user and one assistant message, up to 32 turns, but the rules of appendix B.1
allow 16 turns. We follow the rules: 4 to 8 rounds by default, never more than 8. In addition to the figures' checks,
turns have a word limit, because speech longer than 60 s would be dropped later.

The scripts are stored as JSONL for the source `colloquial_scripts`: `{name: colloquial_scripts, path: FILE}` builds
pairs from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, TypeAdapter

from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.errors import Skipped
from sdiareward.common.llm import ChatClient, FailureLimit
from sdiareward.common.package import SCRIPTS
from sdiareward.pairs.prompts import PromptSet

from ..pairing.surface_counts import find_imbalance
from .reading import read_scenario_lines, write_lines


PROMPTS = ("script_writing", "script_writing_request", "script_written_style", "script_speaking")
SOURCE = "colloquial_scripts"
# A code fence; pictographs and their modifiers; smileys made of punctuation.
_NOT_SPOKEN = re.compile(
    "```|[\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff\u200d\ufe0f\U0001f000-\U0001faff]|"
    r"(?:^|\s)(?:[:;=]['^-]?[)(DPpOo/|\\\]\[]+|<3+|\^_*\^)(?=$|[\s.,!?])"
)


class _Turn(BaseModel):
    role: str
    content: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


_TURNS = TypeAdapter(list[_Turn])
Script = list[dict[str, str]]
Rounds = Annotated[int, Field(ge=1, le=MAX_TURNS // 2)]


@dataclass(frozen=True)
class Scenario:
    scenario_id: str
    domain: str
    topic: str


@dataclass(frozen=True)
class ScriptSettings:
    variations: Annotated[int, Field(ge=1)] = 10  # Dialogues per scenario.
    min_rounds: Rounds = 4  # A round is two turns.
    max_rounds: Rounds = 8
    max_words: Annotated[int, Field(ge=1)] = 110  # Per turn: 55 s at two words a second.
    balanced: bool = False  # Ask again if counting separates the spoken side from the written one.
    license: str = "LicenseRef-model-output"  # Licence of the pairs; the provider's terms decide.
    # A larger share of failed dialogues stops the run, from 20 questions on.
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        if self.min_rounds > self.max_rounds:
            raise ValueError(f"min_rounds is {self.min_rounds}; it must be at most max_rounds, {self.max_rounds}.")


def read_scenarios(path: str | Path | None = None) -> list[Scenario]:
    """Read scenarios from JSONL with `scenario_id`, `domain` and `topic`; by default the bundled 250."""

    def make(row: Any) -> Scenario:
        return Scenario(*(str(row[name]) for name in ("scenario_id", "domain", "topic")))

    return read_scenario_lines(path or SCRIPTS / "scenarios.jsonl", make)


def plan_scripts(scenarios: Iterable[Scenario], variations: int) -> dict[str, tuple[Scenario, int]]:
    """Return scenario and variation number of each script, by id."""
    numbers = range(1, variations + 1)
    return {f"{scenario.scenario_id}-v{n:02d}": (scenario, n) for scenario in scenarios for n in numbers}


def write_scripts(
    path: str | Path,
    client: ChatClient,
    scenarios: Iterable[Scenario] | None = None,
    settings: ScriptSettings | None = None,
    prompts: PromptSet | None = None,
) -> list[Skipped]:
    """Write scripts line by line to a JSONL file; resume an earlier run."""
    settings, prompts = settings or ScriptSettings(), prompts or PromptSet()
    rounds = f"{settings.variations} x {settings.min_rounds}-{settings.max_rounds} rounds"
    limits = f"{rounds}, {settings.max_words} words{', balanced' if settings.balanced else ''}"
    writer = {"writer": client.settings.model, "prompt_version": prompts.compute_version(*PROMPTS), "limits": limits}
    plan = plan_scripts(read_scenarios() if scenarios is None else scenarios, settings.variations)
    limit = FailureLimit(settings.max_failed, "the model failed to write {} dialogues", "scripts.max_failed")

    def make(name: str) -> dict[str, Any]:
        return _write_script(name, *plan[name], writer, client, settings, prompts)

    kinds = ("script_failed", "duplicate_script")
    skipped = write_lines(path, client, writer, plan, make, _join_words, limit, "scripts", kinds)
    return [replace(skip, item=f"{SOURCE} {skip.item}") for skip in skipped]


def _write_script(
    name: str,
    scenario: Scenario,
    number: int,
    writer: Mapping[str, Any],
    client: ChatClient,
    settings: ScriptSettings,
    prompts: PromptSet,
) -> dict[str, Any]:
    """Write one variation, then rewrite it in spoken style."""
    labels = {"domain": scenario.domain, "topic": scenario.topic}
    rounds = {"min_rounds": settings.min_rounds, "max_rounds": settings.max_rounds}
    counts = {"number": number, "count": settings.variations, "others": settings.variations - 1, **rounds}
    wanted = {"topic": scenario.topic, "domain": scenario.domain.replace("_", " ")}
    style = prompts.fill("script_written_style")
    request = prompts.fill("script_writing_request", **counts, **wanted, style=style)

    def ask(prompt: str, content: str, read: Callable[[Any], Script], **more: int) -> Script:
        system = prompts.fill(prompt, max_words=settings.max_words, **more)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        return client.ask_json(messages, read)

    written = ask("script_writing", request, partial(_read_written, settings=settings), **rounds)
    given = {**labels, "style": "written", "sample_id": number, "dialogue": written}
    content = json.dumps(given, ensure_ascii=False, indent=1)
    spoken = ask("script_speaking", content, partial(_read_spoken, given=given, settings=settings))
    provenance = {"group": scenario.scenario_id, "license": settings.license}
    return {"scenario_id": name, **labels, **provenance, **writer, "written": written, "spoken": spoken}


def _read_written(answer: Any, settings: ScriptSettings) -> Script:
    """Check a written dialogue (figure 10); raise `ValueError` with the correction."""
    script = _read_script(answer, settings)
    rounds, least, most = len(script) // 2, settings.min_rounds, settings.max_rounds
    if not least <= rounds <= most:
        raise ValueError(f"there are {rounds} rounds; write {least} to {most}.")
    return script


def _read_spoken(answer: Any, given: Mapping[str, Any], settings: ScriptSettings) -> Script:
    """Check a spoken dialogue against the `given` written one (figure 11)."""
    labels = {name: value for name, value in given.items() if name != "dialogue"} | {"style": "spoken"}
    if not isinstance(answer, dict) or answer != {**labels, "dialogue": answer.get("dialogue")}:
        raise ValueError(f"the answer must be a JSON object with 'dialogue' and exactly the fields {labels}.")
    written, spoken = given["dialogue"], _read_script(answer["dialogue"], settings)
    if len(spoken) != len(written):
        raise ValueError(f"there are {len(spoken)} turns; the written dialogue has {len(written)}.")
    same = sum(_normalise(a["content"]) == _normalise(b["content"]) for a, b in zip(written, spoken, strict=True))
    if 2 * same >= len(written):
        raise ValueError(f"{same} of {len(written)} turns are unchanged; rewrite them in spoken style.")
    if settings.balanced and (fault := find_imbalance(spoken, written)):
        raise ValueError(f"of the spoken and the written dialogue, {fault}")
    return spoken


def _read_script(answer: Any, settings: ScriptSettings) -> Script:
    """Check the rules of both styles; return the turns without surrounding spaces."""
    script = [turn.model_dump() for turn in _TURNS.validate_python(answer)]
    roles = [turn["role"] for turn in script]
    if not roles or roles != [*ROLES] * (len(roles) // 2):
        raise ValueError(f"the roles are {roles}; they must alternate, begin with 'user' and end with 'assistant'.")
    for number, turn in enumerate(script, start=1):
        turn["content"] = " ".join(turn["content"].split())
        if found := _NOT_SPOKEN.search(turn["content"]):
            raise ValueError(f"turn {number} has {found[0].strip()!r}; use no code fences, emojis or emoticons.")
        if (count := len(turn["content"].split())) > settings.max_words:
            raise ValueError(f"turn {number} has {count} words; the limit is {settings.max_words}.")
    return script


def _normalise(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().casefold()


def _join_words(row: Mapping[str, Any]) -> str:
    return "\x1f".join(_normalise(turn["content"]) for turn in row["written"])
