"""Score a data set of pairs or dialogues into a folder: in one process, in several of `accelerate launch`, or on Ray.

On Ray only row numbers travel to the actors, which read the rows themselves, and only records travel back. Every
machine must find data, recordings and checkpoint under the same name.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import Heard
from sdiareward.common.errors import Skipped
from sdiareward.common.files import hash_json, replace_atomically, write_file
from sdiareward.common.machine import open_ray, require_room, write_provenance
from sdiareward.common.parts import Engine, Items, Load, OnRay, PartFolder, choose_size, run_here, run_parts
from sdiareward.common.parts import Rows as Records
from sdiareward.pairs.content import digest_dialogue, is_unchanged, stamp_file
from sdiareward.pairs.labels import ORIGIN_COLUMNS, describe_origins, name_criterion, sample_rows
from sdiareward.pairs.messages import Form
from sdiareward.pairs.path_sandbox import ROOTS_VARIABLE, RecordingFinder
from sdiareward.pairs.rows import Block, Dialogues, Rows, find_dialogue_columns, open_rows, read_block
from sdiareward.pairs.schema import ID_COLUMNS, SIDES

from .model_spec import ModelSpec, ScoringError
from .outcomes import complete_items, describe_heard


if TYPE_CHECKING:
    import pyarrow as pa

    from .scorer import Scorer

# Columns that tell whether a row has changed.
_KEPT_FOR = ("digest", "source", "files")
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
_NUM_REASONS = 3
# A tenth is left for what Ray itself does.
_SHARE_OF_CPUS = 0.9
# Small enough that the actors finish at about the same time.
_PARTS_AN_ACTOR = 4


@dataclass
class Summary:
    """The rows and rewards of all runs in a folder; `num_new`, `new_audio_s` and `seconds` are of the last run."""

    num_rows: int
    num_scored: int
    num_skipped: int
    num_cut: int  # Turns that the model heard only the beginning of.
    given_s: float
    audio_s: float  # That the model heard.
    num_new: int
    new_audio_s: float
    seconds: float
    rewards: dict[str, dict[str, float]] = field(default_factory=dict)
    num_right: int | None = None  # Of pairs; a tie is not right.
    num_ties: int | None = None
    num_silent: int = 0
    silent_turns: list[str] = field(default_factory=list)  # The first ones.
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of computing for a second of audio, in the last run; lower is better."""
        return self.seconds / self.new_audio_s if self.new_audio_s else None


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
        """Return what the rewards depend on besides the content of the rows, which is compared by digests."""
        data = {name: getattr(self, name) for name in ("dataset", "split", "name", "criterion")}
        return {**self.model.identity(), **data}

    def describe_settings(self) -> dict[str, Any]:
        return asdict(self)


class RowScorer:
    """The rows of a job, and the records that a scorer makes of them."""

    def __init__(self, job: ScoringJob):
        self._job = job
        self.rows = job.open_rows()
        self.sides = find_dialogue_columns(self.rows.features, job.dataset)
        self._finder = RecordingFinder(job.audio_root, job.dataset)
        self._id_column = next((name for name in ID_COLUMNS if name in self.rows.features), None)
        # Rows that are in no file have no stamp.
        tables = [list(stamp) for stamp in self.rows.tables]
        self._source = hash_json([tables, self._finder.roots]) if tables else None

    @property
    def schema(self) -> pa.Schema:
        import datasets
        import pyarrow as pa

        scores = (*self.sides, "margin") if self.sides == SIDES else ("reward",)
        names = [self._id_column] if self._id_column else []
        ids = datasets.Features({name: self.rows.features[name] for name in names}).arrow_schema
        numbers = dict.fromkeys((*scores, "given_s", "heard_s"), pa.float64())
        heard = {"num_cut": pa.int64(), "silent_turns": pa.list_(pa.string())}
        texts = dict.fromkeys(("reason", "digest", "source", "files"), pa.string())
        return pa.schema(
            {"item": pa.int64(), **{field.name: field.type for field in ids}, **numbers, **heard, **texts}
        )

    def draw(self) -> list[int]:
        """Return the numbers of the rows to score."""
        limit, num_rows = self._job.limit, self.rows.num_rows
        if min(num_rows, num_rows if limit is None else limit) < 1:
            raise ValueError(f"{self._job.dataset}: 0 rows are to be scored; give a data set or a limit of some.")
        if limit is None or limit >= num_rows:
            return list(range(num_rows))
        columns = [name for name in ORIGIN_COLUMNS if name in self.rows.features]
        found = self.rows.read(range(num_rows), columns).to_pylist() if columns else [{}] * num_rows
        return sorted(sample_rows(describe_origins(found), limit, self._job.seed))

    def read(self, numbers: Items) -> Block:
        try:
            return read_block(self.rows, np.asarray(numbers), self.sides)
        except ValueError as error:
            raise ScoringError(str(error)) from error

    def make(self, parts: Iterable[Items], scorer: Scorer) -> Iterator[Records]:
        """Score parts; the next one is read meanwhile."""
        from .batching import prefetch

        for block in prefetch(self.read, parts, num_workers=1):
            yield sorted(self._score(block, scorer), key=lambda record: record["item"])

    def _score(self, block: Block, scorer: Scorer) -> Iterator[dict[str, Any]]:
        numbers, num_sides = block.numbers.tolist(), len(block.sides)
        dialogues = Dialogues(block, range(len(numbers)), block.sides, self._finder)
        criteria = [self._job.criterion or name_criterion(name) for name in block.criteria for _ in block.sides]
        groups = [row for row in numbers for _ in block.sides]
        failures: dict[int, str] = {}
        heard: dict[int, Heard] = defaultdict(Heard)
        results = scorer.iter_scores(dialogues, criteria, groups=groups, skipped=failures, heard=heard)
        name = self._id_column
        ids = self.rows.read(block.numbers, [name])[name].to_pylist() if name else []
        for position, found in complete_items(results, failures, block.sides, numbers):
            record: dict[str, Any] = {"item": numbers[position], "source": self._source}
            if name:
                record[name] = ids[position]
            if isinstance(found, Skipped):
                yield {**record, "reason": found.reason}
                continue
            span = range(position * num_sides, (position + 1) * num_sides)
            scored = [dialogues[index] for index in span]
            sources = [clip.source for dialogue in scored for turn in dialogue.turns for clip in turn.clips]
            files = [stamp_file(path) for path in sources if isinstance(path, str)]
            if len(found) > 1:
                record["margin"] = found[0] - found[1]
            yield {
                **record,
                **dict(zip(self.sides if len(found) > 1 else ("reward",), found, strict=True)),
                **describe_heard(block.sides, [heard[index] for index in span]),
                "digest": _join(digest_dialogue(dialogue, criteria[span[0]]) for dialogue in scored),
                "files": json.dumps(files),
            }

    def have_changed(self, records: Records) -> list[bool]:
        """Return which rows were skipped or have other content now; one that cannot be read now keeps its reward."""
        doubtful = [
            record["item"] for record in records if record["reason"] is None and not self._has_same_files(record)
        ]
        now: dict[int, str | None] = {}
        for start in range(0, len(doubtful), self.rows.block_rows):
            block = self.read(doubtful[start : start + self.rows.block_rows])
            dialogues = Dialogues(block, range(len(block.numbers)), block.sides, self._finder)
            for position, row in enumerate(block.numbers.tolist()):
                span = range(position * len(self.sides), (position + 1) * len(self.sides))
                criterion = self._job.criterion or block.criteria[position]
                with suppress(ValueError, OSError):
                    now[row] = _join(digest_dialogue(dialogues[index], criterion) for index in span)
        return [
            record["reason"] is not None or now.get(record["item"]) not in (None, record["digest"])
            for record in records
        ]

    def _has_same_files(self, record: Mapping[str, Any]) -> bool:
        is_same_source = self._source is not None and record["source"] == self._source
        return is_same_source and all(map(is_unchanged, json.loads(record["files"])))


def _join(digests: Iterable[str | None]) -> str | None:
    found = list(digests)
    return None if None in found else " ".join(map(str, found))


@dataclass(frozen=True)
class _Ranks:
    rank: int = 0
    count: int = 1
    device: str | None = None
    wait: Callable[[], None] = lambda: None

    def run(self, load: Load, parts: Sequence[Items]) -> Iterator[tuple[int, Records]]:
        """Make the parts of this process: neighbours, so that it reads its own part of the files."""
        numbers = np.array_split(np.arange(len(parts)), self.count)[self.rank].tolist()
        found = run_here(load, [parts[number] for number in numbers]) if numbers else iter(())
        return ((numbers[index], rows) for index, rows in found)


@contextmanager
def _joined_processes(device: str | None = None) -> Iterator[_Ranks]:
    """Join the processes that `accelerate launch` or `torchrun` started, if one did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "LOCAL_RANK" not in os.environ:
        yield _Ranks()
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
        yield _Ranks(state.process_index, state.num_processes, str(state.device), torch.distributed.barrier)
    finally:
        state.destroy_process_group()


def score_dataset(job: ScoringJob, folder: Path) -> Summary | None:
    """Score a data set in this process, or together with others of `accelerate launch`; None beside the main one."""
    with _joined_processes(job.model.device) as ranks:
        if ranks.rank:
            # The main one fills the cache of `datasets` and looks for changes.
            ranks.wait()
        run = _Run(job, folder)
        if not ranks.rank:
            ranks.wait()
        # No process writes before all have read.
        ranks.wait()
        label = "scoring" if ranks.count == 1 else f"process {ranks.rank} of {ranks.count}"
        run.score(lambda: partial(run.scorer.make, scorer=job.load_scorer(ranks.device)), ranks.run, label)
        ranks.wait()
        return None if ranks.rank else run.finish()


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
            num_parts = _PARTS_AN_ACTOR * engine.num_actors
            run.part_rows = min(run.part_rows, -(-len(run.pending) // num_parts))
            run.score(load, engine, f"{engine.num_actors} actors")
    return run.finish()


def load_in_actor(
    job: ScoringJob, device: str | None, num_threads: int | None, roots: str | None
) -> Callable[[Iterable[Items]], Iterator[Records]]:
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
        self._job = job
        self._folder = folder
        self.seconds = 0.0
        try:
            self.scorer = RowScorer(job)
            self._wanted = self.scorer.draw()
            self._parts = PartFolder(folder, job.identity(), self.scorer.schema)
            self.pending = self._parts.find_pending(self._wanted, self.scorer.have_changed, "reason", *_KEPT_FOR)
        except (OSError, ValueError) as error:
            raise ScoringError(str(error)) from error
        self.part_rows = min(self.scorer.rows.block_rows, choose_size(len(self._wanted)))

    def score(self, load: Load, engine: Engine, label: str) -> None:
        self.seconds = run_parts(self._parts, self.pending, load, self.part_rows, engine, label=label, unit="row")

    def finish(self) -> Summary:
        """Make one table of the records of all processes, and write `summary.json` with what it depends on."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        folder, schema = self._folder, self.scorer.schema
        # Of the parts that other processes wrote as well.
        names = [name for name in schema.names[1:] if name not in _KEPT_FOR]
        found = PartFolder(folder, self._job.identity(), schema).read(names)
        table = found or schema.empty_table().drop_columns(list(_KEPT_FOR))
        table = table.take(np.argsort(table["item"].to_numpy()))
        table = table.filter(pc.is_in(table["item"], pa.array(self._wanted, pa.int64())))
        if num_missing := len(self._wanted) - table.num_rows:
            raise ScoringError(f"{folder}: {num_missing} rows have no result; run the same command again.")
        table = table.rename_columns(["row", *table.column_names[1:]])
        scored = table.filter(pc.is_null(table["reason"])).drop_columns("reason")
        ids = [name for name in ID_COLUMNS if name in table.column_names]
        skipped = table.filter(pc.is_valid(table["reason"])).select(["row", "reason", *ids]).to_pylist()
        # Each row is in one of these files, in the order of the rows.
        with replace_atomically(folder / "scores.parquet") as temporary:
            pq.write_table(scored, temporary)
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in skipped)
        write_file(folder / "skipped.jsonl", "".join(lines))
        summary = _summarise(scored, skipped, set(self.pending), self.seconds)
        rate = {"real_time_factor": summary.real_time_factor}
        write_provenance(folder / "summary.json", summary=asdict(summary) | rate, job=self._job.describe_settings())
        if not summary.num_scored:
            reason = skipped[0]["reason"].rstrip(".")
            raise ScoringError(
                f"none of {summary.num_rows} rows could be scored; the first: {reason}; {folder / 'skipped.jsonl'} "
                "has all reasons."
            )
        return summary


def _summarise(scored: pa.Table, skipped: Records, new: set[int], seconds: float) -> Summary:
    rewards = {name: scored[name].to_numpy() for name in (*SIDES, "margin", "reward") if name in scored.column_names}
    margins = rewards.get("margin")
    is_new = np.fromiter((row in new for row in scored["row"].to_pylist()), dtype=np.bool_, count=len(scored))
    heard_s = scored["heard_s"].to_numpy()
    silent = [
        f"row {row} {turn}"
        for row, turns in zip(scored["row"].to_pylist(), scored["silent_turns"].to_pylist(), strict=True)
        for turn in turns
    ]
    return Summary(
        num_rows=len(scored) + len(skipped),
        num_scored=len(scored),
        num_skipped=len(skipped),
        num_cut=int(scored["num_cut"].to_numpy().sum()),
        given_s=float(scored["given_s"].to_numpy().sum()),
        audio_s=float(heard_s.sum()),
        num_new=int(is_new.sum()),
        new_audio_s=float(heard_s[is_new].sum()),
        seconds=seconds,
        rewards={name: _describe_values(values) for name, values in rewards.items()} if len(scored) else {},
        num_right=None if margins is None else int((margins > 0).sum()),
        num_ties=None if margins is None else int((margins == 0).sum()),
        num_silent=len(silent),
        silent_turns=silent[:_NUM_REASONS],
        reasons={record["row"]: record["reason"] for record in skipped[:_NUM_REASONS]},
    )


def _describe_values(values: np.ndarray) -> dict[str, float]:
    quantiles = {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
    return {"mean": float(values.mean()), **quantiles}
