"""Measures a node with much declared, which has nothing to do, against an empty one: start, rest, and one list."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.machine import spent, wake_ups
from bench.many_datasets import start_to_ready
from bench.measure import Row, Side, Size, in_turns
from bench.node import daemon, odfctl, settle
from chain.ids import DatasetId
from demo.nodes import Node

_DATASET: Final = """$schema: Dataset
headers: {{name: d{:05}}}
spec:
  kind: Root
  metadata: [{{kind: AddPushSource, sourceName: s, read: {{kind: NdJson}}, merge: {{kind: Append}}}}]
"""
_FLOW: Final = """$schema: Flow
headers: {{name: f{0:05}}}
spec: {{target: "Dataset:d{0:05}", triggers: [{{kind: Schedule, cron: "@yearly"}}]}}
"""
_MIRROR: Final = """$schema: Mirror
headers: {{name: m{:05}}}
spec: {{source: "{}"}}
"""
_AT_ONCE: Final = 250
"""Manifests of one apply."""
_START: Final = 15.0
"""Seconds after a start in which work of the start may begin late."""


def measure_declared(size: Size, folder: Path) -> list[Row]:
    """A node with 1,000 datasets, 200 flows and 200 mirrors, in no network."""
    datasets, others = size.pick(6, 1_000), size.pick(2, 200)
    texts = [_DATASET.format(number) for number in range(datasets)]
    texts += [_FLOW.format(number) for number in range(others)]
    texts += [_MIRROR.format(number, _unknown(number)) for number in range(others)]
    for name, manifests in (("empty", []), ("declared", texts)):
        _fill(folder / name, manifests)
    what = f"{datasets:,} datasets, {others} flows, {others} mirrors"
    rounds, window = size.pick(1, 3), size.pick(1, 60)
    starts = in_turns(
        lambda: start_to_ready(folder / "declared"), lambda: start_to_ready(folder / "empty"), rounds, warm=0
    )
    started = Row(
        name="start, declared",
        measures="from the command to ready",
        ours=Side(name=what, costs=starts[0]),
        peer=Side(name="an empty node", costs=starts[1]),
        goal="< 3",
    )
    with daemon(folder / "declared") as ours, daemon(folder / "empty") as peer:
        listed = in_turns(odfctl(ours, "get", "datasets", "-o", "json"), odfctl(ours, "status"), size.pick(1, 5))
        for node in (ours, peer):
            settle(node)
        time.sleep(size.pick(0, int(_START)))
        rests = _rest([ours, peer], window, rounds)
    return [
        started,
        Row(
            name="get datasets, status",
            measures=f"wall time of the commands, {datasets:,} datasets",
            ours=Side(name="get datasets", costs=listed[0]),
            peer=Side(name="status", costs=listed[1]),
            goal="< 2",
        ),
        *_rested(what, window, rests),
    ]


def _unknown(number: int) -> str:
    return str(DatasetId.from_public_key(number.to_bytes(32, "big")))


def _fill(folder: Path, manifests: Sequence[str]) -> None:
    with daemon(folder) as node:
        for first in range(0, len(manifests), _AT_ONCE):
            file = folder / "declared.yaml"
            file.write_text("---\n".join(manifests[first : first + _AT_ONCE]))
            odfctl(node, "apply", "-q", "-f", str(file))()
        settle(node)


def _rest(nodes: Sequence[Node], window: int, rounds: int) -> list[list[tuple[float, float]]]:
    """Wake-ups and seconds of CPU in each window of so many seconds, by node. All nodes rest at the same time."""
    found: list[list[tuple[float, float]]] = [[] for _ in nodes]
    looks: list[Callable[[int], float]] = [wake_ups, spent]
    pids = [node.process.pid for node in nodes if node.process is not None]
    for _ in range(rounds):
        before = [[look(pid) for look in looks] for pid in pids]
        time.sleep(window)
        for each, pid, was in zip(found, pids, before, strict=True):
            woken, used = (look(pid) - then for look, then in zip(looks, was, strict=True))
            each.append((max(woken, 1.0), max(used, 1e-4)))
    return found


def _rested(what: str, window: int, rests: Sequence[Sequence[tuple[float, float]]]) -> list[Row]:
    looks = (("wake-ups", "threads that woke up", "wake-ups"), ("CPU", "seconds of CPU", ""))
    return [
        Row(
            name=f"rest: {name}",
            measures=f"{measures} in {window} s of rest",
            ours=Side(name=what, costs=tuple(each[place] for each in rests[0]), unit=unit),
            peer=Side(name="an empty node", costs=tuple(each[place] for each in rests[1]), unit=unit),
            goal="1: nothing but due timers",
        )
        for place, (name, measures, unit) in enumerate(looks)
    ]
