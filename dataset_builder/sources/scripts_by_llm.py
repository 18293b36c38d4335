"""Have a language model write colloquialness scripts: each scenario several times, then each in spoken style.

Section 3.1 and figures 10 and 11: 250 scenarios in ten domains, ten variations each, give the paper's 2,500 pairs. The
scenarios (`scenarios.jsonl`) were written for this project. A dialogue is first written in full sentences, then turned
into speech turn by turn.

Figure 10 asks for 4 to 16 rounds of one user and one assistant message each, 32 turns at most, while the rules of
appendix B.1 allow 16 turns. We take the rules: 4 to 8 rounds by default, and never more than 8. Beyond the figures'
own checks a turn is limited in words, since speech of more than 60 s would be dropped once it is spoken.

The scripts are kept as JSONL in the form that the source `colloquial_scripts` reads: `{name: colloquial_scripts, path:
FILE}` builds pairs from them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.llm import ChatClient, ChatError
from sdiareward.common.package_files import SCRIPTS
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.prompts import PromptSet

from ..llm_files import FailureLimit, open_written, read_scenario_lines
from ..pairing.surface_counts import find_imbalance


DEFAULT_SCENARIOS = SCRIPTS / "scenarios.jsonl"
PROMPTS = ("script_writing", "script_writing_request", "script_written_style", "script_speaking")
SOURCE = "colloquial_scripts"
# Pictographs and their modifiers, then smileys made of punctuation.
_EMOJI = re.compile("[\u2190-\u21ff\u2300-\u27bf\u2b00-\u2bff\u200d\ufe0f\U0001f000-\U0001faff]")
_EMOTICON = re.compile(r"(?:^|\s)(?:[:;=]['^-]?[)(DPpOo/|\\\]\[]+|<3+|\^_*\^)(?=$|[\s.,!?])")
Script = list[dict[str, str]]


@dataclass(frozen=True)
class Scenario:
    scenario_id: str
    domain: str
    topic: str


@dataclass(frozen=True)
class ScriptSettings:
    variations: int = 10  # Dialogues per scenario.
    min_rounds: int = 4  # A round is two turns.
    max_rounds: int = 8
    max_words: int = 110  # Per turn: 55 s at two words a second.
    balanced: bool = False  # Ask again for a spoken side that counting separates from the written one.
    license: str = "LicenseRef-model-output"  # Marks the pairs; the terms of the provider decide.
    max_failed: float = 0.5  # Larger share of failed dialogues stops the run, once 20 were asked for.

    def __post_init__(self) -> None:
        if not 0 <= self.max_failed <= 1:
            raise ValueError(f"max_failed is {self.max_failed!r}; give a share from 0 to 1.")
        if self.variations < 1 or self.max_words < 1:
            raise ValueError(f"variations={self.variations} and max_words={self.max_words} must be at least 1.")
        if not 1 <= self.min_rounds <= self.max_rounds <= MAX_TURNS // 2:
            raise ValueError(
                f"min_rounds={self.min_rounds} and max_rounds={self.max_rounds} must be from 1 to {MAX_TURNS // 2}, "
                f"in this order; an episode has at most {MAX_TURNS} turns, two a round."
            )


def read_scenarios(path: str | Path | None = None) -> list[Scenario]:
    """Read scenarios from JSONL with `scenario_id`, `domain` and `topic`; by default the bundled 250."""

    def make(row: Any) -> Scenario:
        try:
            return Scenario(str(row["scenario_id"]), str(row["domain"]), str(row["topic"]))
        except (TypeError, KeyError) as error:
            found = f"{type(error).__name__}: {error}"
            raise ValueError(f"needs a JSON object with scenario_id, domain and topic ({found}).") from error

    return read_scenario_lines(Path(path or DEFAULT_SCENARIOS), make)


def plan_scripts(scenarios: Iterable[Scenario], variations: int) -> list[tuple[Scenario, int]]:
    return [(scenario, number) for scenario in scenarios for number in range(1, variations + 1)]


def write_scripts(
    path: str | Path,
    client: ChatClient,
    scenarios: Iterable[Scenario] | None = None,
    settings: ScriptSettings | None = None,
    prompts: PromptSet | None = None,
) -> list[Skipped]:
    """Write scripts line by line to a JSONL file; resume an earlier run."""
    settings, prompts = settings or ScriptSettings(), prompts or PromptSet()
    limits = (
        f"{settings.variations} x {settings.min_rounds}-{settings.max_rounds} rounds, "
        f"{settings.max_words} words{', balanced' if settings.balanced else ''}"
    )
    version = prompts.compute_version(*PROMPTS)
    writer = {"writer": client.settings.model, "prompt_version": version, "limits": limits}
    file, written = open_written(path, writer)
    known = {row["scenario_id"] for row in written}
    plan = plan_scripts(read_scenarios() if scenarios is None else scenarios, settings.variations)
    todo = [(scenario, number) for scenario, number in plan if _make_script_id(scenario, number) not in known]
    fingerprints = {_fingerprint(row["written"]) for row in written}
    skipped = []
    limit = FailureLimit(settings.max_failed, "the model failed to write {} dialogues", "scripts.max_failed")
    make = partial(_make_script, client=client, settings=settings, prompts=prompts)
    for row in client.map(make, todo, "scripts"):
        limit.count(row.reason if isinstance(row, Skipped) else None)
        if isinstance(row, dict) and _fingerprint(row["written"]) in fingerprints:
            reason = "the model wrote the same dialogue before; raise the temperature."
            row = Skipped(f"{SOURCE} {row['scenario_id']}", "duplicate_script", reason)
        if isinstance(row, Skipped):
            skipped.append(row)
        else:
            fingerprints.add(_fingerprint(row["written"]))
            sides = {"written": row.pop("written"), "spoken": row.pop("spoken")}
            file.append([{**row, **writer, **sides}])
    return skipped


def _make_script(
    entry: tuple[Scenario, int], *, client: ChatClient, settings: ScriptSettings, prompts: PromptSet
) -> dict[str, Any] | Skipped:
    """Have one variation written and then turned into speech."""
    scenario, number = entry
    name, labels = _make_script_id(scenario, number), {"domain": scenario.domain, "topic": scenario.topic}
    rounds = {"min_rounds": settings.min_rounds, "max_rounds": settings.max_rounds}
    request = prompts.fill(
        "script_writing_request",
        **rounds,
        number=number,
        count=settings.variations,
        others=settings.variations - 1,
        topic=scenario.topic,
        domain=scenario.domain.replace("_", " "),
        style=prompts.fill("script_written_style"),
    )

    def ask(prompt: str, content: str, read: Callable[[Any], Script], **more: int) -> Script:
        system = prompts.fill(prompt, max_words=settings.max_words, **more)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        return client.ask_json(messages, read)

    kind = "writing_failed"
    try:
        written = ask("script_writing", request, partial(_read_written, settings=settings), **rounds)
        kind = "speaking_failed"
        given = {**labels, "style": "written", "sample_id": number, "dialogue": written}
        content = json.dumps(given, ensure_ascii=False, indent=1)
        spoken = ask("script_speaking", content, partial(_read_spoken, given=given, settings=settings))
    except ChatError as error:
        return Skipped(f"{SOURCE} {name}", kind, str(error))
    provenance = {"group": scenario.scenario_id, "license": settings.license}
    return {"scenario_id": name, **labels, **provenance, "written": written, "spoken": spoken}


def _read_written(answer: Any, *, settings: ScriptSettings) -> Script:
    """Check a written dialogue (figure 10); raise `ValueError` with what to correct."""
    script = _read_script(answer, settings)
    rounds = len(script) // 2
    if not settings.min_rounds <= rounds <= settings.max_rounds:
        raise ValueError(f"there are {rounds} rounds; {settings.min_rounds} to {settings.max_rounds} are needed.")
    return script


def _read_spoken(answer: Any, *, given: Mapping[str, Any], settings: ScriptSettings) -> Script:
    """Check a spoken dialogue against the written one that it was `given` as (figure 11)."""
    if not isinstance(answer, dict) or set(answer) != set(given):
        raise ValueError(f"the answer must be a JSON object with exactly the fields {list(given)}.")
    for name, value in {**given, "style": "spoken"}.items():
        if name != "dialogue" and answer[name] != value:
            raise ValueError(f"{name!r} is {answer[name]!r}; it must be {value!r}.")
    written, spoken = given["dialogue"], _read_script(answer["dialogue"], settings)
    if len(spoken) != len(written):
        raise ValueError(f"there are {len(spoken)} turns; the written dialogue has {len(written)}.")
    same = sum(_normalise(a["content"]) == _normalise(b["content"]) for a, b in zip(written, spoken, strict=True))
    if 2 * same >= len(written):
        raise ValueError(f"{same} of {len(written)} turns are as they were written; rewrite them in spoken style.")
    if settings.balanced and (fault := find_imbalance(spoken, written)):
        raise ValueError(f"of the spoken and the written dialogue, {fault}")
    return spoken


def _read_script(answer: Any, settings: ScriptSettings) -> Script:
    """Check what both styles have in common; return the turns without surrounding spaces."""
    if not isinstance(answer, list) or not all(isinstance(turn, dict) for turn in answer):
        raise ValueError("the dialogue must be a JSON array of objects with 'role' and 'content'.")
    roles = [turn.get("role") for turn in answer]
    if not roles or len(roles) % 2 or roles != [*ROLES] * (len(roles) // 2):
        raise ValueError(f"the roles are {roles}; they must alternate, begin with 'user' and end with 'assistant'.")
    return [
        {"role": turn["role"], "content": _read_content(turn.get("content"), position, settings)}
        for position, turn in enumerate(answer, start=1)
    ]


def _read_content(content: Any, position: int, settings: ScriptSettings) -> str:
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"turn {position} has no text.")
    if "```" in content:
        raise ValueError(f"turn {position} holds a code fence.")
    if found := _EMOJI.search(content) or _EMOTICON.search(content):
        raise ValueError(f"turn {position} holds {found.group().strip()!r}; use neither emojis nor emoticons.")
    if (count := len(content.split())) > settings.max_words:
        raise ValueError(f"turn {position} has {count} words; at most {settings.max_words} are allowed.")
    return " ".join(content.split())


def _normalise(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().casefold()


def _fingerprint(script: Script) -> str:
    return hashlib.sha256("\x1f".join(_normalise(turn["content"]) for turn in script).encode()).hexdigest()


def _make_script_id(scenario: Scenario, number: int) -> str:
    return f"{scenario.scenario_id}-v{number:02d}"
