"""Nodes behind NATs of the kernel's own: which pairs connect directly, and what they find out about themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from p2p.errors import PeerFault
from p2p.machines.reachability import Reached
from p2p.machines.relay import RelayLimits
from worlds.eventually import until
from worlds.nat_nodes import NatNode
from worlds.nat_world import NATS, Internet, NoNat, Place, open_internet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
FAILING = {
    ("port restricted", "symmetric"), ("symmetric", "port restricted"), ("symmetric", "symmetric"),
}  # fmt: skip
"""Pairs that stay with the relay: docs/how-to/reach.md has the table."""
Start = Callable[..., NatNode]


@pytest.fixture
def internet() -> Iterator[Internet]:
    try:
        with open_internet() as net:
            yield net
    except NoNat as reason:
        pytest.skip(f"no NATs can be made here: {reason}")


@pytest.fixture
def start(internet: Internet) -> Iterator[Start]:
    with ExitStack() as stack:

        def run(place: Place, name: str, **settings: object) -> NatNode:
            node = NatNode(place, name, **settings)
            stack.callback(node.close)
            return node

        yield run


def address_of(node: NatNode) -> str:
    return next(each for each in node.addresses() if each.startswith("/ip4/20.") and "p2p-circuit" not in each)


def test_pairs_of_nats_connect_directly_where_one_of_them_allows_it(internet: Internet, start: Start) -> None:
    relay = start(internet.public(), "relay", relay=RelayLimits(of_peer=64))
    there = address_of(relay)

    def home(nat: str, side: str) -> NatNode:
        return start(internet.home(nat), f"{side} {nat}", relays=(there,), bootstrap=(there,))

    lefts, rights = ({nat: home(nat, side) for nat in NATS} for side in ("left", "right"))
    nodes = [*lefts.values(), *rights.values()]
    until(lambda: all(node.circuit() and node.call(node.reach.autonat.seen_at) for node in nodes))
    direct: set[tuple[str, str]] = set()
    for left in lefts.values():
        for right in rights.values():
            left.call(left.driver.connect, right.circuit())

    def missing() -> set[tuple[str, str]]:
        for one, left in lefts.items():
            for other, right in rights.items():
                if left.call(left.host.direct.is_direct, right.host.peer_id):
                    direct.add((one, other))
        return {(one, other) for one in NATS for other in NATS} - direct

    def all_tried() -> bool:
        tried = sum(node.reach.holes.succeeded + node.reach.holes.failed for node in nodes)
        return tried >= len(lefts) * len(rights)

    until(lambda: missing() <= FAILING and all_tried())
    assert missing() == FAILING
    for one, other in FAILING:
        assert rights[other].host.peer_id in lefts[one].call(lefts[one].host.peers), "the relay carries on"


def test_a_node_that_moves_is_back_and_what_it_opened_goes_both_ways(internet: Internet, start: Start) -> None:
    relay = start(internet.public(), "relay", relay=RelayLimits())
    there = address_of(relay)
    place = internet.home("port restricted")
    laptop = start(place, "laptop", relays=(there,), bootstrap=(there,))
    until(lambda: bool(laptop.circuit()))
    me = laptop.host.peer_id

    def is_served() -> bool:
        """The relay opens a stream on the connection that the laptop made, which nobody could dial."""
        try:
            relay.call(relay.host.ping, me)
        except PeerFault:
            return False
        return True

    assert is_served()
    internet.readdress(place, "192.168.1.77")
    until(lambda: laptop.reach.moves.count > 0)
    until(lambda: bool(laptop.circuit()) and is_served())
    assert "192.168.1.77" in str(laptop.addresses())


def test_dial_backs_tell_a_public_node_from_one_behind_a_nat(internet: Internet, start: Start) -> None:
    """Also behind a NAT that lets in whoever was spoken to: those who are asked were not, from that port."""
    servers = [start(internet.public(), f"server {number}") for number in range(3)]
    told = tuple(address_of(server) for server in servers)
    relay = start(internet.public(), "relay", relay=RelayLimits())
    public = start(internet.public(), "public", bootstrap=told, relays=(address_of(relay),))
    hidden = start(internet.home("address restricted"), "hidden", bootstrap=told, relays=(address_of(relay),))

    def whole(node: NatNode) -> Reached:
        return node.call(lambda: node.reach.autonat.whole())

    until(lambda: whole(public) is Reached.YES and whole(hidden) is Reached.NO)
    assert any(each.startswith("/ip4/20.") for each in public.addresses())
    outer = hidden.reach.autonat.reachability.addresses
    assert outer
    assert not any(each.transport in own for each in outer for own in hidden.addresses())
    until(lambda: not public.circuit() and bool(hidden.circuit()))
