"""Answer the tasks of SpeechJudgeAudit with a reward model or a judge, as the benchmark's runner.

SpeechJudgeAudit (`mingyue66/SpeechJudgeAudit` on the Hub) asks speech judges about clips that differ in one cue:
loudness, content richness, repetition, silence, emotional delivery. It starts its runner with a file of tasks and the
path of the answers; recordings lie below the folder in the environment variable `BENCHMARK_ROOT`. The names of columns
were chosen from that description; [`TaskLayout`] has them as settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.chat_sdiareward import ROLES
from sdiareward.common.files import read_text, split_lines, write_file
from sdiareward.common.run_identity import claim_run_dir
from sdiareward.common.settings import make_settings, read_mapping
from sdiareward.evaluation.pair_scoring import score_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import SIDES


if TYPE_CHECKING:
    from sdiareward.evaluation.evaluation import Evaluated

ROOT_VARIABLE = "BENCHMARK_ROOT"
Task = Mapping[str, Any]


@dataclass(frozen=True)
class TaskLayout:
    """Names of columns in the tasks and in the answers.

    Args:
        id (`str`): Column that names a task, in both files.
        clips (`tuple[str, str]`): Paths of the clips of a task that compares two.
        clip (`str`): Path of the clip of a task that scores one.
        text (`str`): Words of the clips, if the task gives them.
        copied (`tuple[str, ...]`): Further columns of a task that its answer repeats.
        preference (`str`): Column of the answer: `first`, `second` or `tie`.
        scores (`tuple[str, str]`): Columns of the scores of both clips.
        score (`str`): Column of the score of one clip.
        error (`str`): Column of the reason why a task has no answer.
        first, second, tie (`str`): What the answer calls each preference.
    """

    id: str = "item_id"
    clips: tuple[str, ...] = ("audio_a", "audio_b")
    clip: str = "audio"
    text: str = "text"
    copied: tuple[str, ...] = ()
    preference: str = "preference"
    scores: tuple[str, ...] = ("score_a", "score_b")
    score: str = "score"
    error: str = "error"
    first: str = "A"
    second: str = "B"
    tie: str = "tie"

    def __post_init__(self) -> None:
        for name in ("clips", "scores"):
            if len(getattr(self, name)) != 2:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give the names of two columns, [FIRST, SECOND].")

    def find_clips(self, task: Task) -> list[str]:
        """Return the paths of a task's two clips, or of its one clip; none if it has neither."""
        both = [task.get(name) for name in self.clips]
        return [path for path in (both if all(both) else [task.get(self.clip)]) if isinstance(path, str)]

    def make_answer(self, task: Task, outcome: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the line that answers a task.

        Args:
            task (`Mapping`): The task.
            outcome (`Mapping` or `str`): Rewards of its clips as `chosen` and `rejected`, and their `margin`; or why
                there are none.
        """
        names = [self.preference, *self.scores] if len(self.find_clips(task)) == 2 else [self.score]
        answer = {name: task.get(name) for name in (self.id, *self.copied)}
        if isinstance(outcome, str):
            return {**answer, **dict.fromkeys(names), self.error: outcome}
        rewards, margin = [outcome[side] for side in SIDES], outcome["margin"]
        preference = self.tie if margin == 0 else self.first if margin > 0 else self.second
        return {**answer, **dict(zip(names, [preference, *rewards] if len(names) > 1 else rewards, strict=False))}


def read_layout(path: str | Path | None) -> TaskLayout:
    """Read the names of columns from a YAML file; without one, return the defaults.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not YAML, a key is unknown, or a value is refused.
    """
    return TaskLayout() if path is None else make_settings(TaskLayout, read_mapping(Path(path)), str(path))


def read_tasks(path: Path, layout: TaskLayout) -> dict[str, Task]:
    """Read the tasks by id.

    Args:
        path (`Path`): JSON lines.
        layout ([`TaskLayout`]): Names of the columns.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is no JSON object, has no id or that of another line, or names no clip.
    """
    tasks: dict[str, Task] = {}
    for number, line in enumerate(split_lines(read_text(path, "file of tasks")), 1):
        try:
            task = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: is not JSON ({error}); write the tasks again.") from error
        columns = sorted(task) if isinstance(task, dict) else type(task).__name__
        if not isinstance(task, dict) or task.get(layout.id) is None or not layout.find_clips(task):
            needed = f"{layout.id!r}, and {' and '.join(map(repr, layout.clips))} or {layout.clip!r}"
            raise ValueError(f"{path}, line {number}: has {columns}; a task needs {needed}: name them with --columns.")
        if tasks.setdefault(str(task[layout.id]), task) is not task:
            raise ValueError(f"{path}, line {number}: {layout.id} {task[layout.id]!r} is that of an earlier task.")
    return tasks


def answer_tasks(
    evaluated: Evaluated, tasks_file: Path, output: Path, root: str | Path, layout: TaskLayout | None = None
) -> int:
    """Answer every task; the same call resumes a killed run.

    A model scores each clip as a dialogue of one turn. A judge that compares hears both orders, and one clip as both
    versions.

    Args:
        evaluated ([`Evaluated`]): The model or the judge.
        tasks_file (`Path`): The tasks, JSON lines.
        output (`Path`): File of the answers, in the order of the tasks; scores are kept in the folder `OUTPUT.run`.
        root (`str` or `Path`): Folder of the recordings.
        layout ([`TaskLayout`], *optional*): Names of the columns.

    Returns:
        `int`: Number of tasks without an answer.

    Raises:
        PairsError: A recording lies outside of the folder.
        ValueError: A task is malformed, or the folder of scores is that of another model.
    """
    layout = layout or TaskLayout()
    tasks, folder = read_tasks(tasks_file, layout), output.with_name(f"{output.name}.run")
    claim_run_dir(folder, evaluated.identity())
    table = folder / "pairs.jsonl"
    write_file(table, "".join(_make_row(name, task, layout) for name, task in tasks.items()))
    pairs = load_pairs(table, "test", audio_root=root)
    found, skipped = score_pairs(lambda: evaluated.load(folder), pairs, describe_pairs(pairs), folder)
    outcomes: dict[str, Any] = {label["pair_id"]: label["reason"] for label in skipped}
    for name, record in found.items():
        outcomes[name] = "no usable answer" if record["margin"] is None else record
    answers = [layout.make_answer(task, outcomes[name]) for name, task in tasks.items()]
    write_file(output, "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers))
    return sum(isinstance(outcomes[name], str) for name in tasks)


def _make_row(name: str, task: Task, layout: TaskLayout) -> str:
    """Return a task as a row of pairs; one clip is both sides."""
    clips = layout.find_clips(task)
    sides = zip(SIDES, (clips[0], clips[-1]), strict=True)
    turns = {side: [{"role": ROLES[1], "text": task.get(layout.text), "audio": clip}] for side, clip in sides}
    return json.dumps({"pair_id": name, **turns}) + "\n"
