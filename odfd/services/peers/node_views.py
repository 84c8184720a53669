"""Adds the names that nodes give themselves to the ids of peers and publishers."""

from __future__ import annotations

from chain.ids import KeyDid
from chain.statements.card import Card
from odfd.control import wire
from odfd.network.node_names import NodeNames
from p2p.identity import peer_of_did


def peer_name(peer: str, names: NodeNames) -> wire.PeerName:
    said = names.of_peer(peer)
    if said is None:
        return wire.PeerName(peer_id=peer)
    return wire.PeerName(peer_id=peer, name=said.name, alike=said.alike)


def publisher_node(card: Card | None, names: NodeNames) -> wire.PeerName | None:
    """Returns the node that signed on its card that it publishes a dataset; ``None`` if no node did."""
    node: KeyDid | None = None if card is None or card.claims is None else card.claims.node
    return None if node is None else peer_name(peer_of_did(node), names)
