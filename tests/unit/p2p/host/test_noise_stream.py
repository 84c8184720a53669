"""A connection whose socket was closed here ends like any other that broke."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from p2p.host.noise import NoiseStream
from p2p.pace import LineTraffic, Traffic


@pytest.mark.slow
async def test_a_socket_that_was_closed_is_a_broken_connection_and_no_fault_of_ours() -> None:
    here, there = socket.socketpair()
    with there:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(here))
        cipher: Any = None
        line = NoiseStream(stream, cipher, cipher, LineTraffic(Traffic()))
        stream.socket.close()
        with pytest.raises(trio.ClosedResourceError):
            await line.receive()
        with pytest.raises(trio.ClosedResourceError):
            await line.wait_for_room()
