"""Computes the places of nodes and datasets in the key space of the lookup, and groups addresses by likely owner.

The place of a node is the SHA-256 of its peer id. The place of a dataset is a hash of its id and the network's name, so
whoever does not know a dataset's id cannot tell which dataset a question is about. Distance is the XOR of two places.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec

from chain.ids import DatasetId, KeyDid
from p2p.address import PeerAddress
from p2p.identity import peer_of_did
from p2p.ip import is_global, parse_ip
from p2p.ports import PeerId

BITS: Final = 256
_DATASET: Final = b"odf lookup key 1\0"
_PEER_ID: Final = bytes([0x00, 36, 0x08, 0x01, 0x12, 32])
"""The bytes before an Ed25519 key in a peer id (``p2p.identity``)."""
_CACHED: Final = 16_384


class LookupContact(msgspec.Struct, frozen=True):
    """A node that can be asked, at the one address at which it answered."""

    key: bytes
    """Its Ed25519 public key."""
    ip: bytes
    """Its IP address, packed: four bytes or sixteen."""
    port: int

    @property
    def at(self) -> tuple[bytes, int]:
        return self.ip, self.port

    @property
    def place(self) -> int:
        return place_of_node(self.key)

    @property
    def peer(self) -> PeerId:
        return peer_of_did(KeyDid.from_public_key(self.key))

    @property
    def address(self) -> PeerAddress:
        host = ipaddress.ip_address(self.ip)
        return PeerAddress(f"ip{host.version}", str(host), self.port)

    @property
    def block(self) -> bytes:
        """Returns the /24 (IPv4) or /48 (IPv6) of its address; address and port if it is not on the Internet."""
        return _blocks(self.ip)[0] or self.ip + self.port.to_bytes(2, "big")

    @property
    def operator(self) -> bytes:
        """Returns the /16 (IPv4) or /32 (IPv6) of its address; address and port if it is not on the Internet."""
        return _blocks(self.ip)[1] or self.ip + self.port.to_bytes(2, "big")


def contact_at(key: bytes, address: PeerAddress) -> LookupContact | None:
    """Makes a contact from an address; ``None`` for a DNS name, or an address through a relay:
    nobody can be asked there."""
    if address.ip is None or address.relay is not None or not address.port:
        return None
    return LookupContact(key, address.ip.packed, address.port)


@lru_cache(_CACHED)
def _blocks(ip: bytes) -> tuple[bytes, bytes]:
    """Returns block and operator of an address;
    both empty on a LAN or on this machine, where all nodes share one block."""
    if not is_global(parse_ip(str(ipaddress.ip_address(ip)))):
        return b"", b""
    return (ip[:3], ip[:2]) if len(ip) == 4 else (ip[:6], ip[:4])


def block_of(ip: bytes, key: bytes) -> bytes:
    """Returns the block of a connection's remote address; on a LAN each peer is a block of its own."""
    return (_blocks(ip)[0] or ip + key) if ip else key


@lru_cache(_CACHED)
def place_of_node(key: bytes) -> int:
    return int.from_bytes(sha256(_PEER_ID + key).digest(), "big")


def lookup_key(network: str, dataset: DatasetId) -> bytes:
    return sha256(_DATASET + network.encode() + b"\0" + dataset).digest()


def place_of(key: bytes) -> int:
    return int.from_bytes(key, "big")
