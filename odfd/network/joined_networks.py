"""Reads the networks that this node has joined, which are stored as resources."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from chain.errors import Invalid, Refused
from chain.ids import parse_name
from chain.instant import Instant
from odfd.resources.store import ResourceStore
from p2p.address import parse_address
from p2p.driver.namespaces import MAX_NETWORKS
from p2p.ports import PeerId

NETWORK: Final = "Network"
"""The type of resource of a joined network."""
PEER: Final = "Peer"
"""The type of resource of a peer that a person has blocked."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """One joined network."""

    name: str
    bootstrap: tuple[str, ...] = ()
    policy_key: str = ""
    """The DID of the network's policy key, from the invitation; empty if there is none."""
    invited_by: str = ""
    """The DID that signed the invitation; empty if the network was joined by addresses."""


def check_network(network: Network) -> None:
    """Raises Invalid for a bad name, or an address without a peer."""
    parse_name(network.name, "network")
    for address in network.bootstrap:
        if parse_address(address).peer is None:
            raise Invalid(
                f"{address!r} does not say whose it is", rule="multiaddr", hint="append /p2p/ and the peer id"
            )


def find_joined(networks: Sequence[Network], name: str) -> Network | None:
    return next((network for network in networks if network.name.casefold() == name.casefold()), None)


def check_room(networks: Sequence[Network], name: str) -> Network | None:
    """Returns the joined network of this name, if any. Raises Refused for one too many, or a look-alike name."""
    before = find_joined(networks, name)
    if before is not None and before.name != name:
        raise Refused(
            f"this node is in the network {before.name}, whose name differs in case alone",
            rule="network-name",
            hint=f"leave it first: odfctl network leave {before.name}",
        )
    if before is None and len(networks) >= MAX_NETWORKS:
        raise Refused(
            f"this node is in {len(networks)} networks",
            rule="networks",
            hint=f"at most {MAX_NETWORKS} at a time: odfctl network leave NAME",
        )
    return before


def keep(connection: sqlite3.Connection, network: Network, now: Instant) -> None:
    """Records a joined network. Raises Refused as ``check_room``, by what is recorded."""
    check_room(list_joined(connection), network.name)
    texts = {"policyKey": network.policy_key, "invitedBy": network.invited_by}
    spec = {"bootstrap": list(network.bootstrap)} | {key: text for key, text in texts.items() if text}
    ResourceStore(connection).declare(NETWORK, network.name, spec, now)


def block(connection: sqlite3.Connection, peer: PeerId, now: Instant) -> None:
    """Records that a person blocks a peer."""
    ResourceStore(connection).declare(PEER, peer, {"peerId": peer, "blocked": True}, now, peer)


def list_blocked(connection: sqlite3.Connection) -> frozenset[PeerId]:
    """Returns the peers that a person has blocked."""
    return frozenset(PeerId(row.did) for row in ResourceStore(connection).rows(PEER) if row.did is not None)


def list_joined(connection: sqlite3.Connection) -> tuple[Network, ...]:
    """Returns the networks that a person joined, in order; the network of the settings is not in the database."""
    found = sorted(ResourceStore(connection).all(NETWORK), key=lambda each: (each.created_at, each.name))
    return tuple(
        Network(
            name=each.name, bootstrap=tuple(each.spec["bootstrap"]), policy_key=each.spec.get("policyKey", ""),
            invited_by=each.spec.get("invitedBy", ""),
        )
        for each in found
    )  # fmt: skip
