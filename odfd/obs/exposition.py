"""Writes samples in the Prometheus text format, with its client library, which is imported at the first scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from odfd.obs.meter import MetricSample
from odfd.obs.metric_table import METRICS, Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_SERIES: Final = 2000
"""Most series of a scrape. The table can give far fewer; more is a bug, and would fill the scraper's disk."""


def exposition(samples: Iterable[MetricSample]) -> bytes:
    """Formats a scrape, with the process's own figures. Blocking: it reads /proc."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.process_collector import ProcessCollector

    found = list(samples)
    if len(found) > MAX_SERIES:
        raise ValueError(f"{len(found)} series, where {MAX_SERIES} are the most")
    registry = CollectorRegistry()
    registry.register(_Collected(found))
    ProcessCollector(registry=registry)
    return bytes(generate_latest(registry))


class _Collected:
    """Presents samples as a collector of the client library."""

    def __init__(self, samples: list[MetricSample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        by_name: dict[str, list[MetricSample]] = {}
        for sample in self._samples:
            by_name.setdefault(sample.metric.name, []).append(sample)
        for metric in METRICS:
            if metric.name in by_name:
                yield _family(metric, by_name[metric.name])


def _family(metric: Metric, samples: list[MetricSample]) -> Family:
    from prometheus_client import core

    labels = tuple(metric.labels)
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = core.HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for sample in samples:
            bounds = [*map(str, metric.buckets), "+Inf"]
            sums = list(zip(bounds, accumulate(sample.counts), strict=True))
            histogram.add_metric(sample.labels, buckets=sums, sum_value=sample.value)
        return histogram
    kind = core.CounterMetricFamily if metric.kind is MetricKind.COUNTER else core.GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=labels)
    for sample in samples:
        family.add_metric(sample.labels, sample.value)
    return family
