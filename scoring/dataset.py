"""Score a data set of pairs or dialogues into a folder: in one process, in several, or on Ray (`ray_engine`).

Every process scores blocks of rows and keeps each record in the folder's `partial/` (`results`). Rows with a record
are not scored again, whatever the engine or the number of processes; skipped rows are tried again.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import Heard
from sdiareward.common.provenance import write_provenance
from sdiareward.common.run_identity import claim_run_dir
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.dialogues import Dialogues, RecordingFinder
from sdiareward.pairs.labels import ORIGIN_COLUMNS, describe_origins, name_criterion
from sdiareward.pairs.messages import Form
from sdiareward.pairs.rows import Block, Rows, find_dialogue_columns, open_rows, read_block
from sdiareward.pairs.sampling import sample_rows

from .changes import describe_content, drop_changed
from .engine import Outcome, complete_items, describe_heard, score_pending
from .model_spec import ModelSpec, ScoringError
from .results import Results, Summary, summarise, write_results


if TYPE_CHECKING:
    from .scorer import Scorer


@dataclass(frozen=True)
class ScoringJob:
    """What to score with which model; pickles."""

    model: ModelSpec
    dataset: str
    split: str | None = None
    name: str | None = None
    limit: int | None = None  # Rows to score, drawn by `sampling.sample_rows`.
    seed: int = 0
    criterion: str | None = None  # By default from the column `criterion`, else `"joint"`.
    audio_root: str | None = None  # Where relative paths of recordings begin.
    form: Form | None = None  # What a folder of recordings holds.

    def open_rows(self) -> Rows:
        return open_rows(self.dataset, self.split, self.name, self.form)

    def load_scorer(self, device: str | None = None) -> Scorer:
        return self.model.load(self.criterion, device)

    def identity(self) -> dict[str, Any]:
        """Return what the rewards depend on besides the content of the rows, which `changes` compares."""
        data = {name: getattr(self, name) for name in ("dataset", "split", "name", "criterion")}
        return {**self.model.identity(), **data}

    def describe_settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1
    device: str | None = None
    wait: Callable[[], None] = lambda: None


@contextmanager
def joined_processes(device: str | None = None) -> Iterator[Processes]:
    """Join the processes that `accelerate launch` or `torchrun` started, if one did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "LOCAL_RANK" not in os.environ:
        yield Processes()
        return
    import torch

    try:
        from accelerate import PartialState
    except ImportError as error:
        raise ScoringError("several processes need `pip install 'sdiareward[train]'`; or start one.") from error
    is_cpu = device == "cpu" or os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes"}
    is_cpu = is_cpu or not torch.accelerator.is_available()
    # They only wait for one another: that needs no accelerator, but may last for hours, which NCCL takes for a fault.
    backend = "gloo" if is_cpu or torch.cuda.is_available() else None
    state = PartialState(cpu=is_cpu, backend=backend, timeout=timedelta(days=30))
    try:
        yield Processes(state.process_index, state.num_processes, str(state.device), torch.distributed.barrier)
    finally:
        state.destroy_process_group()


def open_results(job: ScoringJob, folder: Path, *, is_main: bool = True) -> tuple[Rows, Results]:
    """Open the data set and the run's folder, with what earlier runs left there of rows that are the same."""
    try:
        rows = job.open_rows()
        sides = find_dialogue_columns(rows.features, job.dataset)
        num_rows = rows.num_rows if job.limit is None else min(job.limit, rows.num_rows)
        if num_rows < 1:
            raise ValueError(f"{job.dataset}: {num_rows} rows are to be scored; give a data set or a limit of some.")
        claim_run_dir(folder, job.identity())
        if is_main:
            drop_changed(folder, rows, sides, job.criterion, RecordingFinder(job.audio_root, job.dataset))
        return rows, Results(folder, rows.num_rows, sides, _draw_rows(job, rows))
    except (OSError, ValueError) as error:
        raise ScoringError(str(error)) from error


def _draw_rows(job: ScoringJob, rows: Rows) -> list[int] | None:
    if job.limit is None or job.limit >= rows.num_rows:
        return None
    columns = [name for name in ORIGIN_COLUMNS if name in rows.features]
    found = rows.read(range(rows.num_rows), columns).to_pylist() if columns else [{}] * rows.num_rows
    return sample_rows(describe_origins(found), job.limit, job.seed)


def score_dataset(job: ScoringJob, folder: Path) -> Summary | None:
    """Score a data set in this process, or together with others of `accelerate launch`; None beside the main one."""
    with joined_processes(job.model.device) as processes:
        if processes.rank:
            # The main one fills the cache of `datasets`, makes the folder, and cuts off what a kill left unfinished.
            processes.wait()
        rows, results = open_results(job, folder, is_main=not processes.rank)
        if not processes.rank:
            processes.wait()
        # No process writes before all have read.
        processes.wait()
        pending = results.find_pending(processes.rank, processes.count)
        label = "scoring" if processes.count == 1 else f"process {processes.rank} of {processes.count}"
        session = score_pending(
            pending.tolist(),
            lambda: RowScorer(job.load_scorer(processes.device), job, rows, results.sides),
            results.open_log(pending),
            label=label,
            unit="row",
        )
        start = time.perf_counter()
        processes.wait()
        seconds = session.seconds + time.perf_counter() - start
        return None if processes.rank else finish(job, rows, results, seconds)


class RowScorer:
    """Score rows of a data set with a reward model; the next block of rows is read meanwhile."""

    def __init__(self, scorer: Scorer, job: ScoringJob, rows: Rows, sides: Sequence[str]):
        self._scorer = scorer
        self._job = job
        self._rows = rows
        self._sides = sides

    @property
    def audio_s(self) -> float:
        return self._scorer.audio_s

    def score(self, items: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
        from .batching import prefetch

        size = self._rows.block_rows
        blocks = (np.array(items[start : start + size]) for start in range(0, len(items), size))
        for block in prefetch(self.read, blocks, num_workers=1):
            yield from self.score_block(block)

    def read(self, numbers: np.ndarray) -> Block:
        try:
            return read_block(self._rows, numbers, self._sides)
        except ValueError as error:
            raise ScoringError(str(error)) from error

    def score_block(self, block: Block) -> Iterator[tuple[int, Outcome]]:
        """Yield each row as it is done, with its `rewards`, and what the model heard."""
        rows, num_sides = block.numbers.tolist(), len(block.sides)
        finder = RecordingFinder(self._job.audio_root, self._job.dataset)
        dialogues = Dialogues(block, range(len(rows)), block.sides, finder)
        criteria = [self._job.criterion or name_criterion(name) for name in block.criteria for _ in block.sides]
        groups = [row for row in rows for _ in block.sides]
        failures: dict[int, str] = {}
        heard: dict[int, Heard] = defaultdict(Heard)
        results = self._scorer.iter_scores(dialogues, criteria, groups=groups, skipped=failures, heard=heard)
        for position, found in complete_items(results, failures, block.sides, rows):
            if isinstance(found, Skipped):
                yield rows[position], found
                continue
            span = range(position * num_sides, (position + 1) * num_sides)
            content = describe_content(dialogues, span, criteria[span[0]])
            facts = describe_heard(block.sides, [heard[index] for index in span])
            yield rows[position], {"rewards": found, **facts, **content}


def finish(job: ScoringJob, rows: Rows, before: Results, seconds: float) -> Summary:
    """Make one table of the records of all processes, and write `summary.json` with what it depends on."""
    folder = before.folder
    try:
        after = Results(folder, rows.num_rows, before.sides, before.drawn)
        write_results(after, rows)
    except ValueError as error:
        raise ScoringError(str(error)) from error
    summary = summarise(before, after, seconds)
    rate = {"real_time_factor": summary.real_time_factor}
    write_provenance(folder / "summary.json", summary=asdict(summary) | rate, job=job.describe_settings())
    if not summary.num_scored:
        path, reason = folder / "skipped.jsonl", after.reasons[min(after.reasons)].rstrip(".")
        raise ScoringError(
            f"none of {summary.num_rows} rows could be scored; the first: {reason}; {path} has all reasons."
        )
    return summary
