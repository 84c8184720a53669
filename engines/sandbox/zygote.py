"""Forks processes that join sandboxes, in a process that has loaded what they need (ADR 83).

The zygote loads modules, takes orders of the node, and does nothing else: it never sees data or statements. For each
order it forks a child, which joins the namespaces of a new sandbox that bubblewrap has made and holds, gives up all
capabilities, takes the filter of system calls, and only then becomes what was ordered. A child that cannot do each of
these steps ends. Standard library only. The zygote has one thread, since only such a process can be forked safely.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

READY: Final = b"ready"
MAX_ORDER: Final = 1 << 16
"""Most bytes of an order."""
FILES: Final = 6
"""Open files that come with an order: input, output, errors, the hold, the sandbox's numbers, its sign of life."""
SINGLE_THREADED: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "MALLOC_CONF": "background_thread:false"}
"""Variables without which Arrow's allocator starts a thread when it is loaded."""
_HOLD: Final = 3
_HIGHEST: Final = 1 << 20
_NAMESPACES: Final = {
    "mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
"""CLONE_NEW* of the namespaces that every sandbox has, by their names in /proc/PID/ns."""
_USER: Final = 0x10000000
_CGROUP: Final = 0x02000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 22, 24, 38, 47
_SECCOMP_MODE_FILTER: Final = 2
_CLEAR_ALL: Final = 4
_CAPABILITIES_3: Final = 0x20080522
_FILTER_STEP: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def serve(line: socket.socket, main: Callable[[Sequence[str]], int]) -> None:
    """Forks a child for each order, until the node closes the line. ``main``: becomes of a child, unless its order
    names a command to execute."""
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        sys.exit("the zygote has more than one thread, and cannot be forked")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps children
    gc.collect()
    gc.freeze()  # a collection in a child then leaves the shared pages as they are
    line.send(READY)
    while True:
        order, files, _, _ = socket.recv_fds(line, MAX_ORDER, FILES)
        if not order:
            return
        if not os.fork():
            _child(line, order, files, main)
        for file in files:
            os.close(file)


def _child(line: socket.socket, order: bytes, files: list[int], main: Callable[[Sequence[str]], int]) -> NoReturn:
    code = 1
    try:
        line.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wanted = json.loads(order)
        numbers, alive = files[4:]
        for place, file in enumerate(files[:4]):
            os.dup2(file, place, inheritable=True)
        _enter(wanted, _await_start(numbers, alive))
        os.closerange(_HOLD + 1, _HIGHEST)
        code = _inside(wanted, main)
    except BaseException as error:  # noqa: BLE001  # whatever it is, the child must not go on as a zygote
        os.write(2, f"the process cannot join its sandbox: {error}\n".encode())
    finally:
        os._exit(code)


def _await_start(numbers: int, alive: int) -> Mapping[str, int]:
    """Waits until the sandbox is complete. Returns its process and the numbers of its namespaces."""
    if not os.read(alive, 1):
        raise OSError("it did not start")
    said = b""
    while piece := os.read(numbers, MAX_ORDER):
        said += piece
    found: Mapping[str, int] = json.loads(said)
    return found


def _enter(wanted: Mapping[str, Any], sandbox: Mapping[str, int]) -> None:
    """Joins the sandbox. Returns in a new process inside, which alone is in the control groups; this one waits for
    it, so that it is reaped, and ends."""
    before = _namespace("user")
    os.setsid()
    entrances = [os.open(entrance, os.O_WRONLY) for entrance in wanted["entrances"]]
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, wanted["memory"])
    flags = _USER | (_CGROUP if "cgroup-namespace" in sandbox else 0)
    for flag in _NAMESPACES.values():
        flags |= flag
    # One call by one descriptor: all of them are of the same process, or none is joined.
    _must(_libc.setns(os.pidfd_open(sandbox["child-pid"]), flags), "setns")
    # A process never changes its own pid namespace: only its children are in the one that it joined.
    inside = os.fork()
    if inside:
        os.closerange(0, _HIGHEST)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) & 0xFF)
    for entrance in entrances:
        os.write(entrance, b"0")
    # A number of a process can be given anew: the namespaces have to be the very ones that were made.
    for name in _NAMESPACES:
        if _namespace(name) != sandbox[f"{name}-namespace"]:
            raise OSError(f"its namespace {name} is another")
    if _namespace("user") == before:
        raise OSError("its namespace user is that of the host")


def _inside(wanted: Mapping[str, Any], main: Callable[[Sequence[str]], int]) -> int:
    os.setsid()
    _must(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    os.chdir(wanted["place"])
    _limit(resource.RLIMIT_NPROC, wanted["processes"])
    _renounce(bytes.fromhex(wanted["filter"]))
    os.environ.clear()
    os.environ.update(wanted["env"])
    argv: list[str] = wanted["argv"]
    if wanted["execute"]:
        os.execv(argv[0], argv)  # noqa: S606  # an argument list of ours, no shell
    return main(argv)


def _renounce(call_filter: bytes) -> None:
    """Gives up all capabilities and the way to new ones, and takes a filter of system calls."""
    _must(_libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0), "prctl")
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _must(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl")
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    _must(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    # The kernel takes a filter from a process without capabilities only after this.
    _must(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    program = _Program(len(call_filter) // _FILTER_STEP, call_filter)
    _must(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "prctl")


def _namespace(name: str) -> int:
    return Path("/proc/self/ns", name).stat().st_ino


def _limit(kind: int, most: int | None) -> None:
    if most is not None:
        resource.setrlimit(kind, (most, most))


def _must(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
