"""Score a data set on Ray: blocks of rows go through Ray Data to actors that hold a scorer each.

Only row numbers travel to the actors, which read the rows themselves, and only records travel back: memory does not
grow with the data. The driver alone writes, each block as it arrives. If the driver is killed, blocks that it has not
written are scored again. Every machine must find data, recordings and checkpoint under the same name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.common.local_ray import open_ray, require_room
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.path_sandbox import ROOTS_VARIABLE, name_roots
from sdiareward.pairs.rows import find_dialogue_columns

from .dataset import RowScorer, ScoringJob, finish, open_results
from .engine import Outcome, score_pending
from .model_spec import ModelSpec, ScoringError
from .results import Summary


if TYPE_CHECKING:
    from ray.data import Dataset

# A tenth is left for what Ray itself does.
_SHARE_OF_CPUS = 0.9
# Small enough that the actors finish at about the same time.
_BLOCKS_AN_ACTOR = 4


class BlockScorer:
    def __init__(self, job: ScoringJob, device: str | None, num_threads: int | None, audio_roots: str | None = None):
        if audio_roots is not None:
            os.environ[ROOTS_VARIABLE] = audio_roots
        if num_threads is not None:
            import torch

            torch.set_num_threads(num_threads)
        rows = job.open_rows()
        sides = find_dialogue_columns(rows.features, job.dataset)
        self._scorer = RowScorer(job.load_scorer(device), job, rows, sides)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"outcomes": [self._score(np.asarray(numbers)) for numbers in batch["numbers"]]}

    def _score(self, numbers: np.ndarray) -> str:
        return json.dumps(list(self._scorer.score_block(self._scorer.read(numbers))), default=asdict)


def score_on_ray(
    job: ScoringJob, folder: Path, *, num_actors: int | None = None, gpus_per_actor: float | None = None
) -> Summary:
    """Score a data set on the Ray cluster that `RAY_ADDRESS` names, or on one that is started on this machine."""
    rows, results = open_results(job, folder)
    start = time.perf_counter()
    pending = results.find_pending()
    if pending.size:
        with open_ray(ScoringError, "local"):
            scorer = RayScorer(job, rows.block_rows, _divide(num_actors, gpus_per_actor, pending.size, job.model))
            log = results.open_log(pending)
            score_pending(pending.tolist(), lambda: scorer, log, label=scorer.label, unit="row")
    return finish(job, rows, results, time.perf_counter() - start)


@dataclass(frozen=True)
class _Resources:
    num_actors: int
    num_gpus: float  # Of each actor.
    num_cpus: float
    num_threads: int | None


def _divide(num_actors: int | None, gpus_per_actor: float | None, num_rows: int, model: ModelSpec) -> _Resources:
    """Return what each actor gets; more actors than rows are not started, more than Ray has room for are refused."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    num_gpus = sum(node.get("GPU", 0.0) for node in nodes)
    of_each = gpus_per_actor if gpus_per_actor is not None else float(num_gpus > 0)
    cpus = [node["CPU"] for node in nodes if "CPU" in node]
    num_actors = num_actors or (max(min(int(num_gpus / of_each), int(sum(cpus))), 1) if of_each else 1)
    num_actors = min(num_actors, num_rows)
    # On a GPU the weights are only read through the memory of the machine.
    num_bytes = 0 if of_each else model.weight_bytes
    require_room(ScoringError, num_actors, "actors", num_gpus=of_each, num_bytes=num_bytes)
    whole = compute_largest_share(cpus, num_actors)
    # Ray counts in ten-thousandths.
    share = int(_SHARE_OF_CPUS * whole * 100) / 100
    if of_each:
        return _Resources(num_actors, of_each, min(share, 1.0), None)
    return _Resources(num_actors, 0.0, share, max(int(whole), 1))


def compute_largest_share(cpus: Sequence[float], num_actors: int) -> float:
    """Return the most CPUs that each of some actors can have; an actor is on one node."""
    shares = {num_cpus / count for num_cpus in set(cpus) for count in range(1, num_actors + 1)}
    # A quotient may be off by a rounding.
    fitting = (share for share in shares if sum(int(each / share + 1e-9) for each in cpus) >= num_actors)
    return max(fitting, default=0.0)


class RayScorer:
    def __init__(self, job: ScoringJob, block_rows: int, resources: _Resources):
        self._job = job
        self._block_rows = block_rows
        self._resources = resources
        self.label = f"{resources.num_actors} actors"
        self.audio_s = 0.0

    def score(self, items: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
        import ray

        try:
            for line in self._map(items).iter_rows():
                for row, found in json.loads(line["outcomes"]):
                    self.audio_s += found.get("audio_s", 0.0)
                    yield row, Skipped(**found) if "reason" in found else found
        except ray.exceptions.RayError as error:
            # An actor's own error stands in the text that Ray hands on, after its causes.
            _, name, reason = str(error).rpartition(f"{ScoringError.__name__}: ")
            if name:
                reason = reason.partition("\n")[0].strip()
                raise ScoringError(reason) from error
            raise

    def _map(self, items: Sequence[int]) -> Dataset:
        import ray

        resources = self._resources
        device = None if resources.num_gpus else "cpu"
        in_equal_parts = -(-len(items) // (_BLOCKS_AN_ACTOR * resources.num_actors))
        size = min(self._block_rows, in_equal_parts)
        blocks = [{"numbers": list(items[start : start + size])} for start in range(0, len(items), size)]
        return ray.data.from_items(blocks, override_num_blocks=len(blocks)).map_batches(
            BlockScorer,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=resources.num_actors),
            fn_constructor_args=(_from_anywhere(self._job), device, resources.num_threads, _find_audio_roots()),
            num_cpus=resources.num_cpus,
            num_gpus=resources.num_gpus,
        )


def _from_anywhere(job: ScoringJob) -> ScoringJob:
    """Return the job with absolute paths, for actors work in another directory."""
    model, data = (os.path.abspath(name) if os.path.exists(name) else name for name in (job.model.name, job.dataset))
    root = job.audio_root or (None if _find_audio_roots() else os.curdir)
    root = root and os.path.abspath(root)
    return replace(job, model=replace(job.model, name=model), dataset=data, audio_root=root)


def _find_audio_roots() -> str | None:
    """Return the folders of `SDIAREWARD_AUDIO_ROOT` as absolute paths; None without any."""
    if not os.environ.get(ROOTS_VARIABLE):
        return None
    return os.pathsep.join(str(root.expanduser().absolute()) for root in name_roots(None))
