"""The prompt of WavReward (appendix E), with and without reasoning: `wavreward_*` of `configs/prompts.yaml`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.common.files import read_json_object, write_file
from sdiareward.common.hub import find_snapshot
from sdiareward.common.settings import make_settings
from sdiareward.pairs.prompts import PromptSet, read_prompt_file
from sdiareward.pairs.schema import make_stable_id


# In the folder of a judge: the prompt it was trained with.
PROMPT_FILE = "judging_prompt.json"
_PREFIX = "wavreward_"


def _make_field(name: str) -> Any:
    return field(default_factory=partial(PromptSet().fill, _PREFIX + name))


@dataclass(frozen=True)
class JudgingPrompt:
    """A judge's prompt; it is saved with a trained judge and loaded with it."""

    system: str = _make_field("system")
    task: str = _make_field("task")
    # Both follow the task; this one requests thoughts, then the score, in the form that `answers.py` parses.
    with_reasoning: str = _make_field("with_reasoning")
    without_reasoning: str = _make_field("without_reasoning")

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if not text.strip() and name != "system":
                raise ValueError(f"{name} of the judging prompt is {text!r}; give a text.")

    @property
    def version(self) -> str:
        """Return `"1"` for the package's own prompt, else a hash of the texts."""
        return "1" if self == JudgingPrompt() else make_stable_id(*asdict(self).values())

    def make_conversation(self, recording: Any, *, reasoning: bool = True) -> list[dict[str, Any]]:
        text = self.task + (self.with_reasoning if reasoning else self.without_reasoning)
        user = {"role": "user", "content": [{"type": "audio", "audio": recording}, {"type": "text", "text": text}]}
        system = {"role": "system", "content": [{"type": "text", "text": self.system}]}
        return [system, user] if self.system else [user]

    def save(self, folder: Path) -> None:
        write_file(folder / PROMPT_FILE, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


def read_judging_prompt(path: str | Path) -> JudgingPrompt:
    """Read `wavreward_*` of a YAML of prompts, or the JSON of a judge; missing texts are those of the package."""
    if Path(path).suffix in (".yaml", ".yml"):
        return _read_yaml(path)
    found = read_json_object(Path(path), "give the JSON of a judging prompt")
    return make_settings(JudgingPrompt, found, f"judging prompt {path}")


def _read_yaml(path: str | Path) -> JudgingPrompt:
    prompts, names = read_prompt_file(path), [item.name for item in fields(JudgingPrompt)]
    given = {name: prompts.fill(_PREFIX + name) for name in names if _PREFIX + name in prompts.given}
    if not given:
        raise ValueError(f"{path}: has no prompt of WavReward; give some of {[_PREFIX + name for name in names]}.")
    return JudgingPrompt(**given)


def load_prompt_of_judge(name: str | Path) -> JudgingPrompt:
    """Return the prompt that a judge was trained with; by default the package's."""
    from transformers.utils import cached_file

    path = cached_file(find_snapshot(name), PROMPT_FILE, _raise_exceptions_for_missing_entries=False)
    return JudgingPrompt() if path is None else read_judging_prompt(path)


def choose_prompt(model: str | Path | None, prompt_file: str | Path | None) -> JudgingPrompt:
    """Return the prompt of a file, else the one that a judge was trained with, else the package's."""
    if prompt_file is not None:
        return read_judging_prompt(prompt_file)
    return JudgingPrompt() if model is None else load_prompt_of_judge(model)
