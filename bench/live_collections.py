"""Measures collections at a running node: captured bytes, how soon a subscriber has a row, and a handover.

The handover is of two renditions with the same rows, and is measured at a reader that crosses it.
"""

from __future__ import annotations

import datetime
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv

from bench.machine import spent_below
from bench.measure import Row, Side, Size
from bench.node import TREE, daemon, odfctl
from demo.nodes import Node

sys.path.append(str(TREE / "client"))  # a distribution of its own, which is not installed here
from odfd_client import OdfdError, Switched, connect

_SETTINGS: Final = "[engine]\nidle-seconds = 600\nquick-start = {}\n"
_ROOT: Final = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: '{files}/*.csv', order: ByName}}
      read:
        kind: Csv
        header: true
        schema:
          fields:
            - {{name: event_time, type: Timestamp}}
            - {{name: id, type: Int64}}
            - {{name: value, type: Int64}}
      merge: {{kind: Append}}
"""
_START: Final = 1_700_000_000
_GOAL_SUBSCRIBE: Final = 0.020
_GOAL_PAUSE: Final = 0.050
_PATIENCE: Final = 120.0


def measure_live(size: Size, folder: Path) -> list[Row]:
    """Measures three properties of collections at one node."""
    with daemon(folder, _SETTINGS.format(str(size.quick).lower())) as node:
        return [_capture(node, size, folder), _subscribe(node, size, folder), _handover(node, size, folder)]


def _capture(node: Node, size: Size, folder: Path) -> Row:
    """Measures an ingest whose bytes are kept against the same one without, in CPU of the node and its processes."""
    rows, rounds, warm = size.pick(100, 200_000), size.pick(1, 9), size.pick(1, 3)
    kept, plain = _Root(node, folder, "kept"), _Root(node, folder, "plain")
    odfctl(node, "annotate", "dataset", "kept", "keepRaw=true")()
    costs: list[tuple[float, float]] = []
    for number in range(warm + rounds):
        costs.append((kept.pull(number, rows), plain.pull(number, rows)))
    return Row(
        name="live capture",
        measures="CPU of an ingest of a local file whose bytes are kept (keepRaw)",
        ours=Side(name="kept", costs=tuple(ours for ours, _ in costs[warm:])),
        peer=Side(name="not kept", costs=tuple(peer for _, peer in costs[warm:])),
        goal="≤ 1.15",
        facts={"rows": rows},
    )


def _subscribe(node: Node, size: Size, folder: Path) -> Row:
    """Measures the time from a commit, as the node's event tells it, until a subscriber on this machine has the row."""
    rounds, warm = size.pick(1, 25), size.pick(1, 5)
    root = _Root(node, folder, "followed")
    root.pull(0, 1)
    took = []
    with (
        _came(lambda: connect(node.socket).open("followed").subscribe(seconds=_PATIENCE)) as came,
        _events(node) as events,
    ):
        _next(came)  # the snapshot
        for number in range(1, 1 + warm + rounds):
            began = time.time()
            root.pull(number, 1)
            took.append(_next(came)[0] - _committed(events, began))
    limits = [_GOAL_SUBSCRIBE] * rounds
    return _limited("live subscribe", "from a commit to its row at a subscriber", took[warm:], limits)


def _handover(node: Node, size: Size, folder: Path) -> Row:
    """Measures the time that a reader waits from a command to hand over, to the same rows, until it crossed."""
    rounds, rows = size.pick(2, 15), size.pick(10, 10_000)
    _Root(node, folder, "crossed").pull(0, rows)
    odfctl(node, "rendition", "create", "crossed", "--from", "snapshot")()
    client = connect(node.socket)
    took, limits = [], []
    with _came(lambda: client.open("crossed").cross(seconds=_PATIENCE)) as came:
        _next(came)
        for number in range(rounds):
            began = time.time()
            path = f"/dataset/v1alpha1/datasets/crossed/renditions/{(number + 1) % 2}/handover"
            client._transport.post(path, {})
            at, item = _next(came)
            while not isinstance(item, Switched):
                at, item = _next(came)
            assert item.changes is None or item.changes.to_arrow().num_rows == 0
            took.append(at - began)
            limits.append(max(0.0, _seconds(item.time) - began) + _GOAL_PAUSE)
    return _limited("live handover", f"a handover of {rows:,} equal rows, until a reader crossed it", took, limits)


def _limited(name: str, measures: str, took: list[float], limits: list[float]) -> Row:
    ours = Side(name="a listener of odfd_client", costs=tuple(took))
    return Row(name=name, measures=measures, ours=ours, peer=Side(name="the limit", costs=tuple(limits)), goal="≤ 1")


class _Root:
    """A root over a folder of files at a node."""

    def __init__(self, node: Node, folder: Path, name: str) -> None:
        self._files, self._pull = folder / f"{name}-files", odfctl(node, "-o", "json", "-q", "pull", name)
        self._files.mkdir()
        manifest = folder / f"{name}.yaml"
        manifest.write_text(_ROOT.format(name=name, files=self._files))
        odfctl(node, "apply", "-f", str(manifest))()
        assert node.process is not None
        self._pid = node.process.pid

    def pull(self, number: int, rows: int) -> float:
        """Pulls one more file. Returns the CPU that the node took for it."""
        ids = np.arange(number * rows, (number + 1) * rows)
        times = pa.array((_START + ids) * 1_000, pa.timestamp("ms", "UTC"))
        staged = self._files / ".staged"
        pc_csv.write_csv(pa.table({"event_time": times, "id": ids, "value": ids * 7919 % 10_007}), staged)
        staged.rename(self._files / f"{number:06}.csv")
        before = spent_below(self._pid)
        (item,) = json.loads(self._pull())["items"]
        assert item["records"] == rows, item
        return spent_below(self._pid) - before


@contextmanager
def _came(items: Callable[[], Iterator[Any]]) -> Iterator[queue.Queue[tuple[float, Any]]]:
    """Takes items in a thread; yields them with the times at which they came. The node's end ends the thread."""
    found: queue.Queue[tuple[float, Any]] = queue.Queue()

    def take() -> None:
        try:
            for item in items():
                found.put((time.time(), item))
        except OdfdError as error:
            found.put((time.time(), error))

    threading.Thread(target=take, daemon=True).start()
    yield found


def _next(came: queue.Queue[tuple[float, Any]]) -> tuple[float, Any]:
    """Returns the next item, and when it came. Raises the error that ended them."""
    at, item = came.get(timeout=_PATIENCE)
    if isinstance(item, OdfdError):
        raise item
    return at, item


@contextmanager
def _events(node: Node) -> Iterator[Any]:
    exchange = connect(node.socket)._transport.ask(
        "GET", "/resource/v1alpha1/events", {"since": 1 << 62}, patience=None
    )
    try:
        exchange.line(1 << 20)
        yield exchange
    finally:
        exchange.close()


def _committed(events: Any, began: float) -> float:
    """Returns the time of the first commit after a time; the stream begins with earlier ones that the node kept."""
    while True:
        event = json.loads(events.line(1 << 20))
        if event.get("kind") == "dataset.appended" and (at := _seconds(event["time"])) >= began:
            return at


def _seconds(said: str) -> float:
    return datetime.datetime.fromisoformat(said).timestamp()
