"""Writes the page of metrics from their table and the list of events, for ``make reference``."""

from __future__ import annotations

from collections.abc import Iterator

from odfd.obs.events import EVENT_KINDS
from odfd.obs.metric_table import METRICS, PROCESS, Metric

_HEAD = """# Metrics, health and events

Look up what a node reports to a monitoring system: metrics, health checks and events.

{made}

With `metrics.listen = ["127.0.0.1:9464"]` a node answers at that address, on its own machine only:

| path | answer |
|---|---|
| `/metrics` | the metrics below, in the format of Prometheus |
| `/livez` | 200 while the event loop runs; restart the node when there is no answer |
| `/readyz` | 200 when all parts run, and database and disk are in order; otherwise 503, with the reasons |

A line of `/readyz` that begins with `without` names an optional dependency that does not answer, such as a Kubo. The
node is ready, but can do less.

A scrape reads counters and computes nothing, so its cost does not grow with the number of datasets. The node counts
datasets, mirrors and flows every 15 seconds; `odfd_survey_age_seconds` is the age of the last count.

Every value of every label is listed here or made by the node. No dataset, peer, key or address is a label, so other
nodes cannot add series. For one dataset use `odfctl get`, `odfctl describe` and `odfctl watch`.

[The dashboard](../../examples/metrics/dashboard.json) for Grafana and
[the alerts](../../examples/metrics/alerts.yaml) for Prometheus use these metrics.

Every user of the machine can read the metrics. To open them to other machines, put a proxy with TLS and a password in
front.

## Metrics

| name | type | unit | labels | meaning |
|---|---|---|---|---|"""
_PROCESS = """
The client library of Prometheus adds figures of the process:

| name | type | meaning |
|---|---|---|"""
_EVENTS = """
## Events

`odfctl watch` shows events as they happen, `odfctl watch KIND` those of a kind or of a family, such as `mirror`;
`odfd_events_total` counts them.

| kind | when |
|---|---|"""


def document(made: str) -> str:
    """Formats the whole page; ``made`` says how."""
    return "\n".join([*_lines(made), ""])


def _lines(made: str) -> Iterator[str]:
    yield _HEAD.replace("{made}", made)
    yield from map(_row, METRICS)
    yield _PROCESS
    yield from (f"| `{name}` | {kind} | {text} |" for name, kind, text in PROCESS)
    yield _EVENTS
    yield from (f"| {kind} | {text} |" for kind, text in EVENT_KINDS.items())


def _row(metric: Metric) -> str:
    labels = "; ".join(_label(name, values) for name, values in metric.labels.items())
    return f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.help} |"


def _label(name: str, values: tuple[str, ...]) -> str:
    if name == "kind" and set(EVENT_KINDS) <= set(values):
        return "`kind`: see below"
    return f"`{name}`: {', '.join(values)}" if values else f"`{name}`"
