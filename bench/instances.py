"""Measures what a second instance costs that ingests the same source into one collection: two nodes against one.

Both run ``odfctl reclock`` of the same files. Whoever is not the first finds its own blocks at the commit point, and
then stands by while the other one goes on (docs/spec/collections.md#standby).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv

from bench.machine import spent_below
from bench.measure import Row, Side, Size
from bench.node import daemon, odfctl
from demo.nodes import Node

_TWO: Final = 2
_START: Final = 1_700_000_000
_SETTINGS: Final = "[engine]\nidle-seconds = 600\nquick-start = {}\n[policy.publish]\ndatasets = false\n"
_ROOT: Final = """
kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: 'FILES/*.csv', order: ByName}
      read:
        kind: Csv
        header: true
        schema:
          fields:
            - {name: event_time, type: Timestamp}
            - {name: id, type: Int64}
            - {name: value, type: Int64}
      merge: {kind: Append}
"""
_COUNTS: Final = ("bound", "forgotten", "written", "repeated")


class _Round:
    """What instances of one collection took and did."""

    def __init__(self, seconds: float, cpu: float, views: Sequence[dict[str, Any]]) -> None:
        self.seconds, self.cpu = seconds, cpu
        self.counts = {each: sum(view[each] for view in views) for each in _COUNTS}


class _World:
    """Two nodes that declare the same source, and a repository that both write to."""

    def __init__(self, folder: Path, nodes: Sequence[Node], files: int, rows: int) -> None:
        self._folder, self._nodes, self._files = folder, nodes, files
        self._source = folder / "source"
        self._source.mkdir()
        for number in range(files):
            ids = np.arange(number * rows, (number + 1) * rows)
            times = pa.array((_START + ids) * 1_000, pa.timestamp("ms", "UTC"))
            table = pa.table({"event_time": times, "id": ids, "value": ids * 7919 % 10_007})
            pc_csv.write_csv(table, self._source / f"{number:06}.csv")

    def round(self, name: str, count: int) -> _Round:
        """Begins a collection, and ingests all files by the first ``count`` nodes at once."""
        manifest, at = self._folder / f"{name}.yaml", f"lake-{name}"
        (self._folder / at).mkdir()
        manifest.write_text(_ROOT.replace("NAME", name).replace("FILES", str(self._source)))
        nodes = self._nodes[:count]
        for node in nodes:
            odfctl(node, "apply", "-f", str(manifest))()
            odfctl(node, "repo", "add", at, str(self._folder / at))()
        begun = json.loads(odfctl(nodes[0], "-o", "json", "reclock", name, "--at", at)())
        views: list[dict[str, Any]] = []
        ends: list[float] = []

        def ingest(node: Node) -> None:
            said = odfctl(node, "-o", "json", "-q", "reclock", name, "--at", at, "--chain", begun["chain"])()
            ends.append(time.monotonic())
            views.append(json.loads(said))

        running = [Thread(target=ingest, args=(node,)) for node in nodes]
        before, began = self._spent(), time.monotonic()
        for each in running:
            each.start()
        for each in running:
            each.join()
        found = _Round(min(ends) - began, self._spent() - before, views)
        assert (found.counts["bound"], found.counts["written"]) == (self._files, self._files), found.counts
        return found

    def _spent(self) -> float:
        return sum(spent_below(node.process.pid) for node in self._nodes if node.process is not None)


def measure_second(size: Size, folder: Path) -> list[Row]:
    """Measures two instances against one: the time until the collection has everything, and the CPU of both nodes."""
    files, rows, rounds, warm = size.pick(2, 16), size.pick(10, 20_000), size.pick(1, 5), size.pick(0, 1)
    settings = _SETTINGS.format(str(size.quick).lower())
    found: dict[int, list[_Round]] = {1: [], _TWO: []}
    with ExitStack() as opened:
        nodes = []
        for number in range(_TWO):
            (folder / str(number)).mkdir()
            nodes.append(opened.enter_context(daemon(folder / str(number), settings)))
        world = _World(folder, nodes, files, rows)
        for number in range(warm + rounds):
            for count, costs in found.items():
                costs.append(world.round(f"r{number}i{count}", count))
    one, two = (found[count][warm:] for count in (1, _TWO))
    repeated = sum(each.counts["forgotten"] + each.counts["repeated"] for each in two) / len(two)
    facts: dict[str, float | str] = {"files": files, "rows of each": rows, "steps done twice, of a round": repeated}
    return [
        Row(
            name=f"second, {name}",
            measures=measures,
            ours=Side(name="two instances", costs=tuple(costs(each) for each in two)),
            peer=Side(name="one", costs=tuple(costs(each) for each in one)),
            goal=goal,
            facts=facts,
        )
        for name, measures, goal, costs in (
            ("time", "until one of two nodes that ingest the same files has committed all", "≤ 1.05", _seconds),
            ("CPU", "CPU of two nodes that ingest the same files", "≤ 2", _cpu),
        )
    ]


def _seconds(each: _Round) -> float:
    return each.seconds


def _cpu(each: _Round) -> float:
    return each.cpu
