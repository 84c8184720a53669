"""A relay that hangs up as soon as it has answered costs the circuit, and is told as a fault of the relay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from p2p.errors import PeerUnreachable
from p2p.host.direct import Circuits
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, HopKind, HopMessage, StopKind, StopMessage, encode_hop, encode_stop

RELAY = PeerId("12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5")
TARGET = PeerId("12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq")


class Answered:
    """A stream on which everything came already."""

    def __init__(self, incoming: bytes) -> None:
        self.incoming, self.was_reset = incoming, False

    async def send_all(self, data: bytes) -> None:
        pass

    async def receive_some(self, limit: int) -> bytes:
        part, self.incoming = self.incoming[:limit], self.incoming[limit:]
        return part

    async def reset(self) -> None:
        self.was_reset = True


def circuits(stream: Answered) -> Circuits:
    async def open_stream(_peer: PeerId, _protocol: str) -> Any:
        return stream

    swarm = cast(Any, SimpleNamespace(connections={}, blocked=frozenset()))
    made = Circuits(swarm, open_stream)
    made.relays = {RELAY: "/ip4/127.0.0.1/tcp/1"}
    return made


async def test_a_relay_that_answers_a_dial_and_is_gone_is_unreachable() -> None:
    stream = Answered(encode_hop(HopMessage(kind=HopKind.STATUS, status=CircuitStatus.OK)))
    with pytest.raises(PeerUnreachable, match="hung up"):
        await circuits(stream).dial(RELAY, TARGET)
    assert stream.was_reset


async def test_a_relay_that_brings_a_circuit_and_is_gone_is_unreachable() -> None:
    stream = Answered(encode_stop(StopMessage(kind=StopKind.CONNECT, peer=TARGET)))
    with pytest.raises(PeerUnreachable, match="hung up"):
        await circuits(cast(Any, stream)).accept(cast(Any, stream), RELAY)
