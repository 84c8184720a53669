"""Ports of this machine that nobody listens at, for programs that must be told theirs."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Returns as many different ports; somebody else may take one before it is used, which is rare."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def free_port() -> int:
    (port,) = free_ports(1)
    return port
