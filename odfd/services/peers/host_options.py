"""Translates the settings of the network of peers into the options of its host."""

from __future__ import annotations

from typing import cast

from chain.errors import Invalid
from config.model import Settings
from odfd.network.joined_networks import Network
from odfd.network.membership import HostOptions
from odfd.store.directory import StateDirectory
from p2p.address import parse_address
from p2p.driver.settings import LAN_PORT, LookupMode
from p2p.host.limits import HostLimits
from p2p.machines.relay import RelayLimits
from p2p.pace import Bandwidth
from p2p.peers.directory import networks
from p2p.yamux.frames import YamuxLimits


def host_options(settings: Settings, home: StateDirectory, bandwidth: Bandwidth) -> HostOptions:
    p2p = settings.p2p
    limits = HostLimits(
        max_connections=p2p.max_peers,
        dial_timeout=p2p.dial_seconds,
        yamux=YamuxLimits(max_inbound=p2p.max_streams, max_outbound=p2p.max_streams),
    )
    return HostOptions(
        seed=home.keys.node_seed(),
        listen=p2p.listen,
        limits=limits,
        announce=p2p.announce,
        folder=home.folder("peers"),
        network=Network(name=p2p.network, bootstrap=p2p.bootstrap) if p2p.network else None,
        patience=p2p.idle_seconds,
        inside=None if p2p.inside is None else checked_inside("p2p", p2p.inside),
        lan=LAN_PORT if p2p.mdns else None,
        lookup=cast(LookupMode, p2p.lookup),
        bandwidth=bandwidth,
        relays=tuple(map(checked_relay, p2p.relays)),
        relay=RelayLimits() if p2p.relay else None,
    )


def checked_relay(text: str) -> str:
    """Returns the address of a relay. Raises Invalid for other text."""
    address = parse_address(text)
    if address.peer is None or address.relay is not None:
        hint = "write it like /ip4/203.0.113.7/tcp/4150/p2p/12D3KooW…"
        raise Invalid(f"p2p.relays: {text!r} does not say where a relay is", rule="multiaddr-relay", hint=hint)
    return text


def checked_inside(section: str, inside: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the networks of a setting, checked. Raises Invalid for malformed ones."""
    try:
        networks(inside)
    except ValueError as error:
        hint = "write networks like 192.168.1.0/24"
        raise Invalid(f"{section}.inside: {error}", rule=f"{section}-inside", hint=hint) from error
    return inside
