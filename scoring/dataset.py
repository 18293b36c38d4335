"""Score a data set of pairs or dialogues into a folder: in one process, in several, or on Ray (`ray_scoring`).

Every engine scores blocks of rows with `score_block` and leaves the records in the folder's `partial/` as they come
(`results`). What is there is not scored again, by whatever engine or number of processes; what was skipped is
tried again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.common.locks import lock_folder
from sdiareward.common.provenance import write_run
from sdiareward.common.run_identity import open_run
from sdiareward.pairs.rows import Block, BlockDialogues, Rows, dialogue_columns, open_rows, read_block

from .batching import complete_groups
from .results import Record, Results, Summary, summarise, write_results


if TYPE_CHECKING:
    from .scorer import Scorer


class ScoringError(ValueError):
    """Raised for a model, data set or folder that a run cannot work with; its message is for the user."""


@dataclass(frozen=True)
class ModelChoice:
    """Which model scores, and how; pickles, so that any process can load it.

    Args:
        name (`str`): Folder or Hub name of a checkpoint.
        prompts (`dict[str, str]`, *optional*): System prompts by criterion in place of the checkpoint's.
        dtype (`str`, *optional*): Of the backbone.
        device (`str`, *optional*): Where to compute.
        batch_tokens (`int`, *optional*): Tokens in one forward pass.
    """

    name: str
    prompts: Mapping[str, str] | None = None
    dtype: str | None = None
    device: str | None = None
    batch_tokens: int | None = None

    def load(self, criterion: str | None = None, device: str | None = None) -> Scorer:
        """Load the model.

        Args:
            criterion (`str`, *optional*): One that it must know.
            device (`str`, *optional*): Where to compute if the choice does not say.

        Raises:
            ScoringError: It cannot be loaded or does not know the criterion.
        """
        from transformers.utils.logging import disable_progress_bar

        from .scorer import Scorer

        disable_progress_bar()
        options: dict[str, Any] = {"device": self.device or device, "batch_tokens": self.batch_tokens}
        try:
            scorer = Scorer.from_pretrained(self.name, dtype=self.dtype, prompts=self.prompts, **options)
        # PyTorch asserts that it was built for a device, and fails at run time for want of memory.
        except (OSError, ValueError, RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
            # A library that finds nothing does not always say that nobody answered.
            reach = "" if Path(self.name).exists() else ", and check the connection to the Hub"
            raise ScoringError(
                f"model {self.name}: cannot be loaded ({reason}); give a checkpoint folder or Hub id{reach}."
            ) from error
        if criterion is not None and criterion not in scorer.processor.prompts:
            known = ", ".join(sorted(scorer.processor.prompts))
            raise ScoringError(f"criterion is {criterion!r}; this model knows {known}.")
        return scorer


@dataclass(frozen=True)
class ScoringJob:
    """What to score with what; pickles.

    Args:
        model ([`ModelChoice`]): What scores.
        dataset (`str`): As `dialogue_rows.open_rows` takes it.
        split, name (`str`, *optional*): Of the data set.
        limit (`int`, *optional*): Only the first so many rows.
        criterion (`str`, *optional*): Of all rows; by default what their column `criterion` says, else `"joint"`.
        audio_root (`str`, *optional*): Where relative paths of recordings begin; by default the working directory.
    """

    model: ModelChoice
    dataset: str
    split: str | None = None
    name: str | None = None
    limit: int | None = None
    criterion: str | None = None
    audio_root: str | None = None

    def open_rows(self) -> Rows:
        """Open the data set; raises what `dialogue_rows.open_rows` raises."""
        return open_rows(self.dataset, self.split, self.name)

    def load_scorer(self, device: str | None = None) -> Scorer:
        """Load the model; see `ModelChoice.load`."""
        return self.model.load(self.criterion, device)

    def identity(self, rows: Rows) -> dict[str, Any]:
        """Return what the rewards depend on: not the limit, nor where and in how many processes they are computed."""
        model = f"{self.model.name} ({fingerprint_model(self.model.name)})"
        data = {name: getattr(self, name) for name in ("dataset", "split", "name", "criterion")}
        return {
            "model": model,
            "dtype": self.model.dtype,
            "prompts": self.model.prompts,
            "rows": rows.fingerprint,
        } | data


@dataclass(frozen=True)
class Processes:
    """This process among those that score one data set.

    Args:
        rank (`int`): Its number; 0 is the main one.
        count (`int`): How many there are.
        device (`str`, *optional*): Where it computes.
        wait (`Callable`): Returns when all have called it.
    """

    rank: int = 0
    count: int = 1
    device: str | None = None
    wait: Callable[[], None] = lambda: None


@contextmanager
def joined_processes(device: str | None = None) -> Iterator[Processes]:
    """Join the processes that `accelerate launch` or `torchrun` started, if one did.

    Args:
        device (`str`, *optional*): Where every process computes; by default each on an accelerator of its own.

    Raises:
        ScoringError: There are several processes, but `accelerate` is not installed.
    """
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


def open_results(job: ScoringJob, folder: Path) -> tuple[Rows, Results]:
    """Open the data set and the run's folder, with what earlier runs left there.

    Args:
        job ([`ScoringJob`]): What to score.
        folder (`Path`): Where results go.

    Raises:
        ScoringError: The data set cannot be opened or has nothing to score, or the folder is another run's.
    """
    try:
        rows = job.open_rows()
        sides = dialogue_columns(rows.features, job.dataset)
        num_rows = rows.num_rows if job.limit is None else min(job.limit, rows.num_rows)
        if num_rows < 1:
            raise ValueError(f"{job.dataset}: {num_rows} rows are to be scored; give a data set or a limit of some.")
        open_run(folder, job.identity(rows))
        return rows, Results(folder, num_rows, sides)
    except (OSError, ValueError) as error:
        raise ScoringError(str(error)) from error


def score_dataset(job: ScoringJob, folder: Path) -> Summary | None:
    """Score a data set in this process, or together with the processes that `accelerate launch` started beside it.

    Args:
        job ([`ScoringJob`]): What to score.
        folder (`Path`): Where results go; what is there is kept.

    Returns:
        [`Summary`]: What became of the rows; the seconds are those after the model is loaded. None for all processes
        but the main one.

    Raises:
        UserError: Another run writes to the folder.
        ScoringError: See `open_results` and `ModelChoice.load`.
    """
    with joined_processes(job.model.device) as processes, nullcontext() if processes.rank else lock_folder(folder):
        if processes.rank:
            # The main one fills the cache of `datasets`, makes the folder, and cuts off what a kill left unfinished.
            processes.wait()
        rows, results = open_results(job, folder)
        if not processes.rank:
            processes.wait()
        # Nobody writes before all have read.
        processes.wait()
        blocks = results.pending_blocks(rows.block_rows, processes.rank, processes.count)
        scorer = job.load_scorer(processes.device) if blocks else None
        start = time.perf_counter()
        if scorer is not None:
            label = "scoring" if processes.count == 1 else f"process {processes.rank} of {processes.count}"
            _score_blocks(scorer, job, rows, results, blocks, label)
        processes.wait()
        seconds = time.perf_counter() - start
        return None if processes.rank else finish(job, rows, results, seconds)


def _score_blocks(
    scorer: Scorer, job: ScoringJob, rows: Rows, results: Results, blocks: Sequence[np.ndarray], label: str
) -> None:
    """Score blocks of rows, the next one being read meanwhile; a record is on disk before the next one is made."""
    from tqdm.auto import tqdm

    from .prefetch import prefetch

    read = prefetch(lambda numbers: _read(rows, numbers, results.sides), blocks, num_workers=1)
    with tqdm(total=sum(map(len, blocks)), unit="row", desc=label) as bar:
        for block in read:
            log = results.log(block.numbers)
            for record in score_block(scorer, job, block):
                log.append([record])
                bar.update()


def _read(rows: Rows, numbers: np.ndarray, sides: Sequence[str]) -> Block:
    """Read a block; what is scored is kept if the file turns out to be damaged there."""
    try:
        return read_block(rows, numbers, sides)
    except ValueError as error:
        raise ScoringError(str(error)) from error


def score_block(scorer: Scorer, job: ScoringJob, block: Block) -> Iterator[Record]:
    """Score some rows; yield a record of each when all of its sides are done.

    Args:
        scorer ([`Scorer`]): The scorer.
        job ([`ScoringJob`]): Says the criterion and where recordings lie.
        block ([`Block`]): The rows.
    """
    dialogues = BlockDialogues(block, scorer.processor.max_turn_s, job.audio_root, job.dataset)
    rows, num_sides = block.numbers.tolist(), len(block.sides)
    groups = [row for row in rows for _ in block.sides]
    skipped: dict[int, str] = {}
    results = scorer.iter_scores(dialogues, _criteria(job, block), groups=groups, skipped=skipped)
    for row, rewards in complete_groups(results, num_sides):
        span = slice(row * num_sides, (row + 1) * num_sides)
        seconds, num_cut = float(dialogues.audio_s[span].sum()), int(dialogues.num_cut[span].sum())
        yield _record(rows[row], rewards, seconds, num_cut)
    reasons: dict[int, list[str]] = {}
    for index, reason in sorted(skipped.items()):
        row, side = divmod(index, num_sides)
        reasons.setdefault(rows[row], []).append(f"{block.sides[side]}: {reason}")
    yield from ({"row": row, "reason": " ".join(why)} for row, why in reasons.items())


def _criteria(job: ScoringJob, block: Block) -> list[str]:
    """Return the criterion of each dialogue of a block."""
    of_rows = [None] * len(block.numbers)
    if "criterion" in block.table.column_names:
        of_rows = block.table.column("criterion").to_pylist()
    return [job.criterion or criterion or "joint" for criterion in of_rows for _ in block.sides]


def _record(row: int, rewards: list[float], audio_s: float, num_cut: int) -> Record:
    if not all(map(math.isfinite, rewards)):
        found = ", ".join(map(str, rewards))
        return {"row": row, "reason": f"the rewards are {found}; score with the dtype float32."}
    return {"row": row, "rewards": rewards, "audio_s": audio_s, "num_cut": num_cut}


def finish(job: ScoringJob, rows: Rows, before: Results, seconds: float) -> Summary:
    """Make one table of the records of all processes, and write `summary.json` with what it depends on.

    Args:
        job ([`ScoringJob`]): What was scored.
        rows (`Rows`): Its data set.
        before ([`Results`]): What was known when the run began.
        seconds (`float`): How long it scored.

    Raises:
        ScoringError: A row has no record, or none could be scored.
    """
    folder = before.folder
    try:
        after = Results(folder, before.num_rows, before.sides)
        write_results(after, rows)
    except ValueError as error:
        raise ScoringError(str(error)) from error
    summary = summarise(before, after, seconds)
    rate = {"real_time_factor": summary.real_time_factor}
    write_run(folder / "summary.json", summary=asdict(summary) | rate, job=asdict(job))
    if not summary.num_scored:
        reasons = folder / "skipped.jsonl"
        raise ScoringError(f"none of {summary.num_rows} rows could be scored; {reasons} has the reasons.")
    return summary
