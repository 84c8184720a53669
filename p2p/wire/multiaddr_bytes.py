"""Encodes and decodes multiaddresses of TCP over IP in binary, as libp2p's messages carry them. Pure.

These messages only need addresses that can be dialled directly: an IP address and a TCP port. Addresses of other kinds
(a name, a circuit, QUIC) are skipped when a list is read.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from p2p.address import PeerAddress
from p2p.ip import parse_ip

_IP4, _TCP, _IP6 = 0x04, 0x06, 0x29
_LENGTHS: Final = {_IP4: 4, _IP6: 16}
MAX_BYTES: Final = 512
"""Bytes of one address; longer ones are skipped."""


def encode_multiaddr(address: PeerAddress) -> bytes:
    """Encodes the IP address and port of an address. Raises ValueError for a name or a circuit."""
    ip = address.ip
    if ip is None or address.relay is not None:
        raise ValueError(f"{address} is no IP address and port")
    code = _IP4 if ip.version == 4 else _IP6
    return bytes([code]) + ip.packed + bytes([_TCP]) + address.port.to_bytes(2, "big")


def decode_multiaddr(raw: bytes) -> PeerAddress | None:
    """Decodes an address, without the peer id that may follow; ``None`` for another kind."""
    length = _LENGTHS.get(raw[0]) if 0 < len(raw) <= MAX_BYTES else None
    if length is None or len(raw) < length + 4 or raw[length + 1] != _TCP:
        return None
    rest = raw[length + 4 :]
    if rest[:2] != b"\xa5\x03" and rest:  # /p2p
        return None
    if rest and (len(rest) < 3 or rest[2] >= 0x80 or len(rest) != 3 + rest[2]):
        return None
    ip = parse_ip(str(ipaddress.ip_address(raw[1 : length + 1])))
    port = int.from_bytes(raw[length + 2 : length + 4], "big")
    return PeerAddress(f"ip{ip.version}", str(ip), port) if port else None
