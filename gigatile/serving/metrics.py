"""Metrics for Prometheus."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gigatile.serving.registry import ModelRegistry

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ServerMetrics:
    """The metrics of a server.

    Attributes:
        registry: for `prometheus_client.generate_latest`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        route = ("method", "route", "status")
        self._requests = Counter(
            "gigatile_requests", "Requests by route and status", route, registry=self.registry
        )
        self._seconds = Histogram(
            "gigatile_request_seconds",
            "Time from the headers of a request to the end of its answer",
            route[:2],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._batches = Histogram(
            "gigatile_batch_tiles",
            "Tiles of each batch",
            ("model", "version"),
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
            registry=self.registry,
        )
        self._open = Gauge(
            "gigatile_requests_in_flight", "Requests without an answer", registry=self.registry
        )

    def watch(self, models: ModelRegistry) -> None:
        """Add what is known about the models, and the lengths of their queues."""
        labels = ("model", "version")
        info = Gauge("gigatile_model", "Loaded models", (*labels, "task"), registry=self.registry)
        waiting = Gauge("gigatile_waiting_tiles", "Tiles in queues", labels, registry=self.registry)
        for model in models.models:
            manifest = model.bundle.manifest
            info.labels(model.name, str(model.version), manifest.task).set(1)
            if model.tiles is not None:
                queue = waiting.labels(model.name, str(model.version))
                queue.set_function(partial(getattr, model.tiles.batcher, "waiting"))

    def batch(self, name: str, version: int, tiles: int) -> None:
        """Count a batch."""
        self._batches.labels(name, str(version)).observe(tiles)

    def begin(self) -> None:
        """Count a request that has begun."""
        self._open.inc()

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self._open.dec()
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)
