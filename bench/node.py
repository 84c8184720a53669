"""Measures a real daemon: the latency of ``odfctl``, and the memory of an idle node."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.machine import resident, spent
from bench.measure import Row, Side, Size, in_turns
from demo.nodes import Node

TREE: Final = Path(__file__).parents[1]
_ENTRY: Final = "import sys; from odfd.{} import {} as main; sys.exit(main())"
"""What the installed commands do, for the tree that is measured."""
_LISTEN: Final = 'p2p.listen = ["/ip4/127.0.0.1/tcp/0"]\n'
ODFCTL: Final = (sys.executable, "-c", _ENTRY.format("cli", "start"))
_SETTLE: Final = 3.0
"""Seconds for a started node to have nothing left to do."""
_LOOK, _IDLE = 1.0, 0.05
"""Seconds between looks at a node, and of CPU between two that count as none."""
_BARE: Final = """
import trio
from p2p.host.host import open_host
async def main():
    async with open_host(bytes(32), ["/ip4/127.0.0.1/tcp/0"]):
        print("up", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@contextmanager
def daemon(
    folder: Path,
    settings: str = "",
    wait: Callable[[Node], None] | None = None,
    program: tuple[str, ...] = (sys.executable, "-c", _ENTRY.format("daemon.main", "main")),
) -> Iterator[Node]:
    """Runs one node of this tree. ``wait``: the condition to wait for instead of its first answer."""
    node = Node("bench", "bench", folder / "node", _LISTEN + settings)
    node.program = program
    node.environment = {"PYTHONPATH": str(TREE), "ODFD_FLOWS_FOLLOW": "false"}
    if wait is None:
        node.start()
    else:
        node.launch()
    try:
        if wait is not None:
            wait(node)
        yield node
    finally:
        node.stop()


def settle(node: Node) -> None:
    """Waits until the start's work is done: it hashes its engine, and dials known peers."""
    assert node.process is not None
    pid, before = node.process.pid, 0.0
    while (now := spent(pid)) - before > _IDLE:
        before = now
        time.sleep(_LOOK)


def odfctl(node: Node, *words: str) -> Callable[[], str]:
    """Runs a command to its end; returns its output. Raises when it fails."""
    command = [*ODFCTL, "--socket", str(node.socket), *words]
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    return lambda: subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def measure_cli(size: Size, folder: Path) -> list[Row]:
    """Measures ``odfctl status`` against an idle Python, and against the request alone."""
    rounds = size.pick(1, 15)
    command = (sys.executable, "-c", "pass")
    with daemon(folder) as node:
        status = odfctl(node, "status")
        assert "peers" in status()
        ours, nothing = in_turns(status, lambda: subprocess.run(command, check=True), rounds)
        again, request = in_turns(status, lambda: _request(node.socket), rounds)
        verify = (*ODFCTL, "verify", str(TREE / "tests/golden/kamu/airlines"))
        environment = {**os.environ, "PYTHONPATH": str(TREE)}
        folders, nothing_too = in_turns(
            lambda: subprocess.run(verify, check=True, capture_output=True, env=environment),
            lambda: subprocess.run(command, check=True),
            rounds,
        )
    name = "odfctl status"
    return [
        Row(
            name="cli",
            measures="wall time of a command",
            ours=Side(name=name, costs=ours),
            peer=Side(name="python -c pass", costs=nothing),
            goal="< 150 ms idle",
        ),
        Row(
            name="cli request",
            measures="the same command",
            ours=Side(name=name, costs=again),
            peer=Side(name="GET /node/v1alpha1/status on the socket", costs=request),
        ),
        Row(
            name="cli verify",
            measures="verification of a small folder without a daemon",
            ours=Side(name="odfctl verify DIR", costs=folders),
            peer=Side(name="python -c pass", costs=nothing_too),
            goal="< 300 ms idle",
        ),
    ]


def _request(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /node/v1alpha1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = bytearray()
        while part := connection.recv(1 << 16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200"), bytes(answer[:200])


def measure_memory(size: Size, folder: Path) -> list[Row]:
    """Measures the resident memory of an idle node, without its engine."""
    settle = 0.1 if size.quick else _SETTLE
    ours, peer = [], []
    for number in range(size.pick(1, 3)):
        with daemon(folder / str(number)) as node:
            time.sleep(settle)
            assert node.process is not None
            ours.append(float(resident(node.process.pid)))
        with subprocess.Popen([sys.executable, "-c", _BARE], stdout=subprocess.PIPE, cwd=TREE) as bare:
            assert bare.stdout is not None
            assert bare.stdout.readline() == b"up\n"
            time.sleep(settle)
            peer.append(float(resident(bare.pid)))
            bare.kill()
    return [
        Row(
            name="memory",
            measures="resident memory, idle, no engine",
            ours=Side(name="odfd run", costs=tuple(ours), unit="B"),
            peer=Side(name="a listening libp2p host alone", costs=tuple(peer), unit="B"),
        )
    ]
