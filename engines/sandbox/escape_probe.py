"""Runs inside a sandbox under trial, attempts what must be impossible, and reports the results as JSON.

Passed to Python as text (``-I -S -c``), standard library only. Argument: a JSON object with what to try (see
``probe``). It never hides a success: an attempt that did not fail is reported as ``ok``.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_SECONDS = 2.0


def main(task: dict[str, str]) -> None:
    """Tries each attempt and prints ``{attempt: "ok" | reason}``."""
    attempts: dict[str, Callable[[], object]] = {
        "own-loopback": _own_loopback,
        "host-loopback": lambda: _connect(socket.AF_INET, ("127.0.0.1", int(task["port"]))),
        "host-abstract-socket": lambda: _connect(socket.AF_UNIX, "\0" + task["abstract"]),
        "host-socket-file": lambda: _connect(socket.AF_UNIX, task["socket"]),
        "outward-interface": _outward_interface,
        "vsock": lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close(),
        "read-host-file": lambda: Path(task["secret"]).read_bytes(),
        "write-readable": lambda: Path(task["readable"], "planted").write_bytes(b"x"),
        "write-writable": lambda: Path(task["writable"], "made").write_bytes(b"x"),
        "see-host-process": lambda: _same_process(int(task["pid"]), task["token"]),
        "new-user-namespace": _new_user_namespace,
        "exceed-memory": lambda: _take_memory(1, int(task["memory"]) * 3 // 2),
        "exceed-memory-together": lambda: _take_memory(4, int(task["total"]) * 3 // 8),
        "exceed-processes": lambda: _take_processes(int(task["processes"]) * 2),
    }
    print(json.dumps({name: _try(attempt) for name, attempt in attempts.items()}))  # noqa: T201  # it is the answer


def _try(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (OSError, LookupError, AttributeError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def _own_loopback() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        socket.create_connection(server.getsockname(), _SECONDS).close()


def _connect(family: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family) as client:
        client.settimeout(_SECONDS)
        client.connect(address)


def _outward_interface() -> None:
    if not [name for _, name in socket.if_nameindex() if name != "lo"]:
        raise LookupError("only lo")


def _same_process(pid: int, token: str) -> None:
    if token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes():
        raise LookupError("another process")


def _new_user_namespace() -> None:
    child = os.fork()
    if not child:
        os._exit(ctypes.CDLL(None).unshare(_CLONE_NEWUSER) != 0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise PermissionError("unshare refused")


def _take_memory(children: int, each: int) -> None:
    """Starts children that all hold their bytes at the same time."""
    ready, tell = os.pipe()
    hold, release = os.pipe()
    pids = []
    for _ in range(children):
        pid = os.fork()
        if not pid:
            os.close(release)
            _hold_memory(each, tell, hold)
        pids.append(pid)
    os.close(tell)
    held = 0
    while held < children and os.read(ready, 1):
        held += 1
    os.close(release)
    # A child that already holds its bytes may be killed in place of the next one.
    lost = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    os.close(ready)
    os.close(hold)
    if held < children or lost:
        raise MemoryError(f"{held} of {children} got their {each} bytes, and {lost} were killed for it")


def _hold_memory(size: int, tell: int, hold: int) -> None:
    """Allocates the bytes, reports it, and holds them. Does not return."""
    try:
        taken = bytearray(size)
        for at in range(0, size, 4096):
            taken[at] = 1
        os.write(tell, b"x")
        os.close(tell)
        os.read(hold, 1)
    finally:
        os._exit(0)


def _take_processes(count: int) -> None:
    hold, release = os.pipe()
    pids: list[int] = []
    try:
        while len(pids) < count:
            pid = os.fork()
            if not pid:
                os.close(release)
                os.read(hold, 1)
                os._exit(0)
            pids.append(pid)
    finally:
        os.close(release)
        for pid in pids:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
