"""Bounds what the library remembers of peers: this node and connected peers stay, the others go, oldest first.

The library's own store enforces its bound only when an address is added, and first forgets peers without addresses,
such as this node itself. Without its own key the node signs no message any more, so a thousand free keys could silence
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from libp2p.crypto.keys import PublicKey
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore

MAX_PEERS: Final = 1000
"""Peers remembered at once."""
KEPT: Final = 750
"""Peers that stay when the store was full; dropping many at once makes the search through the map rare."""


class BoundedPeerStore(PeerStore):  # type: ignore[misc]
    """The peer store of one host."""

    def __init__(self, me: ID) -> None:
        super().__init__(max_peers=MAX_PEERS)
        self._me = me
        self.is_connected: Callable[[ID], bool] = lambda _: False

    def add_pubkey(self, peer_id: ID, pubkey: PublicKey) -> None:
        super().add_pubkey(peer_id, pubkey)
        self._enforce_peer_limit()

    def add_protocols(self, peer_id: ID, protocols: Any) -> None:
        super().add_protocols(peer_id, protocols)
        self._enforce_peer_limit()

    def _enforce_peer_limit(self) -> None:
        """Replaces the library's method: drops peers that are not connected, oldest first."""
        if len(self.peer_data_map) <= self.max_peers:
            return
        over = len(self.peer_data_map) - KEPT
        goers = [each for each in self.peer_data_map if each != self._me and not self.is_connected(each)]
        for peer in goers[:over]:
            self.peer_record_map.pop(peer, None)
            del self.peer_data_map[peer]
