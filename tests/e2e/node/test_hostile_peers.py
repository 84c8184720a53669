"""Programs of a few dozen lines against a daemon with its own settings: what they take of it is bounded.

Many addresses are those of 127.0.0.0/8. What is measured is the processor's time of the daemon, never the wall's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import trio

from p2p.errors import PeerFault
from p2p.host.host import Host, open_host
from p2p.host.stream import BrokenStream, Stream
from p2p.ports import PeerId
from worlds.eventually import PATIENCE
from worlds.hostile import from_address, joins, processor_seconds, subscriptions

pytestmark = pytest.mark.e2e
NETWORK = "hostile"
HEADS = f"/odf/1/{NETWORK}/heads"
MESHSUB = "/meshsub/1.2.0"


async def swallow(stream: Stream, _peer: PeerId) -> None:
    async for _ in stream:
        pass


def attacked(daemon: Any, attack: Callable[[Host, PeerId, str], Awaitable[None]]) -> float:
    """Seconds of the processor that an attack by a stranger costs; afterwards the daemon answers."""
    daemon.ask("network", "join", NETWORK)
    address = daemon.ask("status")["listen"][0]

    async def mount() -> float:
        with trio.fail_after(PATIENCE):
            async with open_host(b"e" * 32) as eve:
                for version in ("1.1.0", "1.2.0"):
                    eve.set_handler(f"/meshsub/{version}", swallow)
                peer = await eve.connect(address)
                await eve.ping(peer)
                before = processor_seconds(daemon.process.pid)
                with suppress(BrokenStream):
                    await attack(eve, peer, address)
                return before

    before = trio.run(mount)
    assert daemon.lives
    return processor_seconds(daemon.process.pid) - before


def test_two_frames_of_gossip_cost_a_node_a_moment(make_daemon: Callable[..., Any]) -> None:
    """25 seconds of a node's loop, longer than systemd waits for a sign of life."""

    async def join_and_leave(eve: Host, peer: PeerId, _address: str) -> None:
        stream = await eve.open_stream(peer, MESHSUB)
        await stream.send_all(joins(HEADS, graft=True))
        for _ in range(2):
            await stream.send_all(subscriptions(HEADS, 2400))
        await eve.ping(peer)

    daemon = make_daemon(listens=True).start()
    assert attacked(daemon, join_and_leave) < 4.0


def test_silent_connections_and_free_keys_keep_nobody_out_of_a_node(make_daemon: Callable[..., Any]) -> None:
    """Sixty-three connections that say nothing shut everyone out; so did sixty-four keys."""

    async def crowd(eve: Host, peer: PeerId, address: str) -> None:
        port = int(address.split("/")[4])
        async with AsyncExitStack() as stack:
            for number in range(20):
                other = await stack.enter_async_context(open_host(bytes([number + 1]) * 32))
                with from_address("127.0.1.1"), suppress(PeerFault):
                    await other.connect(address)
            for number in range(160):
                source = f"127.0.{2 + number % 4}.{1 + number // 4}"
                stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=source)
                stack.push_async_callback(stream.aclose)
            honest = await stack.enter_async_context(open_host(b"h" * 32))
            with from_address("127.0.9.9"):
                await honest.connect(address)
            await honest.ping(peer)

    daemon = make_daemon(listens=True).start()
    assert attacked(daemon, crowd) < 6.0
