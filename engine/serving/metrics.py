"""Prometheus metrics of the server, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.engine.messages import Gauges

OUTCOMES = ("stop", "length", "disconnected", "error", "unavailable", "refused")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class EngineGauges(Collector):
    """What rank 0 last reported, read when scraped; nothing before its first report."""

    def __init__(self, latest: Callable[[], Gauges | None]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        gauges = self._latest()
        if gauges is not None:
            yield CounterMetricFamily("headway_passes", "Passes of rank 0.", gauges.passes)
            yield CounterMetricFamily("headway_voids", "Passes declared void.", gauges.voids)
            yield CounterMetricFamily("headway_preemptions", "Requests preempted.", gauges.preemptions)
            yield GaugeMetricFamily("headway_requests_waiting", "Requests not admitted yet.", gauges.waiting)
            yield GaugeMetricFamily("headway_requests_running", "Requests in a slot.", gauges.running)
            yield GaugeMetricFamily("headway_kv_pages_free", "KV cache pages that are free.", gauges.free_pages)
            yield GaugeMetricFamily("headway_kv_pages", "KV cache pages in all.", gauges.total_pages)


class Metrics:
    """The metrics of one server. `latest` gives rank 0's last gauges. Times are in seconds."""

    def __init__(self, latest: Callable[[], Gauges | None]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineGauges(latest))
        self._outcomes = Counter(
            "headway_requests",
            "Requests by outcome; each choice counts, and a refused HTTP request counts once.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)
        self.prompt_tokens = Counter(
            "headway_prompt_tokens", "Tokens of prompts sent to the engine.", registry=self.registry
        )
        self.generated_tokens = Counter("headway_generated_tokens", "Tokens generated.", registry=self.registry)
        self.time_to_first_token = Histogram(
            "headway_time_to_first_token_seconds",
            "From the submission of a choice to its first token.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.inter_token_latency = Histogram(
            "headway_inter_token_latency_seconds",
            "Between reports of tokens of a choice, after the first.",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def ended(self, outcome: str) -> None:
        """Counts a choice, or a refused request, with one of `OUTCOMES`."""
        self._outcomes.labels(outcome).inc()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
