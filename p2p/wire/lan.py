"""Encodes and decodes the multicast DNS packets (RFC 6762) by which nodes on a local network find each other.

Shaped as libp2p's discovery by mDNS is, under a service of our own: a question for the service's instances, answered by
a pointer to a name and a text of ``dnsaddr=`` multiaddresses, with ``network=`` beside them. What stands in a packet is
said by whoever is on the LAN, so that an address counts only when it is the one that the packet came from. Pure; the
packets themselves are zeroconf's to read and write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from zeroconf import (  # type: ignore[attr-defined]  # kept for others, and not in its __all__
    DNSIncoming,
    DNSOutgoing,
    DNSPointer,
    DNSQuestion,
    DNSText,
)

from chain.errors import Invalid
from p2p.address import Address, parse_address
from p2p.ip import parse_ip
from p2p.ports import PeerId

SERVICE: Final = "_odf._udp.local."
MAX_PACKET: Final = 9000
"""Bytes of a packet, by RFC 6762; longer ones are not read."""
MAX_ADDRESSES: Final = 8
"""Addresses told, and looked at, of one node."""
LIFETIME: Final = 120
"""Seconds that others may cache the answer; this node does not."""
_QUERY, _RESPONSE, _AUTHORITATIVE = 0x0000, 0x8000, 0x0400
_PTR, _TXT, _IN = 12, 16, 1


class LanPacket(msgspec.Struct, frozen=True):
    asks: bool = False
    """Whether it wants to know who is there."""
    told: tuple[Address, ...] = ()
    """Addresses of a node of the network, with its peer id."""


def encode_question() -> bytes:
    out = DNSOutgoing(_QUERY)
    out.add_question(DNSQuestion(SERVICE, _PTR, _IN))
    return bytes(out.packets()[0])


def encode_presence(peer: PeerId, network: str, addresses: Sequence[Address]) -> bytes:
    """Encodes this node's presence, with at most MAX_ADDRESSES of ``addresses``."""
    name = f"{hashlib.sha256(peer.encode()).hexdigest()[:32]}.{SERVICE}"
    texts = [f"network={network}", *(f"dnsaddr={one.transport}/p2p/{peer}" for one in addresses[:MAX_ADDRESSES])]
    raw = b"".join(bytes([len(text)]) + text for text in (each.encode()[:255] for each in texts))
    out = DNSOutgoing(_RESPONSE | _AUTHORITATIVE)
    out.add_answer_at_time(DNSPointer(SERVICE, _PTR, _IN, LIFETIME, name), 0)
    out.add_additional_answer(DNSText(name, _TXT, _IN, LIFETIME, raw))
    return bytes(out.packets()[0])


def decode(packet: bytes, network: str, source: str) -> LanPacket:
    """Decodes a packet from the address ``source`` about ``network``. Most packets of mDNS are of others."""
    if len(packet) > MAX_PACKET:
        return LanPacket()
    message = DNSIncoming(packet, None, None, 0.0)
    if not message.valid:
        return LanPacket()
    if message.is_query():
        return LanPacket(asks=any(each.name.lower() == SERVICE and each.type == _PTR for each in message.questions))
    texts = (each for each in message.answers() if isinstance(each, DNSText) and _is_ours(each.name))
    records = [list(_strings(each.text)) for each in texts]
    mine = [each for strings in records if f"network={network}".encode() in strings for each in strings]
    return LanPacket(told=tuple(_addresses(mine, source))[:MAX_ADDRESSES])


def _is_ours(name: str) -> bool:
    return name.lower().endswith("." + SERVICE)


def _strings(text: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(text):
        length = text[place]
        yield text[place + 1 : place + 1 + length]
        place += 1 + length


def _addresses(strings: Sequence[bytes], source: str) -> Iterator[Address]:
    """Returns the sender's own addresses, so that a packet cannot make us dial a third party."""
    for raw in strings:
        if not raw.startswith(b"dnsaddr="):
            continue
        try:
            address = parse_address(raw[8:].decode())
        except (Invalid, UnicodeDecodeError):
            continue
        if address.peer is not None and _is_at(address, source):
            yield address


def _is_at(address: Address, source: str) -> bool:
    """Whether it is at an address; the link of a link-local one is unknown."""
    there = None if address.relay else address.ip
    return there is not None and there == parse_ip(source) and not (there.version == 6 and there.is_link_local)


def is_on_lan(address: Address) -> bool:
    """Whether to announce an address on a LAN: of this machine or a private network; in IPv6 any but a link-local."""
    here = None if address.relay else address.ip
    return here is not None and (here.is_private if here.version == 4 else not here.is_link_local)
