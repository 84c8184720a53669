"""What hostile peers send: frames of gossip by the number, written as libp2p writes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from p2p.errors import PeerFault
from p2p.host.host import Host
from p2p.host.pubsub import rpc_pb2  # type: ignore[attr-defined]

LISTENING, AFTER_CLOSE = "0A", "06"


def delimited(raw: bytes) -> bytes:
    """With its length before it, as a varint."""
    length, prefix = len(raw), b""
    while length > 127:
        prefix += bytes([length & 127 | 128])
        length >>= 7
    return prefix + bytes([length]) + raw


def framed(rpc: Any) -> bytes:
    raw: bytes = rpc.SerializeToString()
    return delimited(raw)


def joins(topic: str, *, graft: bool = False) -> bytes:
    """One topic is joined."""
    rpc = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=topic)])
    if graft:
        rpc.control.graft.add(topicID=topic)
    return framed(rpc)


def subscriptions(topic: str, count: int) -> bytes:
    """The topic is joined and left in turn."""
    rpc = rpc_pb2.RPC()
    for number in range(count):
        rpc.subscriptions.add(subscribe=number % 2 == 0, topicid=topic)
    return framed(rpc)


def messages(topic: str, count: int, author: bytes, key: bytes = b"", signature: bytes = b"s" * 64) -> bytes:
    """One byte each, and a signature that is none."""
    rpc = rpc_pb2.RPC()
    for number in range(count):
        seqno = number.to_bytes(8, "big")
        rpc.publish.add(data=b"x", topicIDs=[topic], from_id=author, seqno=seqno, key=key, signature=signature)
    return framed(rpc)


def processor_seconds(pid: int) -> float:
    """What a process and its threads have had of the processors so far."""
    facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, facts[11:13])) / os.sysconf("SC_CLK_TCK")


def sockets_at(port: int) -> int:
    """The sockets of this machine that were accepted at a port and are not closed, by the kernel's table."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        row[1].endswith(f":{port:04X}") and row[3] not in (LISTENING, AFTER_CLOSE) and row[9] != "0" for row in rows
    )


async def dials(host: Host, address: str) -> None:
    """Once, whatever comes of it."""
    with suppress(PeerFault):
        await host.connect(address)


@contextmanager
def from_address(host: str) -> Iterator[None]:
    """Whoever dials meanwhile does it from this address of the machine's own."""
    kind: Any = trio._socket._SocketType  # type: ignore[attr-defined]
    connect = kind.connect

    async def bound(self: Any, address: Any) -> None:
        await self.bind((host, 0))
        await connect(self, address)

    kind.connect = bound
    try:
        yield
    finally:
        kind.connect = connect
