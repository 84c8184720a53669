"""Counts events of a node for its metrics endpoint. Made with the daemon; safe from any thread.

Counting costs a lock and an addition, whether or not anybody reads. A label takes the values that ``metric_table``
lists; every other value counts as ``other``, and a metric or label that is not declared there raises, as it is a bug.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from odfd.obs.events import Event
from odfd.obs.metric_table import BY_NAME, METRICS, OTHER, Metric, MetricKind
from odfd.runtime.tasks import Task

Labels: TypeAlias = tuple[str, ...]


class MetricSample(NamedTuple):
    """A value of a counter or a gauge, or the counts and the sum of a histogram, with values of its labels."""

    metric: Metric
    labels: Labels
    value: float
    counts: tuple[int, ...] = ()
    """For a histogram: counts of its buckets and above them; ``value`` is then the sum."""


class NodeMeter:
    """The counters and histograms of one node. Series in the table begin at zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], tuple[list[int], float]] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = name, labels_of(BY_NAME[name], labels)
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        metric = BY_NAME[name]
        key, place = (name, labels_of(metric, labels)), bisect_left(metric.buckets, value)
        with self._lock:
            counts, total = self._histograms.get(key) or ([0] * (len(metric.buckets) + 1), 0.0)
            counts[place] += 1
            self._histograms[key] = counts, total + value

    def rows(self, work: str, counts: object) -> None:
        """Counts rows; ``counts`` has a number, or ``None``, for each of ``metric_table.FATES``."""
        for fate in BY_NAME["odfd_rows_total"].labels["fate"]:
            if number := getattr(counts, fate):
                self.count("odfd_rows_total", number, work=work, fate=fate)

    def count_commit(self, work: str, blocks: int, records: int) -> None:
        """Counts a pull or a push that appended something."""
        self.count("odfd_transactions_total", work=work)
        self.count("odfd_blocks_total", blocks, work=work)
        self.count("odfd_records_total", records, work=work)

    def count_end(self, task: Task) -> None:
        """Counts the end of a long operation, and its duration."""
        self.count("odfd_tasks_total", kind=task.kind, outcome=task.state.value)
        if task.started_at is not None and task.finished_at is not None:
            seconds = (task.finished_at - task.started_at) / 1e9
            self.observe("odfd_task_duration_seconds", max(0.0, seconds), kind=task.kind)

    def samples(self, pulled: frozenset[str]) -> Iterator[MetricSample]:
        """Yields every counter and histogram except those in ``pulled``, which are read elsewhere on a scrape."""
        with self._lock:
            counters = dict(self._counters)
            histograms = {key: (tuple(counts), total) for key, (counts, total) in self._histograms.items()}
        for metric in METRICS:
            if metric.name in pulled or metric.kind is MetricKind.GAUGE:
                continue
            for labels in itertools.product(*metric.labels.values()):
                key = metric.name, labels
                if metric.kind is MetricKind.COUNTER:
                    yield MetricSample(metric, labels, counters.get(key, 0))
                else:
                    counts, total = histograms.get(key, ((0,) * (len(metric.buckets) + 1), 0.0))
                    yield MetricSample(metric, labels, total, counts)


def labels_of(metric: Metric, labels: Mapping[str, str]) -> Labels:
    """Returns values in the order of the table. Raises KeyError for a missing label, ValueError for an unlisted one."""
    if labels.keys() != metric.labels.keys():
        raise KeyError(f"{metric.name} has the labels {', '.join(metric.labels) or 'none'}, not {', '.join(labels)}")
    return tuple(_value(metric, label, labels[label]) for label in metric.labels)


def _value(metric: Metric, label: str, value: str) -> str:
    allowed = metric.labels[label]
    if not allowed or value in allowed:
        return value
    if OTHER in allowed:
        return OTHER
    raise ValueError(f"{metric.name} has no {label} {value!r}")


_VERDICTS: Final = BY_NAME["odfd_verdicts_total"].labels["result"]
_CONTRADICTIONS: Final = {
    "dataset.forked": "dataset",
    "authority.forked": "authority",
    "validator.suspended": "validator",
    "head.refused": "head",
}


def counted_by(meter: NodeMeter) -> Callable[[Event], None]:
    """Returns the function that an event log calls with each event."""

    def count(event: Event) -> None:
        meter.count("odfd_events_total", kind=event.kind)
        family, _, happening = event.kind.partition(".")
        if happening == "heard":
            meter.count("odfd_statements_heard_total", kind=family)
        elif family == "verdict" and happening in _VERDICTS:
            meter.count("odfd_verdicts_total", result=happening)
        elif event.kind in _CONTRADICTIONS:
            meter.count("odfd_contradictions_total", kind=_CONTRADICTIONS[event.kind])
        elif event.kind == "mirror.synced":
            meter.count("odfd_mirror_blocks_total", _number(event, "blocks"))
        elif event.kind == "objects.collected":
            meter.count("odfd_objects_collected_total", _number(event, "objects"))
            meter.count("odfd_collected_bytes_total", _number(event, "bytes"))
        elif event.kind == "damage.found":
            meter.count("odfd_damage_total")

    return count


def _number(event: Event, name: str) -> int:
    value = event.data.get(name, 0)
    return value if isinstance(value, int) else 0
