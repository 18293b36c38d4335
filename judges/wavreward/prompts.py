"""The prompt of WavReward (appendix E), with and without reasoning, in other words."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdiareward.common.files import read_json_object, write_file
from sdiareward.common.settings import make_settings
from sdiareward.dataset_builder.prompts import prompt_version


# In the folder of a judge: the prompt it was trained with.
PROMPT_FILE = "judging_prompt.json"
SYSTEM = "You are a careful listener who judges spoken dialogues."
_TASK = (
    "The recording holds two utterances with one second of silence between them: somebody speaks to a voice "
    "assistant, and the assistant answers. Judge the answer, not what it answers to, even where the first speaker "
    "contradicts himself. Ask two things: does it fit what was said, and is the way it is spoken (emotion, age, "
    "gender, accent, language, pitch, speed, volume, sounds) the right way to speak to this person at this moment?\n\n"
    "5: the content fits, and so does the way of speaking.\n"
    "3: the content fits, but the way of speaking does not.\n"
    "1: the content does not fit: off the subject, wrong or senseless.\n"
    "2 and 4 are for what lies between.\n\n"
)
_WITH_REASONING = (
    "First think: what was said, how it was said, what would be a fitting answer, and what the assistant did. Then "
    "give the score. Write exactly this and nothing else:\n<think>your thoughts</think><score>N</score>\n"
    "where N is a whole number from 1 to 5."
)
_WITHOUT_REASONING = "Write exactly this and nothing else:\n<score>N</score>\nwhere N is a whole number from 1 to 5."


@dataclass(frozen=True)
class JudgingPrompt:
    """A judge's prompt; it is saved with a trained judge and loaded with it.

    Args:
        system (`str`): System prompt; an empty one is omitted.
        task (`str`): The task and the meaning of the scores 1 to 5; it follows the recording.
        with_reasoning (`str`): Follows the task and requests thoughts, then the score, in the form that `answers.py`
            parses.
        without_reasoning (`str`): Follows the task if only the score is requested.
    """

    system: str = SYSTEM
    task: str = _TASK
    with_reasoning: str = _WITH_REASONING
    without_reasoning: str = _WITHOUT_REASONING

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if not isinstance(text, str) or (not text.strip() and name != "system"):
                raise ValueError(f"{name} of the judging prompt is {text!r}; give a text.")

    @property
    def version(self) -> str:
        """Return `"1"` for the package's own prompt, else a hash of the texts."""
        return "1" if self == JudgingPrompt() else prompt_version(*asdict(self).values())

    def conversation(self, recording: Any, *, reasoning: bool = True) -> list[dict[str, Any]]:
        """Build the messages that ask for the score of one recording.

        Args:
            recording: Question, silence and answer; anything `audio_sdiareward.read_audio` takes.
            reasoning (`bool`, *optional*, defaults to `True`): Ask for thoughts before the score.
        """
        text = self.task + (self.with_reasoning if reasoning else self.without_reasoning)
        user = {"role": "user", "content": [{"type": "audio", "audio": recording}, {"type": "text", "text": text}]}
        system = {"role": "system", "content": [{"type": "text", "text": self.system}]}
        return [system, user] if self.system else [user]

    def save(self, folder: Path) -> None:
        """Write the prompt into the folder of a judge."""
        write_file(folder / PROMPT_FILE, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


def read_judging_prompt(path: str | Path) -> JudgingPrompt:
    """Read a prompt from a JSON object; missing fields are those of the package's prompt.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no such object, or an invalid text.
    """
    found = read_json_object(Path(path), "give the JSON of a judging prompt")
    return make_settings(JudgingPrompt, found, f"judging prompt {path}")


def prompt_of_judge(name: str | Path) -> JudgingPrompt:
    """Return the prompt that a judge was trained with; by default the package's.

    Args:
        name (`str` or `Path`): Folder or Hub id of the judge.
    """
    from transformers.utils import cached_file

    path = cached_file(str(name), PROMPT_FILE, _raise_exceptions_for_missing_entries=False)
    return JudgingPrompt() if path is None else read_judging_prompt(path)
