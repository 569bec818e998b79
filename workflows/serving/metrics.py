"""Metrics of the service, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparring.components.systems.searching import Seconds

FORMAT = "text/plain; version=0.0.4; charset=utf-8"
TIMES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Upper edges of the histograms of seconds."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Metrics:
    """Counts and histograms since the service started."""

    def __init__(self) -> None:
        self._all = CollectorRegistry()
        self._requests = Counter(
            "sparring_requests", "Requests that were answered.", ["path", "status"], registry=self._all
        )
        self._errors = Counter("sparring_errors", "Requests that failed in the service.", registry=self._all)
        self._latency = Histogram(
            "sparring_request_seconds",
            "From a request's first byte to its answer's last.",
            ["path"],
            buckets=TIMES,
            registry=self._all,
        )
        self._queries = Counter("sparring_queries", "Queries that were searched for.", ["system"], registry=self._all)
        self._sizes = Histogram(
            "sparring_batch_queries", "Queries that were searched for together.", buckets=SIZES, registry=self._all
        )
        self._parts = Histogram(
            "sparring_part_seconds",
            "The parts of a search of one or more queries, and the batches of `embed` and `rerank`.",
            ["part"],
            buckets=TIMES,
            registry=self._all,
        )
        self._texts = Counter(
            "sparring_texts",
            "Texts that were embedded, and documents that were reranked.",
            ["model"],
            registry=self._all,
        )
        self._tokens = Counter("sparring_tokens", "Tokens of these texts.", ["model"], registry=self._all)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request. `path` is one of the service's paths, so there are few."""
        self._requests.labels(path, str(status)).inc()
        self._latency.labels(path).observe(seconds)
        if status >= 500:
            self._errors.inc()

    def searched(self, system: str, queries: int, seconds: Seconds) -> None:
        """Count a search."""
        self._queries.labels(system).inc(queries)
        self._sizes.observe(queries)
        for part, value in seconds.items():
            self._parts.labels(part).observe(value)

    def read(self, model: str, texts: int, tokens: int, part: str, seconds: float) -> None:
        """Count texts that a model read by itself."""
        self._texts.labels(model).inc(texts)
        self._tokens.labels(model).inc(tokens)
        self._parts.labels(part).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._all)


def total(texts: Iterable[bytes]) -> bytes:
    """Sum the metrics of several processes, as if one process had counted.

    Counters and histograms, the only kinds here, can be summed. The times at which they were created are left out.
    """
    families: dict[str, Metric] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text.decode()):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            of_family = sums.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sample.labels.items()))
                of_family[key] = of_family.get(key, 0.0) + sample.value
    for name, family in families.items():
        for (sample_name, labels), value in sums[name].items():
            if not sample_name.endswith("_created"):
                family.add_sample(sample_name, dict(labels), value)
    registry: Any = _Collected([family for family in families.values() if family.samples])
    return generate_latest(registry)


class _Collected:
    """Metrics in the place of a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
