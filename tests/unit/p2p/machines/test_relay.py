"""The relay: what strangers take of it is bounded by their addresses, and no circuit ends another."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from p2p.address import line_of, prefix_of
from p2p.machines.relay import Circuit, CircuitRelay, PeerPlace, RelayLimits
from p2p.ports import PeerId
from p2p.wire.circuit import CircuitStatus, Limit

LIMITS = RelayLimits(reservations=16, circuits=16, of_line=2, of_prefix=4, of_peer=6, circuit=Limit(60, 100))
HOSTS = [f"198.51.{net}.{host}" for net in range(6) for host in range(3)] + ["2001:db8:0:1::1", "2001:db8:0:12::1"]
places = st.builds(PeerPlace, st.integers(0, 60).map(lambda n: PeerId(f"peer{n}")), st.sampled_from(HOSTS))


def place(number: int, host: str = "") -> PeerPlace:
    return PeerPlace(PeerId(f"peer{number}"), host or f"203.{number // 200}.{number % 200}.1")


def relay_with(*targets: PeerPlace, limits: RelayLimits = LIMITS) -> CircuitRelay:
    relay = CircuitRelay(limits)
    for target in targets:
        assert relay.reserve(target, 0.0) is CircuitStatus.OK
    return relay


@given(st.lists(places, max_size=200))
def test_free_keys_do_not_multiply_reservations(asking: list[PeerPlace]) -> None:
    """Whatever keys ask: so many of one line, of one block, and in all; and a place for a chosen peer is left."""
    relay = CircuitRelay(LIMITS)
    relay.chosen = frozenset({PeerId("friend")})
    held = {each.peer: each for each in asking if relay.reserve(each, 0.0) is CircuitStatus.OK}
    assert relay.reservations == len(held) <= 12
    assert max(Counter(line_of(each.host) for each in held.values()).values(), default=0) <= 2
    assert max(Counter(prefix_of(each.host) for each in held.values()).values(), default=0) <= 4
    assert relay.reserve(PeerPlace(PeerId("friend"), HOSTS[0]), 0.0) is CircuitStatus.OK


@given(st.lists(st.tuples(places, st.integers(0, 5), st.booleans()), max_size=120))
def test_circuits_are_bounded_and_each_ends_alone(asked: list[tuple[PeerPlace, int, bool]]) -> None:
    targets = [place(100 + number) for number in range(6)]
    relay = relay_with(*targets)
    open_now: list[Circuit] = []
    for source, target, closes in asked:
        if closes and open_now:
            relay.close(open_now.pop(0))
        made = relay.open(source, targets[target].peer, 1.0)
        if isinstance(made, Circuit):
            open_now.append(made)
        else:
            assert made is CircuitStatus.RESOURCE_LIMIT_EXCEEDED
        assert relay.circuits == len(open_now) <= 12
        assert len({each.number for each in open_now}) == len(open_now)
        assert max(Counter(each.target for each in open_now).values(), default=0) <= 6
        assert max(Counter((each.source.peer, each.target) for each in open_now).values(), default=0) <= 2
        assert max(Counter(line_of(each.source.host) for each in open_now).values(), default=0) <= 2
        assert max(Counter(prefix_of(each.source.host) for each in open_now).values(), default=0) <= 4


def test_a_reservation_is_of_who_asks_and_ends_with_its_connection_or_its_time() -> None:
    relay = relay_with(place(1), place(2))
    assert relay.open(place(3), place(4).peer, 1.0) is CircuitStatus.NO_RESERVATION, "nobody asked for it"
    relay.keep({place(2).peer}, 1.0)
    assert relay.open(place(3), place(1).peer, 1.0) is CircuitStatus.NO_RESERVATION, "its connection is gone"
    assert relay.open(place(2), place(2).peer, 1.0) is CircuitStatus.NO_RESERVATION, "to itself"
    assert isinstance(relay.open(place(3), place(2).peer, 3599.0), Circuit)
    assert relay.open(place(3), place(2).peer, 3600.0) is CircuitStatus.NO_RESERVATION, "its time is over"
    relay.keep({place(2).peer}, 3600.0)
    assert relay.reservations == 0


def test_a_reservation_that_is_renewed_takes_no_second_place() -> None:
    relay = relay_with(*[place(number, "203.0.113.1") for number in (1, 2)])
    assert relay.reserve(place(1, "203.0.113.1"), 3000.0) is CircuitStatus.OK
    assert relay.reserve(place(3, "203.0.113.1"), 3000.0) is CircuitStatus.RESERVATION_REFUSED
    assert isinstance(relay.open(place(4), place(1).peer, 6000.0), Circuit)


def test_two_circuits_of_one_dialer_end_apart() -> None:
    """In py-libp2p's relay the second died with the first."""
    relay = relay_with(place(1))
    one, other = (relay.open(place(2), place(1).peer, 1.0) for _ in range(2))
    assert isinstance(one, Circuit)
    assert isinstance(other, Circuit)
    relay.close(one)
    relay.close(one)
    assert relay.circuits == 1
    relay.close(other)
    assert relay.circuits == 0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 60)), max_size=20))
def test_a_circuit_carries_so_many_bytes_each_way(pieces: list[tuple[int, int]]) -> None:
    circuit = relay_with(place(1)).open(place(2), place(1).peer, 1.0)
    assert isinstance(circuit, Circuit)
    carried = Counter[int]()
    for way, size in pieces:
        carried[way] += circuit.take(way, size)
    asked = Counter[int]()
    for way, size in pieces:
        asked[way] += size
    assert all(carried[way] == min(asked[way], 100) for way in (0, 1))


def test_a_half_closed_circuit_ends_in_time() -> None:
    """In py-libp2p's relay it stayed for as long as the other end said nothing."""
    circuit = relay_with(place(1)).open(place(2), place(1).peer, 1.0)
    assert isinstance(circuit, Circuit)
    assert circuit.deadline == 61.0
    circuit.note_end(5.0)
    assert circuit.deadline == 15.0
    circuit.note_end(12.0)
    assert circuit.deadline == 15.0, "and no later for what comes after"


def test_the_default_limits_leave_room_for_others() -> None:
    """One block of addresses takes an eighth of the places at most, of reservations and of circuits."""
    limits = msgspec.structs.asdict(RelayLimits())
    assert limits["of_line"] <= limits["of_prefix"] <= min(limits["reservations"], limits["circuits"]) // 8
