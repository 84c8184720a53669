"""Hostile members of a network: hosts that sign a presence, and else do what an attack needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time_ns
from typing import Any

import trio

from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.driver.framing import FramedStream
from p2p.host.host import Host, open_host
from p2p.host.messages import read_message
from p2p.host.stream import Stream
from p2p.ports import PeerId
from p2p.wire import circuit, presence, reach
from p2p.wire.circuit import HOP, CircuitStatus, HopKind, HopMessage
from p2p.wire.limits import MAX_PEERS_ANSWER
from p2p.wire.reach import encode_multiaddr
from worlds.hostile import from_address

PORT = 4150


def seed_of(number: int) -> bytes:
    return b"mallory" + number.to_bytes(4, "big") + bytes(21)


def key_of(number: int) -> SigningKey:
    return SigningKey(seed_of(number))


def said_by(key: SigningKey, *hosts: str) -> presence.Presence:
    addresses = tuple(f"/ip4/{host}/tcp/{PORT}" for host in hosts)
    return presence.Presence(key=key.public, issued=time_ns() // 1_000_000, lifetime=3600, addresses=addresses)


@asynccontextmanager
async def hostile(number: int, source: str, network: str = "") -> AsyncIterator[Host]:
    """A host at one of its machine's addresses; a member of the network if one is given."""
    key = key_of(number)
    async with open_host(seed_of(number)) as host:
        if network:
            own = presence.seal(said_by(key, source), network, key)

            async def tell(stream: Stream, peer: PeerId) -> None:
                framed = FramedStream(stream, peer, MAX_PEERS_ANSWER)
                await framed.read()
                await framed.write(presence.encode_answer([own]))
                await framed.end()

            host.set_handler(presence.PROTOCOL, tell)
        yield host


@asynccontextmanager
async def connected(number: int, source: str, address: str, network: str = "") -> AsyncIterator[tuple[Host, PeerId]]:
    async with hostile(number, source, network) as host:
        with from_address(source):
            peer = await host.connect(address)
        yield host, peer


async def hop(host: Host, relay: PeerId, message: HopMessage) -> tuple[int | None, Stream]:
    """The relay's answer to a question, and the stream, which is a circuit if the answer is OK."""
    stream = await host.open_stream(relay, HOP)
    await stream.send_all(circuit.encode_hop(message))
    said = circuit.decode_hop(await read_message(stream, relay, circuit.MAX_MESSAGE))
    return said.status, stream


async def reserves(host: Host, relay: PeerId) -> bool:
    status, stream = await hop(host, relay, HopMessage(kind=HopKind.RESERVE))
    await stream.reset()
    return status == CircuitStatus.OK


async def asks_for_dial(
    host: Host, server: PeerId, victim: str, *, pays: bool = True, held: trio.Nursery | None = None
) -> tuple[Any, int]:
    """Has ``victim`` dialled back, and pays the price if it ``pays``: the last answer, and the bytes paid.

    ``held``: keeps the stream open meanwhile.
    """
    stream, paid = await host.open_stream(server, reach.ASK), 0
    try:
        await stream.send_all(reach.encode(reach.DialRequest((encode_multiaddr(parse_address(victim)),), 7)))
        answer = reach.decode(await read_message(stream, server, reach.MAX_DIAL_MESSAGE))
        if isinstance(answer, reach.DialDataRequest) and pays:
            while paid < answer.count:
                part = reach.encode(reach.DialData(bytes(reach.MAX_DATA)))
                await stream.send_all(part)
                paid += len(part)
            answer = reach.decode(await read_message(stream, server, reach.MAX_DIAL_MESSAGE))
        return answer, paid
    finally:
        if held is None:
            await stream.reset()
        else:
            held.start_soon(trio.sleep_forever)
