"""Measures the wait for a pull of a thousand new rows: a root, a map of it, a daily window of it, by a running node.

Against the same command when there is nothing new, which is all that is not work: Python's start, the request, the
daemon's look at the chains. And what the same pull spends its time on beside the engine.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Final

from bench.machine import spent_below
from bench.measure import Row, Side, Size, seconds
from bench.node import daemon, odfctl
from bench.probes import PARTS, WHOLE
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


REST: Final = "the rest"
_SAID: Final[Mapping[str, str]] = {
    "odfctl": "Python's start, the request, the task, the answer",
    "plan": "the state of the chains, and the engine's request",
    "fetch": "the look at the source, and a copy of its new file",
    "preparation": "checks of the copy",
    "links": "folders of the engine, hard links to its inputs, copies of its outputs",
    "engine": "gRPC, and the engine's own work",
    "hashes": "both hashes and the schema of what it wrote",
    "objects": "the slice becomes an object, synced",
    "draft": "the block, its rules and its tree",
    "database": "SQLite's transaction, synced",
    "signature": "of the head, in a journal that is synced",
    "announcement": "the record of the head, and who is told",
    REST: "changes of threads, locks and reports",
}
"""Parts of a pull, in words."""


def measure_parts(size: Size, folder: Path) -> list[Row]:
    """Measures the parts of such a pull in turn, each without those inside it, against the whole command."""
    files, spent = folder / "files", folder / "parts"
    files.mkdir()
    days = _days(files)
    program = (sys.executable, "-m", "bench.probes", str(spent))
    with daemon(folder, _SETTINGS.format(str(size.quick).lower()), program=program) as node:
        _declare(node, folder, files)
        return [row for name in ("root", "map", "window") for row in _parts(name, node, days, size, spent)]


def _parts(name: str, node: Node, days: Iterator[int], size: Size, spent: Path) -> list[Row]:
    pull = odfctl(node, "-o", "json", "-q", "pull", name)
    inputs = [] if name == "root" else [odfctl(node, "pull", "root")]
    rounds, warm = size.pick(1, 25), size.pick(2, 15)
    whole: list[float] = []
    costs: dict[str, list[float]] = defaultdict(list)
    for _ in range(warm + rounds):
        next(days)
        for each in inputs:
            each()
        spent.write_bytes(b"")
        whole.append(seconds(lambda: _check(pull(), is_new=True)))
        parts = _read_parts(spent)
        pulled = sum(parts.values())
        parts[REST] = parts.pop(WHOLE)
        parts["odfctl"] = whole[-1] - pulled
        for part in _SAID:
            costs[part].append(parts.get(part, 0.0))
    peer = Side(name=f"odfctl pull {name}", costs=tuple(whole[warm:]))
    return [
        Row(name=f"{name}: {part}", measures=said, ours=Side(name=part, costs=tuple(costs[part][warm:])), peer=peer)
        for part, said in _SAID.items()
        if any(costs[part])
    ]


def _read_parts(file: Path) -> dict[str, float]:
    """Returns seconds by part."""
    found = dict.fromkeys(PARTS, 0.0)
    for line in file.read_text().splitlines():
        part, _, nanoseconds = line.partition("\t")
        found[part] += int(nanoseconds) / 1e9
    return found


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
