"""Writes ``docs/metrics.md`` from the table of metrics and the list of events: ``make metrics-page``."""

from __future__ import annotations

from collections.abc import Iterator

from odfd import output
from odfd.obs.events import EVENT_KINDS
from odfd.obs.metric_table import METRICS, PROCESS, Metric

_HEAD = """# Metrics, health and events

Set `metrics.listen = ["127.0.0.1:9464"]`, and a node answers there, on its own machine alone:

| path | answer |
|---|---|
| `/metrics` | the figures below, as Prometheus reads them |
| `/livez` | 200 while the event loop turns; restart the node when it does not |
| `/readyz` | 200 when all parts have started and database and disk are well; else 503, with what is wrong |

A scrape reads what was counted already: it costs the same with ten datasets and with a hundred thousand. Datasets,
mirrors and flows are counted every 15 seconds beside it; `odfd_survey_age_seconds` says how long ago that was. Every
value of every label is listed here or made by the node itself: no dataset, peer, key or address is ever a label, so
that no stranger can make a series. For one dataset ask `odfctl get`, `describe` and `watch`. [The
dashboard](../examples/metrics/dashboard.json) for Grafana and [the alerts](../examples/metrics/alerts.yaml) for
Prometheus show these; [Operate](operate.md) says how to set them up.

Who may connect from this machine may read. To give figures to others, put a proxy with TLS and a password before it.

This page is made of `odfd/obs/metric_table.py` and `odfd/obs/events.py` by `make metrics-page`.

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


def document() -> str:
    """Formats the whole page."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield _HEAD
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


if __name__ == "__main__":
    output.say(document().rstrip("\n"))
