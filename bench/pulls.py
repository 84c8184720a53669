"""Measures the wait for a pull of a thousand new rows: a root, a map of it, a daily window of it, by a running node.

Against the same command when there is nothing new, which is all that is not work: Python's start, the request, the
daemon's look at the chains.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from bench.machine import spent_below
from bench.measure import Row, Side, Size, seconds
from bench.node import daemon, odfctl
from chain import instant
from chain.instant import Instant
from demo.nodes import Node

ROWS: Final = 1_000
DAY: Final = 86_400
START: Final = 1_700_006_400
"""Seconds; a midnight."""
MAP: Final = "select event_time, id, upper(city) as city, value * 2 as value from x where id % 10 <> 3"
WINDOW: Final = (
    "select window.start as event_time, city, count(*) as n, max(value) as top from x"
    " group by window(event_time, '1 day'), city"
)
_SETTINGS: Final = "[engine]\nidle-seconds = 600\nquick-start = {}\n"
_ROOT: Final = """
kind: DatasetSnapshot
version: 1
content:
  name: root
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: '{}/*.csv', order: ByName}}
      read:
        kind: Csv
        header: true
        schema:
          fields:
            - {{name: event_time, type: Timestamp}}
            - {{name: id, type: Int64}}
            - {{name: city, type: String}}
            - {{name: value, type: Int64}}
      merge: {{kind: Ledger, primaryKey: [event_time, id]}}
"""
_DERIVED: Final = """
kind: DatasetSnapshot
version: 1
content:
  name: {}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: root, alias: x}}]
      transform: {{kind: Sql, engine: spark, query: "{}"}}
"""


def measure_pull(size: Size, folder: Path) -> list[Row]:
    """Measures pulls, where each day's rows are a file, and settle the day before."""
    files = folder / "files"
    files.mkdir()
    days = _days(files)
    with daemon(folder, _SETTINGS.format(str(size.quick).lower())) as node:
        _declare(node, folder, files)
        return [_measured(name, node, days, size) for name in ("root", "map", "window")]


def _measured(name: str, node: Node, days: Iterator[int], size: Size) -> Row:
    assert node.process is not None
    pid, pull = node.process.pid, odfctl(node, "-o", "json", "-q", "pull", name)
    inputs = [] if name == "root" else [odfctl(node, "pull", "root")]
    rounds, warm = size.pick(1, 25), size.pick(2, 15)
    ours, idle, used = [], [], []
    for _ in range(warm + rounds):
        next(days)
        for each in inputs:
            each()
        before = spent_below(pid)
        ours.append(seconds(lambda: _check(pull(), is_new=True)))
        used.append(spent_below(pid) - before)
        idle.append(seconds(lambda: _check(pull(), is_new=False)))
    return Row(
        name=f"pull, {name}",
        measures=f"{ROWS:,} new rows, warm",
        ours=Side(name=f"odfctl pull {name}", costs=tuple(ours[warm:])),
        peer=Side(name="the same with nothing new", costs=tuple(idle[warm:])),
        goal="< 150 ms idle",
        facts={"ms of CPU, node and engine": statistics.median(used[warm:]) * 1e3},
    )


def _check(answer: str, *, is_new: bool) -> None:
    (item,) = json.loads(answer)["items"]
    assert bool(item["records"]) == is_new, answer


def _days(files: Path) -> Iterator[int]:
    """Writes one more file each time."""
    for day in count():
        lines = ["event_time,id,city,value"]
        for number in range(ROWS):
            time = instant.render(Instant((START + day * DAY + number * DAY // ROWS) * instant.SECOND))
            lines.append(f"{time},{number},city {number % 7},{number * 3 + day}")
        (files / f"{day:06}.csv").write_text("\n".join(lines) + "\n")
        yield day


def _declare(node: Node, folder: Path, files: Path) -> None:
    manifests = {
        "root": _ROOT.format(files),
        "map": _DERIVED.format("map", MAP),
        "window": _DERIVED.format("window", WINDOW),
    }
    for name, text in manifests.items():
        path = folder / f"{name}.yaml"
        path.write_text(text)
        odfctl(node, "apply", "-f", str(path))()
