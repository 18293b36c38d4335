"""The metrics of the server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Metrics of one server; clients cannot add values of labels."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter("sdiareward_requests", "Answers.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "sdiareward_request_seconds", "Time to answer.", ["path"], buckets=_SECONDS, registry=registry
        )
        self.in_flight = Gauge("sdiareward_requests_in_flight", "Requests in flight.", registry=registry)
        self.dialogues = Counter("sdiareward_dialogues", "Dialogues.", ["outcome"], registry=registry)
        self.audio_seconds = Counter("sdiareward_audio_seconds", "Seconds of audio scored.", registry=registry)
        self.batch_requests = Histogram(
            "sdiareward_batch_requests", "Requests scored together.", buckets=_SIZES, registry=registry
        )
        self.retries = Counter("sdiareward_retries", "Requests sent to another replica.", registry=registry)
        self.replicas = Gauge("sdiareward_replicas", "Replicas that can answer.", registry=registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)
