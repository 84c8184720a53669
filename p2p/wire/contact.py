"""Computes where nodes and datasets are in the space of a lookup, and which addresses count as one attacker's.

The place of a node is the SHA-256 of its peer id. The place of a dataset is a hash of its id and of the network's name:
who does not know a dataset's id cannot tell what a question for its place is about. Distance is the XOR of two places.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec

from chain.ids import DatasetId, KeyDid
from p2p.address import Address
from p2p.identity import peer_of_did
from p2p.ip import is_global, parse_ip
from p2p.ports import PeerId

BITS: Final = 256
_DATASET: Final = b"odf lookup key 1\0"
_PEER_ID: Final = bytes([0x00, 36, 0x08, 0x01, 0x12, 32])
"""What precedes an Ed25519 key in a peer id (``p2p.identity``)."""
_CACHED: Final = 16_384


class Contact(msgspec.Struct, frozen=True):
    """A node that others may ask, at the one address where it answered."""

    key: bytes
    """Its Ed25519 public key."""
    ip: bytes
    """Four bytes, or sixteen."""
    port: int

    @property
    def place(self) -> int:
        return place_of_node(self.key)

    @property
    def peer(self) -> PeerId:
        return peer_of_did(KeyDid.from_public_key(self.key))

    @property
    def address(self) -> Address:
        host = ipaddress.ip_address(self.ip)
        return Address(f"ip{host.version}", str(host), self.port)

    @property
    def block(self) -> bytes:
        """The /24 or /48 of its address; the address itself where it is not of the Internet."""
        return _blocks(self.ip)[0] or self.ip + self.port.to_bytes(2, "big")

    @property
    def operator(self) -> bytes:
        """The /16 or /32 likewise."""
        return _blocks(self.ip)[1] or self.ip + self.port.to_bytes(2, "big")


def contact_at(key: bytes, address: Address) -> Contact | None:
    """A contact of an address; ``None`` for a name and for what goes by way of a relay: nobody can be asked there."""
    if address.ip is None or address.relay is not None or not address.port:
        return None
    return Contact(key, address.ip.packed, address.port)


@lru_cache(_CACHED)
def _blocks(ip: bytes) -> tuple[bytes, bytes]:
    """Empty for addresses of a LAN or of this machine, where all nodes share one block and none has it to itself."""
    if not is_global(parse_ip(str(ipaddress.ip_address(ip)))):
        return b"", b""
    return (ip[:3], ip[:2]) if len(ip) == 4 else (ip[:6], ip[:4])


def block_of(ip: bytes, key: bytes) -> bytes:
    """The block of a connection's remote address; on a LAN each peer is a block of its own."""
    return (_blocks(ip)[0] or ip + key) if ip else key


@lru_cache(_CACHED)
def place_of_node(key: bytes) -> int:
    return int.from_bytes(sha256(_PEER_ID + key).digest(), "big")


def lookup_key(network: str, dataset: DatasetId) -> bytes:
    return sha256(_DATASET + network.encode() + b"\0" + dataset).digest()


def place_of(key: bytes) -> int:
    return int.from_bytes(key, "big")
