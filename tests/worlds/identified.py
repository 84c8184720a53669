"""Waits until a peer has said by identify that it speaks a protocol; py-libp2p tells nobody when it is done."""

from __future__ import annotations

from libp2p.peer.id import ID

from p2p.host.host import Host
from p2p.ports import PeerId
from worlds.eventually import became


async def identified(host: Host, peer: PeerId, protocol: str) -> None:
    store, known = host._base.get_peerstore(), ID.from_base58(peer)
    await became(lambda: store.has_peer(known) and protocol in store.get_protocols(known))
