"""Defines the settings of the driver, frozen; each field gives its reason."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from p2p.pace import Bandwidth

LookupMode: TypeAlias = Literal["auto", "on", "off"]
LAN_PORT: Final = 5353
"""UDP port of multicast DNS (RFC 6762)."""


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of replication in one network; the bounds of the protocol itself are in ``p2p.wire.limits``."""

    network: str
    """The network's name, part of all topics: nodes of different networks never receive each other's gossip."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs of peers to stay connected to; they are dialled again with backoff for ever."""
    inside: tuple[str, ...] | None = None
    """Networks outside the Internet in which peers named by others are dialled; ``None``: this machine, as long as all
    addresses in ``bootstrap`` and all listening addresses are on it."""
    degree: int = 8
    """Connections that a node keeps up by itself: with eight, a network holds together even if most of it is gone."""
    entropy_interval: float = 60.0
    """Seconds between rounds of anti-entropy (docs/spec/trust.md#gossip)."""
    entropy_peers: int = 3
    """Random peers asked in a round."""
    question_patience: float = 30.0
    """Seconds for one question outside of a transfer."""
    transfer_patience: float = 15.0
    """Seconds for which a peer with open questions of a transfer may be silent before another is asked."""
    lan: int | None = None
    """UDP port of multicast DNS by which peers on one LAN find each other; ``None``: no discovery on the LAN."""
    lookup: LookupMode = "auto"
    """Whether holders are searched beyond the directory of presences (``p2p.driver.lookups``): when the directory is
    full, always, or never."""
    relays: tuple[str, ...] = ()
    """Multiaddrs of relays through which others reach this node. Like bootstrap peers, they count as the owner's
    statement where peers may be (``p2p.driver.node_reach`` uses them)."""
    line: Bandwidth = msgspec.field(default_factory=Bandwidth)
    """Caps the bytes of chains and objects that are received from all peers, and sent to them."""
    drain: float = 5.0
    """Seconds that answers under way may take when the node stops."""
