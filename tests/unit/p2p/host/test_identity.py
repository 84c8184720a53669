"""One key, three spellings; addresses are understood or explained."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from p2p.address import PeerAddress, network_of, parse_address
from p2p.errors import BadAddress
from p2p.identity import did_of_peer, did_of_seed, parse_peer, peer_of_did, peer_of_seed

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

    import p2p.host  # noqa: F401 - prepares libp2p

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
