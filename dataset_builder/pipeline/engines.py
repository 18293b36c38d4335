"""Run the stages over many recordings: `datasets` with processes on one machine, or Ray Data on one or many.

Both run the same stages on the same rows, so their output is identical; all machines must see the work directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

from sdiareward.common.local_ray import open_ray, require_room

from .jobs import COMPONENT_FAILURE, Job
from .settings import ComponentError, PipelineSettings
from .stages import STAGES, Stage


Engine = Literal["datasets", "ray"]
Rows = list[dict[str, str]]


def require_engine(engine: str, num_workers: int) -> None:
    if engine not in get_args(Engine):
        raise ValueError(f"engine is {engine!r}; it must be 'datasets' or 'ray'.")
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; it must be at least 1.")


def run_stages(
    jobs: Sequence[Job],
    settings: PipelineSettings,
    engine: Engine,
    num_workers: int,
    stages: Sequence[type[Stage]] = STAGES,
) -> list[Job]:
    """Run every stage on every job; return the jobs in the same order."""
    if not jobs:
        return []
    rows = [job.to_row() for job in jobs]
    run = _run_with_datasets if engine == "datasets" else _run_with_ray
    done = [Job.from_row(row) for row in run(rows, settings, num_workers, stages)]
    for job in done:
        if job.failure and job.failure["kind"] == COMPONENT_FAILURE:
            raise ComponentError(job.failure["reason"])
    return done


def _run_with_datasets(
    rows: Rows, settings: PipelineSettings, num_workers: int, stages: Sequence[type[Stage]]
) -> Rows:
    import datasets

    table = datasets.Dataset.from_list(rows)
    num_proc = min(num_workers, len(rows))
    with _clean_processes():
        for stage in stages:
            step = stage(settings)
            # The stages cache their results; with a cache of rows they would not notice a missing file.
            table = table.map(
                _OneThread(step) if num_proc > 1 and step.has_model else step,
                num_proc=num_proc if num_proc > 1 else None,
                load_from_cache_file=False,
                keep_in_memory=num_proc == 1,
                writer_batch_size=1,
                desc=stage.name,
            )
    return table.to_list()


class _OneThread:
    """A stage in a worker process, with one thread for torch: the other workers need the other cores.

    With a thread per core in every worker, two workers on two cores diarized at a twentieth of the speed. Ray limits
    the threads of its actors itself.
    """

    def __init__(self, stage: Stage):
        self._stage = stage

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        import torch

        torch.set_num_threads(1)
        return self._stage(row)


@contextmanager
def _clean_processes() -> Iterator[None]:
    """Start the workers of `datasets` from a fresh process: a fork of one that ran torch or CUDA hangs."""
    import multiprocess
    import multiprocess.forkserver

    before = multiprocess.get_start_method(allow_none=True)
    multiprocess.set_start_method("forkserver" if os.name == "posix" else "spawn", force=True)
    # Imported once by the process that the workers of all stages are forked from.
    multiprocess.set_forkserver_preload(["datasets", "torch", Stage.__module__])
    try:
        yield
    finally:
        multiprocess.set_start_method(before, force=True)
        # It would live, with everything preloaded, as long as this process, and keep its output open.
        multiprocess.forkserver._forkserver._stop()


def _run_with_ray(rows: Rows, settings: PipelineSettings, num_workers: int, stages: Sequence[type[Stage]]) -> Rows:
    with open_ray(ComponentError, "datasets", num_workers, show_progress=True):
        import ray

        data: ray.data.Dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        share = _compute_cpus_of_a_copy(settings, stages)
        for stage in stages:
            placed = settings.get_stage(stage.name)
            step = stage(settings)
            # Of a class Ray makes actors, which keep their model; a method runs as a task. `map` is annotated for
            # functions only.
            function: Any = stage if step.has_model else step.__call__
            data = data.map(
                function,
                fn_constructor_args=(settings,) if step.has_model else None,
                concurrency=placed.concurrency,
                num_cpus=share,
                num_gpus=placed.num_gpus,
            )
        return [{"job": row["job"]} for row in data.take_all()]


def _compute_cpus_of_a_copy(settings: PipelineSettings, stages: Sequence[type[Stage]]) -> float:
    """Return the CPUs that one copy asks for, so that the actors of all stages live at once on what there is."""
    import ray

    placed = [settings.get_stage(stage.name) for stage in stages]
    for stage in placed:
        require_room(
            ComponentError, stage.concurrency, f"copies of {stage.name} (concurrency)", num_gpus=stage.num_gpus
        )
    copies = sum(stage.concurrency for stage in placed)
    # A tenth is left for Ray's own tasks; Ray counts in ten-thousandths.
    share = min(1.0, 0.9 * ray.cluster_resources().get("CPU", 1.0) / copies)
    return int(share * 100) / 100
