"""Who a host is, where it is, and whom it knows."""

from __future__ import annotations

import errno
import ipaddress
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

import p2p.host  # noqa: F401  it prepares the library for what follows
from chain.errors import Invalid
from chain.statements.keys import SigningKey
from p2p.address import PeerAddress, network_of, parse_address
from p2p.errors import BadAddress
from p2p.host.hardening import ID, MAX_PEERS, assemble, ed25519_pair
from p2p.host.host import Notices, PeerConnected, PeerDisconnected
from p2p.host.interfaces import can_listen, local_ips, reachable_at
from p2p.host.limits import HostLimits
from p2p.identity import did_of_peer, did_of_seed, parse_peer, peer_of_did, peer_of_seed

# One key, three spellings; addresses are understood or explained.

# RFC 8032 section 7.1, test 1; the peer id is what go-libp2p makes of the key.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def test_the_seed_of_the_rfc() -> None:
    did = did_of_seed(SEED)
    assert did.public_key.hex() == PUBLIC
    assert str(did).startswith("did:key:z6Mk")
    assert peer_of_seed(SEED).startswith("12D3KooW")


def test_the_library_gives_the_same_peer_id() -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID

    assert str(ID.from_pubkey(create_new_key_pair(SEED).public_key)) == peer_of_seed(SEED)


@given(st.binary(min_size=32, max_size=32))
def test_there_and_back(seed: bytes) -> None:
    did = did_of_seed(seed)
    peer = peer_of_did(did)
    assert did_of_peer(peer) == did
    assert parse_peer(peer) == peer
    address = f"/ip4/192.0.2.1/tcp/4001/p2p/{peer}"
    assert str(parse_address(address)) == address


@pytest.mark.slow
@given(st.text(max_size=80))
def test_any_text_is_a_peer_id_or_invalid(text: str) -> None:
    try:
        peer = parse_peer(text)
    except Invalid:
        return
    assert peer == text


def test_an_address_by_way_of_a_relay() -> None:
    relay, peer = peer_of_seed(SEED), peer_of_seed(bytes(32))
    text = f"/ip4/192.0.2.1/tcp/4001/p2p/{relay}/p2p-circuit/p2p/{peer}"
    address = parse_address(text)
    assert (str(address), address.relay, address.peer, address.host) == (text, relay, peer, "192.0.2.1")
    assert str(address.of_relay) == f"/ip4/192.0.2.1/tcp/4001/p2p/{relay}"
    assert parse_address(address.transport) == PeerAddress("ip4", "192.0.2.1", 4001, None, relay)
    assert address.ip is not None
    assert address.at(address.ip) == address


@pytest.mark.parametrize(
    "text",
    ["/p2p-circuit/p2p/{0}", "/ip4/1.2.3.4/tcp/1/p2p-circuit/p2p/{0}", "/ip4/1.2.3.4/tcp/1/p2p/{0}/p2p-circuit/p2p/{0}",
     "/ip4/1.2.3.4/tcp/1/p2p/{1}/p2p-circuit/p2p/{0}/p2p-circuit/p2p/{0}", "/ip4/1.2.3.4/tcp/1/p2p/x/p2p-circuit",
     "/ip4/1.2.3.4/tcp/1/p2p/{1}/p2p-circuit/p2p-circuit"],
)  # fmt: skip
def test_a_circuit_goes_by_one_relay_that_is_named(text: str) -> None:
    with pytest.raises(BadAddress) as refused:
        parse_address(text.format(peer_of_seed(SEED), peer_of_seed(bytes(32))))
    assert refused.value.hint


@given(st.text(alphabet="/ip46dnstcp2.:0123456789ab", max_size=60))
def test_any_text_is_an_address_or_explained(text: str) -> None:
    try:
        address = parse_address(text)
    except BadAddress as error:
        assert error.hint  # noqa: PT017 - a refusal is one of two right answers
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_seed_of_another_size(size: int) -> None:
    with pytest.raises(Invalid, match=f"{size} bytes"):
        did_of_seed(bytes(size))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("203.0.113.7", "203.0.0.0/16"),
        ("2001:db8:1::7", "2001:db8::/32"),
        ("::ffff:203.0.113.7", "203.0.0.0/16"),
        ("fe80::1%eth0", "fe80::/32"),
        ("node.example", ""),
        ("", ""),
    ],
)
def test_the_network_of_an_address(host: str, network: str) -> None:
    """An operator can have a /16, or a /32 of IPv6, to itself."""
    assert network_of(host) == network


# What others are told of where we are.

IPS = [
    ipaddress.ip_address(one)
    for one in ("127.0.0.1", "192.168.1.7", "203.0.113.7", "8.8.4.4", "169.254.3.4", "::1", "fe80::1", "2001:4860::7")
]


def reached(listening: list[str], announce: list[str] | None = None, ips: list = IPS) -> list[str]:  # type: ignore[type-arg]
    return [str(one) for one in reachable_at(listening, announce or [], lambda: ips)]


def test_every_interface_stands_for_it_and_the_open_internet_comes_first() -> None:
    found = reached(["/ip4/0.0.0.0/tcp/4150"])
    assert found[0] == "/ip4/8.8.4.4/tcp/4150"
    assert set(found) == {f"/ip4/{ip}/tcp/4150" for ip in ("8.8.4.4", "192.168.1.7", "203.0.113.7")}
    assert reached(["/ip6/::/tcp/4150"]) == ["/ip6/2001:4860::7/tcp/4150"]


def test_both_families_are_told_the_open_internet_first() -> None:
    ips = [*IPS, ipaddress.ip_address("fd00::7")]
    assert reached(["/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150"], ips=ips) == [
        "/ip6/2001:4860::7/tcp/4150", "/ip4/8.8.4.4/tcp/4150",
        "/ip6/fd00::7/tcp/4150", "/ip4/192.168.1.7/tcp/4150", "/ip4/203.0.113.7/tcp/4150",
    ]  # fmt: skip


def test_loopback_is_told_when_there_is_nothing_else() -> None:
    assert reached(["/ip4/127.0.0.1/tcp/1"]) == ["/ip4/127.0.0.1/tcp/1"]
    assert reached(["/ip4/0.0.0.0/tcp/1"], ips=IPS[:1]) == ["/ip4/127.0.0.1/tcp/1"]
    assert reached(["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.7/tcp/1"]) == ["/ip4/192.168.1.7/tcp/1"]


def test_what_a_person_says_stands_in_place_of_all() -> None:
    assert reached(["/ip4/0.0.0.0/tcp/1"], ["/dns4/node.example/tcp/9"]) == ["/dns4/node.example/tcp/9"]
    with pytest.raises(BadAddress):
        reached([], ["node.example:9"])


def test_a_machine_without_ipv6_listens_on_ipv4_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def without_ip6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, kind)

    monkeypatch.setattr("p2p.host.interfaces.socket.socket", without_ip6)
    assert [can_listen(each) for each in ("/ip6/::/tcp/4150", "/ip4/0.0.0.0/tcp/4150")] == [False, True]


def test_this_machine_has_a_loopback() -> None:
    assert any(one.is_loopback for one in local_ips())


# What is reported of connections: one notice a peer, and one more when a connection took the place of a silent one.


def connection(address: str, *, is_replaced: bool = False) -> Any:
    muxed = SimpleNamespace(peer_id="a", is_initiator=True, is_replaced=is_replaced, fault=None)
    return SimpleNamespace(muxed_conn=muxed, get_transport_addresses=lambda: [address])


async def told(notices: Notices) -> list[Any]:
    found = []
    while True:
        try:
            found.append(notices.channel.receive_nowait())
        except trio.WouldBlock:
            return found


async def test_who_comes_by_another_connection_is_met_again_if_the_first_was_silent() -> None:
    """A machine that moved is connected anew before anybody knows that its old connection is dead: what was sent there
    is lost, and both ends have to exchange it again."""
    notices = Notices(8)
    old, new = connection("/ip4/192.0.2.1/tcp/1", is_replaced=True), connection("/ip4/192.0.2.2/tcp/2")
    await notices.connected(None, old)
    await notices.connected(None, new)
    assert [type(each) for each in await told(notices)] == [PeerConnected], "one notice for all its connections"
    await notices.disconnected(None, old)
    assert [type(each) for each in await told(notices)] == [PeerConnected]
    await notices.connected(None, connection("/ip4/192.0.2.3/tcp/3"))
    await notices.disconnected(None, connection("/ip4/192.0.2.3/tcp/3"))
    assert await told(notices) == [], "one that ends in order loses nothing"
    await notices.disconnected(None, new)
    assert [type(each) for each in await told(notices)] == [PeerDisconnected]


# What the library knows of peers: bounded, without losing this node itself or anybody who is connected.


def free_key(number: int) -> tuple[Any, Any]:
    public = ed25519_pair(number.to_bytes(32, "big")).public_key
    return ID.from_pubkey(public), public


@pytest.mark.slow
def test_free_keys_do_not_push_out_the_node_itself_nor_who_is_connected() -> None:
    """As they come in, with a key, protocols, and now and then an address."""
    host = assemble(b"n" * 32, HostLimits())
    store, swarm = host.get_peerstore(), host.get_network()
    honest, key = free_key(1)
    store.add_pubkey(honest, key)
    swarm.connections[honest] = []
    for number in range(2, 2 * MAX_PEERS):
        peer, public = free_key(number)
        store.add_pubkey(peer, public)
        store.add_protocols(peer, ["/odf/1/chain"])
        if not number % 3:
            store.add_addrs(peer, [Multiaddr("/ip4/192.0.2.7/tcp/1")], 60)
    assert host.get_public_key().to_bytes() == SigningKey(b"n" * 32).public
    assert store.has_peer(honest)
    assert store.has_peer(peer), "the newest is there"
    assert len(store.peer_ids()) <= MAX_PEERS
