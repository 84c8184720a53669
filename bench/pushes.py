"""Measures small pushes to Sources, each answered when it is on the disk: one at a time, and from many callers at once.

Against files of the same content that are written one after another, each made durable with its folder: what a program
pays that keeps its messages by itself. Pushes of many callers share what makes them durable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import httpx

from bench.measure import Row, Side, Size, in_turns
from bench.node import daemon, odfctl, settle
from demo.nodes import Node

CALLERS: Final = 32
SOURCES: Final = 10
_BODY: Final = b"event_time,temp\n2024-01-01T00:00:00Z,21.5\n"
_SOURCE: Final = """$schema: Source
headers: {{name: sensors-{}}}
spec:
  ingress: {{kind: RestEndpoint}}
  read: {{kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, temp DOUBLE']}}
---
"""


def measure_pushes(size: Size, folder: Path) -> list[Row]:
    """Measures one caller, many callers of one Source, and many callers of ten Sources."""
    pushes, rounds = size.pick(40, 400), size.pick(1, 3)
    manifest = folder / "sources.yaml"
    manifest.write_text("".join(map(_SOURCE.format, range(SOURCES))))
    with daemon(folder) as node:
        odfctl(node, "apply", "-f", str(manifest))()
        settle(node)
        return [
            _row(node, folder / name, pushes // fewer, rounds, callers, sources)
            for name, fewer, callers, sources in (
                ("one caller", 4, 1, 1),
                ("one Source", 1, CALLERS, 1),
                ("ten Sources", 1, CALLERS, SOURCES),
            )
        ]


def _row(node: Node, folder: Path, pushes: int, rounds: int, callers: int, sources: int) -> Row:
    folder.mkdir()
    names = count()
    with _clients(node, callers) as clients:
        ours, peer = in_turns(
            _pushing(clients, pushes, sources), lambda: _written(folder / str(next(names)), pushes), rounds
        )
    said = f"{callers} callers" if callers > 1 else "one caller"
    return Row(
        name=f"pushes, {folder.name}",
        measures=f"durable pushes of {len(_BODY)} bytes by {said} to {sources} Sources",
        ours=Side(name="the node, by HTTP", costs=ours, amount=pushes, unit="pushes"),
        peer=Side(name="files, fsync each", costs=peer, amount=pushes, unit="files"),
        goal="1",
        facts={"pushes": pushes, "callers": callers},
    )


@contextmanager
def _clients(node: Node, count: int) -> Iterator[list[httpx.Client]]:
    with ExitStack() as opened:
        yield [
            opened.enter_context(
                httpx.Client(transport=httpx.HTTPTransport(uds=str(node.socket)), base_url="http://odfd", timeout=60)
            )
            for _ in range(count)
        ]


def _pushing(clients: list[httpx.Client], pushes: int, sources: int) -> Callable[[], None]:
    """Returns a function that sends pushes with all clients at once."""

    def push(number: int) -> None:
        for each in range(number, pushes, len(clients)):
            answer = clients[number].post(f"/source/v1alpha1/sources/sensors-{each % sources}/ingest", content=_BODY)
            assert answer.is_success, answer.text
            assert answer.json()["durable"]

    def run() -> None:
        threads = [threading.Thread(target=push, args=(number,)) for number in range(len(clients))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    return run


def _written(folder: Path, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        with (folder / str(number)).open("wb") as file:
            file.write(_BODY)
            file.flush()
            os.fsync(file.fileno())
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
