"""Measures the cost of peers: a head sent to fifty, and an idle daemon connected with fifty (``bench.crowd``)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.machine import resident, spent
from bench.measure import Row, Side, Size
from bench.node import TREE, daemon, settle
from demo.nodes import Node, until
from odfd.cli.kinds import with_state

_MET_SECONDS: Final = 60.0


def is_connected(peer: Any) -> bool:
    """Whether a Peer, as it is printed, is connected."""
    return bool(with_state(peer).get("connected"))


def measure_gossip(size: Size, folder: Path) -> list[Row]:
    """Measures from publishing a head until half of the crowd has it; one crowd after the other, each in a process."""
    del folder
    count, rounds = size.pick(3, 50), size.pick(1, 20)
    ours, stock = _told("ours", count, rounds), _told("stock", count, rounds)
    worst, lost = max(stock["worst"]), count * rounds - sum(stock["arrived"])
    assert sum(ours["arrived"]) == count * rounds, "a head was lost"
    measures = f"a head of 1 KB to half of {count} real hosts, in one process, {rounds} times"
    return [
        Row(
            name=f"gossip {kind}",
            measures=measures,
            ours=Side(name=f"{kind} by our nodes", costs=tuple(ours[kind][:rounds])),
            peer=Side(name="py-libp2p as it comes", costs=tuple(_padded(stock["known"], rounds))),
            goal=goal,
            facts={"s, our worst": max(ours["worst"]), "s, its worst": worst, "lost by it": lost},
        )
        for kind, goal in (("known", "200 ms"), ("verified", "1 s"))
    ]


def _padded(values: list[float], rounds: int) -> list[float]:
    """Rounds in which nothing arrived count as long as was waited."""
    return values + [10.0] * (rounds - len(values))


def _told(kind: str, count: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.crowd", kind, str(count), str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=TREE)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def measure_crowd(size: Size, folder: Path) -> list[Row]:
    """Measures an idle daemon, alone and then in a crowd."""
    count, window = size.pick(3, 50), size.pick(1, 20)
    # One address gets a quarter of the slots that are not reserved (p2p/budget/connection_slots.py).
    with daemon(folder, f"p2p.max-peers = {6 * count}\n") as node:
        settle(node)
        alone = _use(node, window)
        node.do("network", "join", "bench")
        with _visitors(node, count):
            until("all are there", lambda: _peers(node) >= count, _MET_SECONDS)
            settle(node)
            crowded = _use(node, window)
            assert _peers(node) >= count, "the crowd did not stay"
    return [
        Row(
            name=f"{count} peers, memory",
            measures="resident memory of an idle daemon",
            ours=Side(name=f"connected with {count} peers", costs=(crowded[1],), unit="B"),
            peer=Side(name="alone", costs=(alone[1],), unit="B"),
            facts={"KiB a peer": (crowded[1] - alone[1]) / count / 1024},
        ),
        Row(
            name=f"{count} peers, CPU",
            measures=f"CPU time of an idle daemon with {count} peers in {window} s",
            ours=Side(name="the daemon", costs=(crowded[0],)),
            peer=Side(name="one core", costs=(float(window),)),
            facts={"s without peers": alone[0]},
        ),
    ]


def _use(node: Node, window: float) -> tuple[float, float]:
    """CPU seconds that pass in a window of so many, and bytes of memory at its end."""
    assert node.process is not None
    pid = node.process.pid
    before = spent(pid)
    time.sleep(window)
    return spent(pid) - before, float(resident(pid))


def _peers(node: Node) -> int:
    return sum(map(is_connected, node.do("peer", "list")))


@contextmanager
def _visitors(node: Node, count: int) -> Iterator[None]:
    (address,) = node.do("status")["listen"]
    command = [sys.executable, "-m", "bench.crowd", "visit", str(count), address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TREE) as crowd:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        try:
            assert crowd.stdout.readline() == b"up\n", "the crowd did not come"
            yield
        finally:
            crowd.stdin.close()
