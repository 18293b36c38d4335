"""Score a data set of pairs or dialogues into a folder: in one process, in several of `accelerate launch`, or on Ray.

On Ray only row numbers travel to the actors, which read the rows themselves, and only records travel back. Every
machine must find data, recordings and checkpoint under the same name.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sdiareward.audio_sdiareward import Heard
from sdiareward.calls.reading import CallSettings
from sdiareward.common.errors import Skipped
from sdiareward.common.files import hash_json, replace_atomically, write_file
from sdiareward.common.machine import open_ray, require_room, write_provenance
from sdiareward.common.parts import Engine, Items, Load, Make, OnRay, PartFolder, choose_size, run_here, run_parts
from sdiareward.common.parts import Rows as Records
from sdiareward.pairs.content import digest_dialogue, is_unchanged, stamp_file
from sdiareward.pairs.labels import ORIGIN_COLUMNS, describe_origins, name_criterion, sample_rows
from sdiareward.pairs.path_sandbox import ROOTS_VARIABLE, RecordingFinder
from sdiareward.pairs.rows import Block, Dialogues, Rows, find_dialogue_columns, open_rows, read_block
from sdiareward.pairs.schema import ID_COLUMNS, SIDES

from .model_spec import ModelSpec, ScoringError
from .outcomes import complete_items, describe_heard


if TYPE_CHECKING:
    from .scorer import Scorer

# Columns of the parts that show whether a row has changed.
_KEPT_FOR = ("digest", "stamps")
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
_NUM_REASONS = 3
# A tenth is left for what Ray itself does.
_SHARE_OF_CPUS = 0.9
# Small enough that the actors finish at about the same time.
_PARTS_AN_ACTOR = 4


# The counts, seconds and quantiles of `summary.json`.
Summary = SimpleNamespace


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
    calls: CallSettings = CallSettings()  # How recordings of a folder are read.
    user_turns: str | None = None  # Folder of the user's turns, if `dataset` has the answers alone.

    def open_rows(self) -> Rows:
        return open_rows(self.dataset, self.split, self.name, self.calls, self.user_turns)

    def load_scorer(self, device: str | None = None) -> Scorer:
        return self.model.load(self.criterion, device)

    def identity(self) -> dict[str, Any]:
        """Return what the rewards depend on besides the content of the rows, which is compared by digests."""
        data = {name: getattr(self, name) for name in ("dataset", "split", "name", "criterion")}
        data |= {"user_turns": self.user_turns} if self.user_turns else {}
        return {**self.model.identity(), **data}

    def describe_settings(self) -> dict[str, Any]:
        return asdict(self)


class RowScorer:
    """The rows of a job, and the records that a scorer makes of them."""

    def __init__(self, job: ScoringJob):
        import datasets

        self._job = job
        self.rows = job.open_rows()
        self._sides = find_dialogue_columns(self.rows.features, job.dataset)
        self._columns = (*SIDES, "margin") if self._sides == SIDES else ("reward",)
        self._finder = RecordingFinder(job.audio_root, job.dataset, *filter(None, [job.user_turns]))
        # Rows that are in no file have no stamp.
        tables = [list(stamp) for stamp in self.rows.tables]
        self._source = hash_json([tables, self._finder.roots]) if tables else None
        self._ids = [name for name in ID_COLUMNS if name in self.rows.features][:1]
        ids = datasets.Features({name: self.rows.features[name] for name in self._ids}).arrow_schema
        columns = {"item": pa.int64(), **{field.name: field.type for field in ids}}
        columns |= dict.fromkeys((*self._columns, "given_s", "heard_s"), pa.float64())
        columns |= {"num_cut": pa.int64(), "silent_turns": pa.list_(pa.string())}
        self.schema = pa.schema(columns | dict.fromkeys(("reason", *_KEPT_FOR), pa.string()))

    def draw(self) -> list[int]:
        """Return the numbers of the rows to score."""
        limit, num_rows = self._job.limit, self.rows.num_rows
        if num_rows < 1 or (limit is not None and limit < 1):
            raise ValueError(f"{self._job.dataset}: 0 rows are to be scored; give a data set or a limit of some.")
        if limit is None or limit >= num_rows:
            return list(range(num_rows))
        columns = [name for name in ORIGIN_COLUMNS if name in self.rows.features]
        found = self.rows.read(range(num_rows), columns).to_pylist() if columns else [{}] * num_rows
        return sorted(sample_rows(describe_origins(found), limit, self._job.seed))

    def _read(self, numbers: Items) -> tuple[Block, Dialogues]:
        block = read_block(self.rows, np.asarray(numbers), self._sides)
        return block, Dialogues(block, range(len(numbers)), self._sides, self._finder)

    def make(self, parts: Iterable[Items], scorer: Scorer) -> Iterator[Records]:
        """Score parts; the next one is read meanwhile."""
        from .batching import prefetch

        for block, dialogues in prefetch(self._read, parts, num_workers=1):
            yield sorted(self._score(block, dialogues, scorer), key=lambda record: record["item"])

    def _score(self, block: Block, dialogues: Dialogues, scorer: Scorer) -> Iterator[dict[str, Any]]:
        numbers, num_sides = block.numbers.tolist(), len(self._sides)
        criteria = [self._job.criterion or name_criterion(name) for name in block.criteria for _ in self._sides]
        groups = [row for row in numbers for _ in self._sides]
        failures: dict[int, str] = {}
        heard: dict[int, Heard] = defaultdict(Heard)
        results = scorer.iter_scores(dialogues, criteria, groups=groups, skipped=failures, heard=heard)
        ids = self.rows.read(block.numbers, self._ids).to_pylist() if self._ids else [{}] * len(numbers)
        for position, found in complete_items(results, failures, self._sides, numbers):
            record = {"item": numbers[position], **ids[position]}
            if isinstance(found, Skipped):
                yield {**record, "reason": found.reason}
                continue
            span = range(position * num_sides, (position + 1) * num_sides)
            clips = [clip for index in span for turn in dialogues[index].turns for clip in turn.clips]
            files = [stamp_file(clip.source) for clip in clips if isinstance(clip.source, str)]
            yield {
                **record,
                **dict(zip(self._columns, (*found, found[0] - found[-1]), strict=False)),
                **describe_heard(self._sides, [heard[index] for index in span]),
                "digest": self._digest(dialogues, position, criteria[span[0]]),
                "stamps": json.dumps([self._source, *files]),
            }

    def _digest(self, dialogues: Dialogues, position: int, criterion: str | None) -> str | None:
        """Return the digest of the content of a row; None if it cannot be read."""
        found: list[str | None] = [None]
        with suppress(ValueError, OSError):
            first = position * len(self._sides)
            found = [digest_dialogue(dialogues[first + side], criterion) for side in range(len(self._sides))]
        return None if None in found else " ".join(map(str, found))

    def have_changed(self, records: Records) -> list[bool]:
        """Return which rows were skipped or have other content now; one that cannot be read now keeps its reward."""
        doubtful = [each["item"] for each in records if each["reason"] is None and not self._has_same_files(each)]
        now: dict[int, str | None] = {}
        for start in range(0, len(doubtful), self.rows.block_rows):
            block, dialogues = self._read(doubtful[start : start + self.rows.block_rows])
            for position, (row, criterion) in enumerate(zip(block.numbers.tolist(), block.criteria, strict=True)):
                now[row] = self._digest(dialogues, position, self._job.criterion or criterion)
        return [
            record["reason"] is not None or now.get(record["item"]) not in (None, record["digest"])
            for record in records
        ]

    def _has_same_files(self, record: Mapping[str, Any]) -> bool:
        source, *files = json.loads(record["stamps"])
        return self._source is not None and source == self._source and all(map(is_unchanged, files))


def score_dataset(job: ScoringJob, folder: Path) -> Summary | None:
    """Score a data set in this process, or together with others of `accelerate launch`; None beside the main one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "LOCAL_RANK" not in os.environ:
        run = _Run(job, folder)
        run.score(lambda: partial(run.scorer.make, scorer=job.load_scorer()), None, "scoring")
        return run.finish()
    import torch

    try:
        from accelerate import PartialState
    except ImportError as error:
        raise ScoringError("several processes need `pip install 'sdiareward[train]'`; or start one.") from error
    is_cpu = job.model.device == "cpu" or os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes"}
    is_cpu = is_cpu or not torch.accelerator.is_available()
    # They only wait for one another: that needs no accelerator, but may last for hours, which NCCL takes for a fault.
    backend = "gloo" if is_cpu or torch.cuda.is_available() else None
    state = PartialState(cpu=is_cpu, backend=backend, timeout=timedelta(days=30))
    rank, count = state.process_index, state.num_processes

    def run_share(load: Load, parts: Sequence[Items]) -> Iterator[tuple[int, Records]]:
        # Neighbours, so that a process reads its own part of the files.
        numbers = np.array_split(np.arange(len(parts)), count)[rank].tolist()
        found = run_here(load, [parts[number] for number in numbers]) if numbers else iter(())
        return ((numbers[index], rows) for index, rows in found)

    try:
        if rank:
            # The main one fills the cache of `datasets` and looks for changes.
            torch.distributed.barrier()
        run = _Run(job, folder)
        if not rank:
            torch.distributed.barrier()
        # No process writes before all have read.
        torch.distributed.barrier()
        device, label = str(state.device), f"process {rank} of {count}"
        run.score(lambda: partial(run.scorer.make, scorer=job.load_scorer(device)), run_share, label)
        torch.distributed.barrier()
        return None if rank else run.finish()
    finally:
        state.destroy_process_group()


def score_on_ray(
    job: ScoringJob, folder: Path, *, num_actors: int | None = None, gpus_per_actor: float | None = None
) -> Summary:
    """Score a data set on the Ray cluster that `RAY_ADDRESS` names, or on one that is started on this machine."""
    run = _Run(job, folder)
    if run.pending:
        with open_ray():
            engine, num_threads = _place(num_actors, gpus_per_actor, len(run.pending), job.model)
            device = None if engine.num_gpus else "cpu"
            load = partial(load_in_actor, job, device, num_threads, os.environ.get(ROOTS_VARIABLE))
            run.part_rows = min(run.part_rows, -(-len(run.pending) // (_PARTS_AN_ACTOR * engine.num_actors)))
            run.score(load, engine, f"{engine.num_actors} actors")
    return run.finish()


def load_in_actor(job: ScoringJob, device: str | None, num_threads: int | None, roots: str | None) -> Make:
    if roots is not None:
        os.environ[ROOTS_VARIABLE] = roots
    if num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)
    return partial(RowScorer(job).make, scorer=job.load_scorer(device))


def _place(
    num_actors: int | None, gpus_per_actor: float | None, num_rows: int, model: ModelSpec
) -> tuple[OnRay, int | None]:
    """Return the actors and the threads of each; more than rows are not started, more than fit are refused."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    num_gpus = sum(node.get("GPU", 0.0) for node in nodes)
    of_each = gpus_per_actor if gpus_per_actor is not None else float(num_gpus > 0)
    cpus = [node["CPU"] for node in nodes if "CPU" in node]
    num_actors = num_actors or (max(min(int(num_gpus / of_each), int(sum(cpus))), 1) if of_each else 1)
    num_actors = min(num_actors, num_rows)
    # On a GPU the weights are only read through the memory of the machine.
    num_bytes = 0 if of_each else model.weight_bytes
    require_room(num_actors, "actors", num_gpus=of_each, num_bytes=num_bytes)
    whole = compute_largest_share(cpus, num_actors)
    # Ray counts in ten-thousandths.
    share = int(_SHARE_OF_CPUS * whole * 100) / 100
    if of_each:
        return OnRay(num_actors, min(share, 1.0), of_each), None
    return OnRay(num_actors, share), max(int(whole), 1)


def compute_largest_share(cpus: Sequence[float], num_actors: int) -> float:
    """Return the most CPUs that each of some actors can have; an actor is on one node."""
    shares = {num_cpus / count for num_cpus in set(cpus) for count in range(1, num_actors + 1)}
    # A quotient may be off by a rounding.
    fitting = (share for share in shares if sum(int(each / share + 1e-9) for each in cpus) >= num_actors)
    return max(fitting, default=0.0)


class _Run:
    """A data set, and the folder of its rewards, with what earlier runs left there of rows that are the same."""

    def __init__(self, job: ScoringJob, folder: Path):
        self._job, self._folder, self.seconds = job, folder, 0.0
        self.scorer = RowScorer(job)
        self._wanted = self.scorer.draw()
        self._parts = PartFolder(folder, job.identity(), self.scorer.schema)
        self.pending = self._parts.find_pending(self._wanted, self.scorer.have_changed, "reason", *_KEPT_FOR)
        self.part_rows = min(self.scorer.rows.block_rows, choose_size(len(self._wanted)))

    def score(self, load: Load, engine: Engine | None, label: str) -> None:
        self.seconds = run_parts(self._parts, self.pending, load, self.part_rows, engine, label=label, unit="row")

    def finish(self) -> Summary:
        """Make one table of the records of all processes, and write `summary.json` with what it depends on."""
        folder, schema = self._folder, self.scorer.schema
        # Of the parts that other processes wrote as well.
        names = [name for name in schema.names[1:] if name not in _KEPT_FOR]
        table = PartFolder(folder, self._job.identity(), schema).read(names) or schema.empty_table()
        table = table.filter(pc.is_in(table["item"], pa.array(self._wanted, pa.int64()))).sort_by("item")
        if num_missing := len(self._wanted) - table.num_rows:
            raise ScoringError(f"{folder}: {num_missing} rows have no result; run the same command again.")
        table = table.rename_columns(["row", *table.column_names[1:]])
        scored = table.filter(pc.is_null(table["reason"])).drop_columns("reason")
        ids = [name for name in ID_COLUMNS if name in names]
        skipped = table.filter(pc.is_valid(table["reason"])).select(["row", "reason", *ids]).to_pylist()
        # Each row is in one of these files, in the order of the rows.
        with replace_atomically(folder / "scores.parquet") as temporary:
            pq.write_table(scored, temporary)
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in skipped)
        write_file(folder / "skipped.jsonl", "".join(lines))
        summary = _summarise(scored, skipped, self.pending, self.seconds)
        write_provenance(folder / "summary.json", summary=vars(summary), job=self._job.describe_settings())
        if not len(scored):
            why = f"the first: {skipped[0]['reason'].rstrip('.')}; {folder / 'skipped.jsonl'} has all reasons."
            raise ScoringError(f"none of {len(skipped)} rows could be scored; {why}")
        return summary


def _summarise(scored: pa.Table, skipped: Records, new: Sequence[int], seconds: float) -> Summary:
    """Return the summary of all runs in a folder; `num_new`, `new_audio_s` and `seconds` are of the last run."""
    values = {name: scored[name].to_numpy() for name in (*SIDES, "margin", "reward") if name in scored.column_names}
    margins = values.get("margin")
    is_new, heard_s = np.isin(scored["row"].to_numpy(), new), scored["heard_s"].to_numpy()
    turns = zip(scored["row"].to_pylist(), scored["silent_turns"].to_pylist(), strict=True)
    silent = [f"row {row} {turn}" for row, of_row in turns for turn in of_row]
    new_audio_s = float(heard_s[is_new].sum())
    return Summary(
        num_rows=len(scored) + len(skipped),
        num_scored=len(scored),
        num_skipped=len(skipped),
        # Turns that the model heard only the beginning of.
        num_cut=int(scored["num_cut"].to_numpy().sum()),
        given_s=float(scored["given_s"].to_numpy().sum()),
        audio_s=float(heard_s.sum()),
        num_new=int(is_new.sum()),
        new_audio_s=new_audio_s,
        seconds=seconds,
        rewards={name: _describe_values(found) for name, found in values.items() if len(scored)},
        # Of pairs; a tie is not right.
        num_right=None if margins is None else int((margins > 0).sum()),
        num_ties=None if margins is None else int((margins == 0).sum()),
        num_silent=len(silent),
        silent_turns=silent[:_NUM_REASONS],
        reasons={record["row"]: record["reason"] for record in skipped[:_NUM_REASONS]},
        # Seconds of computing for a second of audio; lower is better.
        real_time_factor=seconds / new_audio_s if new_audio_s else None,
    )


def _describe_values(values: np.ndarray) -> dict[str, float]:
    quantiles = {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
    return {"mean": float(values.mean()), **quantiles}
