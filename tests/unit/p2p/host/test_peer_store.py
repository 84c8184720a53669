"""What the library knows of peers: bounded, without losing this node itself or anybody who is connected."""

from __future__ import annotations

from typing import Any

import pytest
from multiaddr import Multiaddr

import p2p.host  # noqa: F401  it prepares the library for what follows
from chain.statements.keys import SigningKey
from p2p.host.hardening import ID, MAX_PEERS, assemble, ed25519_pair
from p2p.host.limits import HostLimits


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
