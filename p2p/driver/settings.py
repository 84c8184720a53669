"""Defines the settings of the driver, frozen; each field says its reason."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from p2p.pace import Bandwidth

LookupMode: TypeAlias = Literal["auto", "on", "off"]
LAN_PORT: Final = 5353
"""UDP port of multicast DNS (RFC 6762)."""


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of replication; the bounds of the protocol itself are in ``p2p.wire.limits``."""

    network: str
    """Name in the topics: nodes of different networks never receive each other's gossip."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs to keep a connection to; they are dialled again with backoff for ever."""
    inside: tuple[str, ...] | None = None
    """Networks beyond the Internet in which peers that others tell of are dialled; ``None``: this machine, while
    neither ``bootstrap`` nor where we listen is beyond it."""
    degree: int = 8
    """Connections that a node keeps up by itself: with eight, a network holds together though most of it is gone."""
    entropy_interval: float = 60.0
    """Seconds between rounds of anti-entropy (docs/spec/trust.md#gossip)."""
    entropy_peers: int = 3
    """Random peers asked in a round."""
    question_patience: float = 30.0
    """Seconds for one question outside of a transfer."""
    transfer_patience: float = 15.0
    """Seconds that a peer with questions of a transfer may say nothing before another is asked."""
    lan: int | None = None
    """UDP port of multicast DNS by which peers on one LAN find each other; ``None``: they do not."""
    lookup: LookupMode = "auto"
    """Whether holders are looked up beyond the directory of presences (``p2p.driver.lookups``): when it is full,
    always, or never."""
    relays: tuple[str, ...] = ()
    """Multiaddrs of relays through which others reach this node: like bootstrap peers, they are the owner's word on
    where peers may be (``p2p.driver.node_reach`` uses them)."""
    line: Bandwidth = msgspec.field(default_factory=Bandwidth)
    """Caps the bytes of chains and objects received from all peers, and of those sent."""
    drain: float = 5.0
    """Seconds that answers under way may take when the node stops."""
