"""Start the replicas of the model on Ray Serve and send requests to them.

The process of the server holds the handle of Ray Serve, without Ray's HTTP proxy: so a body is limited before it is
copied, a request whose replica died is sent to another one, and draining waits for every answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from sdiareward.common.local_ray import count_fitting, joins_cluster
from sdiareward.common.user_errors import UserError
from sdiareward.scoring.model_spec import ScoringError

from .settings import Replicas, ServiceSettings


if TYPE_CHECKING:
    from .metrics import Metrics
    from .replica import ModelFacts, ScoreJob, ScoreResult

logger = logging.getLogger(__name__)

# Several batches may wait at a replica, so that it is never idle; other requests wait in the server.
_BATCHES_AT_A_REPLICA = 4
_MAX_TRIES = 3
_HEALTH_CHECK_PERIOD_S = 2.0
_STATUS_AGE_S = 1.0
# Read when Ray is imported. By default it reports its usage, and its workers have a low priority.
_RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
_OLDEST_RAY = Version("2.60")
_QUIET = {"log_level": "WARNING", "enable_access_log": False}


class UnavailableError(RuntimeError):
    """Raised when a request cannot be scored now but can be later; its message is for the client."""


class ModelCluster:
    def __init__(self, handle: Any, name: str, settings: ServiceSettings):
        self._handle = handle
        self._name = name
        self._settings = settings
        self._replicas = (0.0, 0)
        self.facts: ModelFacts = handle.read_facts.remote().result(timeout_s=settings.limits.request_timeout_s)

    async def score(self, job: ScoreJob, metrics: Metrics) -> ScoreResult:
        from ray.exceptions import RayActorError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        try:
            async with asyncio.timeout(self._settings.limits.request_timeout_s):
                for _ in range(_MAX_TRIES):
                    try:
                        return await self._handle.score.remote(job)
                    except RayActorError:
                        # A reward depends on the dialogue alone, so a retry is safe.
                        metrics.retries.inc()
        except BackPressureError:
            raise UnavailableError("too many requests wait for the model.") from None
        except DeploymentUnavailableError:
            raise UnavailableError("no replica of the model can answer.") from None
        except TimeoutError:
            waited_s = self._settings.limits.request_timeout_s
            raise UnavailableError(f"the model did not answer within {waited_s:g} s.") from None
        raise UnavailableError(f"the model died {_MAX_TRIES} times on this request.")

    async def num_replicas(self) -> int:
        """Return the number of replicas that can answer, cached for a second."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._replicas[0] > _STATUS_AGE_S:
            found = await asyncio.to_thread(self._count_replicas)
            self._replicas = (loop.time(), found)
        return self._replicas[1]

    def _count_replicas(self) -> int:
        from ray import serve
        from ray.serve.schema import ReplicaState

        application = serve.status().applications.get(self._name)
        deployments = application.deployments.values() if application else ()
        return sum(deployment.replica_states.get(ReplicaState.RUNNING, 0) for deployment in deployments)


@contextmanager
def model_cluster(settings: ServiceSettings) -> Iterator[ModelCluster]:
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve

    if Version(ray.__version__) < _OLDEST_RAY:
        raise UserError(f"Ray is {ray.__version__}; its ports need a token: pip install 'ray[serve]>={_OLDEST_RAY}'.")
    is_started_here = not ray.is_initialized()
    if is_started_here:
        _start_ray(settings)
    name = f"sdiareward-{socket.gethostname()}-{settings.port}"
    try:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled", logging_config=_QUIET)
        yield ModelCluster(_deploy(settings, name), name, settings)
    finally:
        # On a Ray cluster that outlives this process, the replicas would otherwise keep running.
        if ray.is_initialized() and (joins_cluster() or not is_started_here):
            serve.delete(name)
        if is_started_here:
            ray.shutdown()


def _start_ray(settings: ServiceSettings) -> None:
    import ray

    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if not joins_cluster():
        # Otherwise Ray would join any cluster that runs on this machine.
        options["address"] = "local"
        options["object_store_memory"] = settings.replicas.object_store_bytes
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises this class when one of its processes does not start.
        reason = str(error).strip().splitlines()[0].rstrip(".")
        if joins_cluster():
            raise UserError(
                f"the Ray cluster at {os.environ['RAY_ADDRESS']} cannot be joined ({reason}); check that it runs, "
                "that its version of Ray is the same, and that RAY_AUTH_TOKEN is its token if it needs one."
            ) from error
        raise ScoringError(f"Ray cannot be started ({reason}).") from error
    # Ray's handler prints the stack and aborts; instead end as after Ctrl-C, with the cluster shut down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _deploy(settings: ServiceSettings, name: str) -> Any:
    """Start the replicas, wait until they have loaded the model, and return the handle."""
    from ray import serve

    from .replica import deployment

    replicas = settings.replicas
    num_gpus = _count_gpus_per_replica(settings)
    _require_room(replicas, num_gpus, 0 if num_gpus else settings.model.weight_bytes)
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": replicas.num_cpus, "num_gpus": num_gpus},
        "max_ongoing_requests": _BATCHES_AT_A_REPLICA * replicas.max_batch_size,
        "max_queued_requests": settings.limits.max_queued,
        "user_config": {"max_batch_size": replicas.max_batch_size, "batch_wait_s": replicas.batch_wait_s},
        "health_check_period_s": _HEALTH_CHECK_PERIOD_S,
        "graceful_shutdown_timeout_s": 2.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        # A second attempt to load a checkpoint fails too.
        "max_constructor_retry_count": 1,
    }
    if replicas.maximum is None:
        options["num_replicas"] = replicas.minimum
    else:
        options["autoscaling_config"] = {
            "min_replicas": replicas.minimum,
            "max_replicas": replicas.maximum,
            "target_ongoing_requests": 2 * replicas.max_batch_size,
        }
    threads = replicas.num_threads
    if threads is None and not num_gpus:
        threads = max((os.cpu_count() or 1) // (replicas.maximum or replicas.minimum), 1)
    try:
        return serve.run(
            deployment.options(**options).bind(_with_absolute_path(settings), None if num_gpus else "cpu", threads),
            name=name,
            route_prefix=None,
            logging_config=_QUIET,
        )
    except RuntimeError as error:
        raise ScoringError(_find_reason(name, str(error))) from error


def _count_gpus_per_replica(settings: ServiceSettings) -> float:
    import ray

    if settings.replicas.num_gpus is not None:
        return settings.replicas.num_gpus
    return float(ray.cluster_resources().get("GPU", 0.0) > 0 and settings.model.device != "cpu")


def _require_room(replicas: Replicas, num_gpus: float, num_bytes: int = 0) -> None:
    """Raise if Ray is too small for the replicas, because it would wait for more nodes forever, silently."""
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    # A cluster may grow.
    wanted = replicas.minimum if joins_cluster() else replicas.maximum or replicas.minimum
    rooms = (("GPU", "GPUs", num_gpus), ("CPU", "cores", replicas.num_cpus), ("memory", "bytes of memory", num_bytes))
    for kind, name, each in rooms:
        if count_fitting(kind, total.get(kind, 0.0), each) < wanted:
            raise ScoringError(
                f"{wanted} replicas with {each:g} {name} each do not fit: Ray has {total.get(kind, 0.0):g}; "
                "ask for fewer replicas, or for less per replica."
            )
        if joins_cluster() and count_fitting(kind, free.get(kind, 0.0), each) < replicas.minimum:
            logger.warning("Ray has %g %s free; waiting for other jobs.", free.get(kind, 0.0), name)


def _with_absolute_path(settings: ServiceSettings) -> Any:
    """Return the model with an absolute path, because replicas run in another directory."""
    name = settings.model.name
    return replace(settings.model, name=os.path.abspath(name) if os.path.exists(name) else name)


def _find_reason(name: str, message: str) -> str:
    from ray import serve

    application = serve.status().applications.get(name)
    deployments = application.deployments.values() if application else []
    for text in (message, *(deployment.message for deployment in deployments)):
        _, found, reason = text.partition(f"{ScoringError.__name__}: ")
        if found:
            return reason.splitlines()[0]
    return f"the model cannot be deployed ({message.splitlines()[0]}); see the logs of Ray."
