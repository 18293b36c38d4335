"""WavReward as a judge: listen to a question and its answer, think, and score the answer from 1 to 5.

The prompt follows appendix E, with and without reasoning: `wavreward_*` in `configs/prompts.yaml`. An answer is
`<think>...</think><score>n</score>` or similar.

The model runs in this process or on an endpoint that accepts `input_audio` (Table 1, I).
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import read_json_object, write_file
from sdiareward.common.hub import find_snapshot
from sdiareward.common.llm import ChatClient, ChatError, ChatSettings, EndpointError
from sdiareward.common.settings import make_settings
from sdiareward.pairs.messages import make_audio_content
from sdiareward.pairs.prompts import PromptSet, read_prompt_file
from sdiareward.pairs.schema import make_stable_id

from ..settings import MAX_ANSWER_TOKENS


if TYPE_CHECKING:
    from ..thinker import Generation, Thinker

logger = logging.getLogger(__name__)
SCORES = (1, 2, 3, 4, 5)
_FORM = r"\s*<score>\s*[1-5]\s*</score>\s*"
# Thoughts must not be empty and must not have tags.
_THOUGHTS = r"\s*<think>(?!\s*</think>)(?:(?!</?think>|<score>).)*</think>"
# Possessive, so that searching an answer of blanks or digits takes linear time.
_NUMBER = r"(?<!\d)(?P<score>\d++(?:\.\d++)?)"
# A repeated scale is not a score.
_SCALE = re.compile(r"(?:\bfrom\s++)?\(?(?<!\d)1\s*+(?:-|–|to|and)\s*+5(?!\d)\)?", re.IGNORECASE)
# From the requested form to common deviations; the last match of the first form that matches counts.
_SCORE_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"<score>\s*{_NUMBER}\s*(?:/\s*5\s*)?(?:</score>|$|\s)",
        rf"\b(?:score|rating)\b[\"'*]*+\s*+(?:[:=]|is|of)?\s*+[\"'*]*+\s*+{_NUMBER}(?:\s*+/\s*+5)?\b",
        rf"{_NUMBER}\s*+/\s*+5\b",
        rf"^\s*+{_NUMBER}\s*+\.?\s*+$",
    )
)
# File in a judge's folder: the prompt it was trained with.
PROMPT_FILE = "judging_prompt.json"
_PREFIX = "wavreward_"
_SCORE_TAG = "<score>"
_QUOTED_CHARACTERS = 200


def _make_field(name: str) -> Any:
    return field(default_factory=partial(PromptSet().fill, _PREFIX + name))


@dataclass(frozen=True)
class JudgingPrompt:
    """A judge's prompt, saved and loaded with a trained judge."""

    system: str = _make_field("system")
    task: str = _make_field("task")
    # Both follow the task; this one requests thoughts, then the score, in the form that `parse_score` reads.
    with_reasoning: str = _make_field("with_reasoning")
    without_reasoning: str = _make_field("without_reasoning")

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if not text.strip() and name != "system":
                raise ValueError(f"{name} of the judging prompt is {text!r}; give text.")

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
    """Read `wavreward_*` from a YAML of prompts, or a judge's JSON; missing texts are the package's."""
    if Path(path).suffix not in (".yaml", ".yml"):
        found = read_json_object(Path(path), "give the JSON of a judging prompt")
        return make_settings(JudgingPrompt, found, f"judging prompt {path}")
    prompts, names = read_prompt_file(path), [item.name for item in fields(JudgingPrompt)]
    given = {name: prompts.fill(_PREFIX + name) for name in names if _PREFIX + name in prompts.given}
    if not given:
        raise ValueError(f"{path}: has no WavReward prompts; give some of {[_PREFIX + name for name in names]}.")
    return JudgingPrompt(**given)


def choose_prompt(model: str | Path | None, prompt_file: str | Path | None) -> JudgingPrompt:
    """Return the prompt from a file, else the judge's training prompt, else the package's."""
    if prompt_file is None and model is not None:
        from transformers.utils import cached_file

        prompt_file = cached_file(find_snapshot(model), PROMPT_FILE, _raise_exceptions_for_missing_entries=False)
    return JudgingPrompt() if prompt_file is None else read_judging_prompt(prompt_file)


def parse_score(text: str) -> int | None:
    """Return the score of an answer, if any; numbers within closed thoughts do not count."""
    verdict = _SCALE.sub(" ", text.rpartition("</think>")[2])
    for form in _SCORE_FORMS:
        if found := list(form.finditer(verdict)):
            # A judge that answers 7 ignores the scale.
            number = float(found[-1]["score"])
            return int(number) if number in SCORES else None
    return None


def follows_format(text: str, reasoning: bool = True) -> bool:
    """Return whether an answer has exactly the requested form, with non-empty thoughts."""
    return re.fullmatch(_THOUGHTS + _FORM if reasoning else _FORM, text, re.DOTALL) is not None


def parse_thoughts(text: str) -> str:
    """Return the thoughts of an answer; without tags, all text before the score."""
    if match := re.search(r"<think>(.*?)(?:</think>|$)", text, re.DOTALL):
        return match[1].strip()
    return text.partition("<score>")[0].strip()


@dataclass(frozen=True)
class Judgement:
    """A judge's score of one recording; `expected_score` is None unless requested."""

    score: int | None  # 1-5, higher is better: the vote of all answers.
    expected_score: float | None
    scores: tuple[int | None, ...]
    texts: tuple[str, ...]
    follows_format: bool  # Whether every answer has the requested form.
    num_tokens: int
    seconds: float
    num_cut: int = 0  # Answers that ended at the token limit.
    problem: str | None = None  # Why the score or the answer is missing.
    changed_parameters: Mapping[str, str | None] = field(default_factory=dict)  # By an endpoint, see `ChatClient`.

    @classmethod
    def combine(cls, answers: Sequence[Any], reasoning: bool, expected: float | None = None, **more: Any) -> Judgement:
        """Make a judgement from at least one `Generation`; with `reasoning`, thoughts were requested."""
        texts, num_tokens, seconds, is_cut = zip(*answers, strict=True)
        scores = tuple(map(parse_score, texts))
        score, follows = vote(scores), all(follows_format(text, reasoning) for text in texts)
        if score is None and more.get("problem") is None:
            more["problem"] = f"no score in the answer that begins {texts[0][:_QUOTED_CHARACTERS]!r}."
        return cls(score, expected, scores, texts, follows, sum(num_tokens), sum(seconds), sum(is_cut), **more)


@dataclass
class WavRewardJudge:
    """Score spoken answers with a thinker, trained as WavReward or not."""

    thinker: Thinker
    reasoning: bool = True
    prompt: JudgingPrompt = field(default_factory=JudgingPrompt)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, reasoning: bool = True, prompt_file: str | Path | None = None, **placement: Any
    ) -> WavRewardJudge:
        """Load a judge with its training prompt, or a prompt file; see `Thinker.from_pretrained`."""
        from ..thinker import Thinker

        return cls(Thinker.from_pretrained(path, **placement), reasoning, choose_prompt(path, prompt_file))

    def judge(
        self,
        recordings: Sequence[Any],
        *,
        num_samples: int = 1,
        expected: bool = False,
        max_new_tokens: int = MAX_ANSWER_TOKENS,
        **sampling: Any,
    ) -> list[Judgement]:
        """Score recordings (question, silence, answer) up to 60 s; `num_samples` answers vote."""
        asked = [self.prompt.make_conversation(recording, reasoning=self.reasoning) for recording in recordings]
        sampling |= {"num_return_sequences": num_samples, "max_new_tokens": max_new_tokens}
        answers = self.thinker.generate(asked, **sampling)
        means = self._compute_expected_scores(asked, answers) if expected else [None] * len(answers)
        return [Judgement.combine(each, self.reasoning, mean) for each, mean in zip(answers, means, strict=True)]

    def _compute_expected_scores(
        self, conversations: Sequence[Any], answers: Sequence[Sequence[Generation]]
    ) -> list[float | None]:
        """Return the mean score over 1-5 after each answer's thoughts, averaged over its answers."""
        asked = [conversation for conversation, found in zip(conversations, answers, strict=True) for _ in found]
        begun = [_cut_at_score(answer.text) for found in answers for answer in found]
        rows = iter(self.thinker.compute_next_token_probabilities(asked, begun, list(map(str, SCORES))).tolist())
        return [sum(sum(map(mul, SCORES, next(rows))) for _ in found) / len(found) for found in answers]


@dataclass
class EndpointJudge:
    """Score with a model that accepts `input_audio`; as with a local model, bad answers are not repeated."""

    settings: ChatSettings
    cache_dir: str | Path
    reasoning: bool = True
    prompt: JudgingPrompt = field(default_factory=JudgingPrompt)
    # By temperature and seed; a client remembers refused parameters.
    _clients: dict[tuple[float, int], ChatClient] = field(default_factory=dict)

    def judge(
        self,
        recordings: Sequence[Any],
        *,
        num_samples: int = 1,
        temperature: float = 0.0,
        expected: bool = False,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> list[Judgement]:
        """Score like [`WavRewardJudge.judge`]; the settings replace `max_new_tokens` and temperature 0."""
        if expected:
            raise ValueError("an endpoint returns no distribution over scores; omit expected.")
        if num_samples > 1 and self.settings.seed is None:
            raise ValueError(f"{num_samples} answers need a seed to differ; set seed for this judge.")
        clients = [self._make_client(temperature, seed + number) for number in range(num_samples)]
        jobs = [(recording, client) for recording in recordings for client in clients]
        found = list(clients[0].map(self._ask, jobs))
        failed = [problem for _, problem in found if problem]
        if found and len(failed) == len(found) and not len(clients[0].cache):
            raise EndpointError(f"none of {len(found)} questions got an answer; the first: {failed[0]}")
        changed, judgements = clients[0].usage.get("changed_parameters", {}), []
        for start in range(0, len(found), num_samples):
            answers, problems = zip(*found[start : start + num_samples], strict=True)
            more = {"problem": next(filter(None, problems), None), "changed_parameters": changed}
            judgements.append(Judgement.combine(answers, self.reasoning, **more))
        return judgements

    def _make_client(self, temperature: float, seed: int) -> ChatClient:
        changes: dict[str, Any] = {"temperature": temperature} if temperature else {}
        if self.settings.seed is not None:
            changes["seed"] = self.settings.seed + seed
        client = ChatClient(replace(self.settings, **changes), self.cache_dir)
        return self._clients.setdefault((temperature, seed), client)

    def _ask(self, job: tuple[Any, ChatClient]) -> tuple[tuple[str, int, float, bool], str | None]:
        """Return an answer as a `Generation`, and the reason if it is missing."""
        recording, client = job
        messages: list[dict[str, Any]] = []
        for message in self.prompt.make_conversation(recording, reasoning=self.reasoning):
            parts = message["content"]
            parts = [make_audio_content(part["audio"]) if part["type"] == "audio" else part for part in parts]
            messages.append({**message, "content": parts})
        start = time.perf_counter()
        try:
            # A cut answer has no score, as with a local model.
            found = client.ask(messages, lambda text, is_cut: is_cut, attempts=1)
        except ChatError as error:
            logger.warning("no answer: %s", error)
            return ("", error.spent.completion_tokens, time.perf_counter() - start, False), str(error)
        return (found.text, found.spent.completion_tokens, time.perf_counter() - start, found.value), None


def vote(scores: Sequence[int | None]) -> int | None:
    """Return the most frequent score (the lowest if tied); `None` without scores."""
    counts = Counter(score for score in scores if score is not None)
    return min(counts, key=lambda score: (-counts[score], score)) if counts else None


def _cut_at_score(text: str) -> str:
    """Return an answer up to its score; append the opening tag if it has no score."""
    before, tag, _ = text.rpartition(_SCORE_TAG)
    return before + tag if tag else text.removesuffix("</think>") + "</think>" * ("<think>" in text) + _SCORE_TAG
