"""Notes and inherited sockets, against a real datagram socket and real file descriptors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from odfd.runtime.systemd import Notifier, take_sockets
from worlds.eventually import PATIENCE


def test_notes_reach_the_manager(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE)
        notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())})
        notifier.ready("listening on /x = y")
        notifier.reloading(5_000_123_000)
        notifier.alive()
        notifier.stopping("draining")
        notes = [manager.recv(4096).decode() for _ in range(4)]
    assert notes == [
        "READY=1\nSTATUS=listening on /x = y",
        "RELOADING=1\nMONOTONIC_USEC=5000123",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=draining",
    ]
    assert notifier.watchdog_seconds == 30


def test_no_manager_and_a_dead_manager_are_nothing_to_die_of(tmp_path: Path) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"NOTIFY_SOCKET": "@gone"}):
        Notifier(environ).ready("x")
    assert Notifier({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog_seconds == 0
    assert Notifier({"WATCHDOG_USEC": "soon"}).watchdog_seconds == 0


def test_sockets_meant_for_another_process_are_left_alone() -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "control"}
    assert take_sockets(environ) == {}
    assert environ == {}


@pytest.mark.slow
def test_sockets_are_taken_by_name(tmp_path: Path) -> None:
    program = (
        "import os\nfrom odfd.runtime.systemd import take_sockets\n"
        "environ = {'LISTEN_FDS': '1', 'LISTEN_PID': str(os.getpid()), 'LISTEN_FDNAMES': 'control'}\n"
        "taken = take_sockets(environ)\n"
        "print(taken['control'].getsockname(), environ, taken['control'].get_inheritable())\n"
    )
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()

        def put_at_three() -> None:
            os.dup2(listener.fileno(), 3)

        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            pass_fds=(3,) if listener.fileno() == 3 else (3, listener.fileno()),
            preexec_fn=put_at_three,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
    assert done.stdout.strip() == f"{path} {{}} False"
