"""Defines the cipher suites of connections: the handshake of each, and which of them this machine offers.

ChaCha20-Poly1305 is what libp2p's ``/noise`` fixes, and what everybody speaks. A processor with instructions for AES
seals with AES-256-GCM in a quarter of the time, so that machine offers the same handshake with it first, under a
protocol name of its own (ADR 17). Where AES would be computed in software nobody gains, and its time tells of the key;
there it is not offered. Noise specification, sections 12.3 (ChaChaPoly) and 12.4 (AESGCM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

Aead: TypeAlias = AESGCM | ChaCha20Poly1305
_CPUINFO: Final = Path("/proc/cpuinfo")
_MULTIPLIES: Final = {"pclmulqdq", "pmull"}
"""What x86 and ARM call the instruction that GCM's checksum needs."""


@dataclass(frozen=True)
class Suite:
    """One of them."""

    protocol: str
    """What the two ends agree on by multistream-select."""
    noise: bytes
    """The handshake, in the words of the Noise specification."""
    aead: Callable[[bytes], Aead]
    order: Literal["little", "big"]
    """Of the bytes of the count in a nonce."""
    lifetime: int
    """Messages after which both ends take a new key (``REKEY``, section 4.2)."""

    def nonce(self, count: int) -> bytes:
        return b"\0\0\0\0" + count.to_bytes(8, self.order)


CHACHA: Final = Suite("/noise", b"Noise_XX_25519_ChaChaPoly_SHA256", ChaCha20Poly1305, "little", 1 << 64)
AES: Final = Suite("/odf/noise-aes/1", b"Noise_XX_25519_AESGCM_SHA256", AESGCM, "big", 1 << 20)
"""A million messages are 64 GiB at most, 2**32 blocks of AES: an attacker's advantage stays below 2**-64."""


def computes_aes(cpuinfo: str) -> bool:
    """Whether the processor says so, of which the kernel tells this."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    found = next((said.split() for name, _, said in lines if name.strip() in ("flags", "Features")), [])
    return "aes" in found and not _MULTIPLIES.isdisjoint(found)


@cache
def offered() -> Sequence[Suite]:
    """The best first. A machine that does not say what it has offers what everybody has."""
    try:
        said = _CPUINFO.read_text(errors="replace")
    except OSError:
        said = ""
    return (AES, CHACHA) if computes_aes(said) else (CHACHA,)
