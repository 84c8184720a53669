"""Encodes and decodes the multicast DNS packets (RFC 6762) by which nodes on a local network find each other.

The packets have the form of libp2p's mDNS discovery, under a service name of our own: a question for instances of the
service is answered by a pointer to a name, and a text record with ``dnsaddr=`` multiaddresses and ``network=``. Anybody
on the LAN can send any packet, so an address counts only if the packet came from it. Pure; zeroconf reads and writes
the packets themselves.
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
from p2p.address import PeerAddress, parse_address
from p2p.ip import parse_ip
from p2p.ports import PeerId

SERVICE: Final = "_odf._udp.local."
MAX_PACKET: Final = 9000
"""Bytes of a packet, by RFC 6762; longer ones are ignored."""
MAX_ADDRESSES: Final = 8
"""Addresses of one node that are sent, and that are read."""
LIFETIME: Final = 120
"""Seconds that others may cache an answer; this node caches none."""
_QUERY, _RESPONSE, _AUTHORITATIVE = 0x0000, 0x8000, 0x0400
_PTR, _TXT, _IN = 12, 16, 1


class LanPacket(msgspec.Struct, frozen=True):
    asks: bool = False
    """Whether the sender asks who is there."""
    told: tuple[PeerAddress, ...] = ()
    """Addresses of a node of the network, each with its peer id."""


def encode_question() -> bytes:
    out = DNSOutgoing(_QUERY)
    out.add_question(DNSQuestion(SERVICE, _PTR, _IN))
    return bytes(out.packets()[0])


def encode_presence(peer: PeerId, network: str, addresses: Sequence[PeerAddress]) -> bytes:
    """Encodes this node's presence, with at most MAX_ADDRESSES of ``addresses``."""
    name = f"{hashlib.sha256(peer.encode()).hexdigest()[:32]}.{SERVICE}"
    texts = [f"network={network}", *(f"dnsaddr={one.transport}/p2p/{peer}" for one in addresses[:MAX_ADDRESSES])]
    raw = b"".join(bytes([len(text)]) + text for text in (text.encode()[:255] for text in texts))
    out = DNSOutgoing(_RESPONSE | _AUTHORITATIVE)
    out.add_answer_at_time(DNSPointer(SERVICE, _PTR, _IN, LIFETIME, name), 0)
    out.add_additional_answer(DNSText(name, _TXT, _IN, LIFETIME, raw))
    return bytes(out.packets()[0])


def decode(packet: bytes, network: str, source: str) -> LanPacket:
    """Decodes a packet that came from the address ``source``; an empty result if it is not about ``network``.

    Most mDNS packets are those of other services.
    """
    if len(packet) > MAX_PACKET:
        return LanPacket()
    message = DNSIncoming(packet, None, None, 0.0)
    if not message.valid:
        return LanPacket()
    if message.is_query():
        return LanPacket(
            asks=any(question.name.lower() == SERVICE and question.type == _PTR for question in message.questions)
        )
    texts = (answer for answer in message.answers() if isinstance(answer, DNSText) and _is_ours(answer.name))
    records = [list(_strings(text.text)) for text in texts]
    mine = [string for strings in records if f"network={network}".encode() in strings for string in strings]
    return LanPacket(told=tuple(_addresses(mine, source))[:MAX_ADDRESSES])


def _is_ours(name: str) -> bool:
    return name.lower().endswith("." + SERVICE)


def _strings(text: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(text):
        length = text[place]
        yield text[place + 1 : place + 1 + length]
        place += 1 + length


def _addresses(strings: Sequence[bytes], source: str) -> Iterator[PeerAddress]:
    """Yields the sender's own addresses only, so that a packet cannot make us dial a third party."""
    for raw in strings:
        if not raw.startswith(b"dnsaddr="):
            continue
        try:
            address = parse_address(raw[8:].decode())
        except (Invalid, UnicodeDecodeError):
            continue
        if address.peer is not None and _is_at(address, source):
            yield address


def _is_at(address: PeerAddress, source: str) -> bool:
    """Whether an address is ``source``, ignoring the interface of a link-local one, which is unknown."""
    there = None if address.relay else address.ip
    return there is not None and there == parse_ip(source) and not (there.version == 6 and there.is_link_local)


def is_on_lan(address: PeerAddress) -> bool:
    """Whether an address is announced on a LAN: one of this machine or a private network; any IPv6 but link-local."""
    here = None if address.relay else address.ip
    return here is not None and (here.is_private if here.version == 4 else not here.is_link_local)
