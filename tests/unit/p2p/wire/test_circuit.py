"""Messages of circuit relays: what is written is read, as others write it too, and garbage is refused by name."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.statements.keys import SigningKey
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire import circuit
from p2p.wire.circuit import CircuitStatus, HopKind, HopMessage, Limit, Reservation, StopKind, StopMessage
from p2p.wire.frames import DelimitedReader

RELAY, KEY = SigningKey(b"r" * 32), SigningKey(b"k" * 32)
RELAY_ID, PEER = peer_of_did(RELAY.did), peer_of_did(KEY.did)
numbers = st.integers(0, 2**64 - 1)
peers = st.none() | st.binary(min_size=32, max_size=32).map(lambda seed: peer_of_did(SigningKey(seed).did))
limits = st.builds(Limit, numbers, numbers)
hops = st.builds(
    HopMessage,
    kind=st.sampled_from(HopKind),
    peer=peers,
    reservation=st.none()
    | st.builds(
        Reservation, expires=numbers, addresses=st.lists(st.binary(max_size=80)).map(tuple), voucher=st.binary()
    ),
    limit=limits,
    status=st.none() | numbers,
)
stops = st.builds(
    StopMessage,
    kind=st.sampled_from(StopKind),
    peer=peers,
    limit=limits,
    status=st.none() | st.sampled_from(CircuitStatus),
)


def body(raw: bytes) -> bytes:
    (one,) = DelimitedReader(circuit.MAX_MESSAGE).feed(raw)
    return one


@given(hops, stops)
def test_round_trip(hop: HopMessage, stop: StopMessage) -> None:
    assert circuit.decode_hop(body(circuit.encode_hop(hop))) == hop
    assert circuit.decode_stop(body(circuit.encode_stop(stop))) == stop


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for decode in (circuit.decode_hop, circuit.decode_stop, lambda raw: circuit.check_voucher(raw, RELAY_ID, PEER)):
        for each in (raw, b"\x08\x02" + raw, b"\x08\x01\x12" + raw, b"\x08\x01\x12\x03\x0a\x01" + raw):
            with suppress(Invalid):
                decode(each)


def test_bytes_of_other_implementations() -> None:
    """Written down from the specification, by hand."""
    assert circuit.encode_hop(HopMessage(kind=HopKind.RESERVE)) == bytes.fromhex("02 0800")
    raw_peer = bytes.fromhex("00240801 1220") + KEY.public
    assert circuit.decode_hop(b"\x08\x01\x12\x28\x0a\x26" + raw_peer) == HopMessage(kind=HopKind.CONNECT, peer=PEER)
    refused = circuit.encode_stop(StopMessage(kind=StopKind.STATUS, status=CircuitStatus.PERMISSION_DENIED))
    assert refused == bytes.fromhex("05 0801 20ca01")


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x10\x01", b"\x08\x03", b"\x08\x00\x12\x00", b"\x08\x00\x28", b"\x0d\0\0\0", b"\x08" + b"\xff" * 10,
     b"\x08\x00\x12\x44\x0a\x42" + bytes(66), b"\x08\x00" * 2049],
    ids=["empty", "no kind", "unknown kind", "no peer id", "cut", "fixed32 cut", "number", "peer id", "size"],
)  # fmt: skip
def test_what_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        circuit.decode_hop(raw)
    assert refused.value.rule == "circuit-message"


def test_a_voucher_is_the_relays_word_of_one_peer() -> None:
    raw = circuit.seal_voucher(RELAY, RELAY_ID, PEER, 1_800_000_000)
    circuit.check_voucher(raw, RELAY_ID, PEER)
    by_another = circuit.seal_voucher(KEY, RELAY_ID, PEER, 1_800_000_000)
    cases: list[tuple[bytes, PeerId, PeerId]] = [
        (by_another, RELAY_ID, PEER),
        (raw, PEER, PEER),
        (raw, RELAY_ID, RELAY_ID),
    ]
    for wrong, relay, peer in [*cases, (raw[:-1] + b"\0", RELAY_ID, PEER)]:
        with pytest.raises(Invalid, match="voucher"):
            circuit.check_voucher(wrong, relay, peer)
