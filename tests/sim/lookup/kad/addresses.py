"""Where simulated nodes are: addresses as they are spread over the Internet, and distances in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

CLOUDS = 24
"""Blocks of a /16 in which three nodes of ten are."""
ROUND_TRIPS = 5
"""Of a dial: TCP, two of multistream-select, noise, the muxer's choice and the stream's, some of them in one."""
HANDSHAKE = 1400
"""Bytes each way of a dial, as counted on loopback: 480 and 560 of noise, names of protocols and yamux, and in sixteen
and nineteen packets the headers of TCP and IP."""

UNANSWERED = 180
"""Bytes sent to an address at which nobody is: the first packet of TCP and its repetitions in three seconds."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A point of a flat world of two round trips of 0.19 s at most."""

    x: float
    y: float

    def round_trip(self, other: Spot, lot: Random) -> float:
        dx, dy = abs(self.x - other.x), abs(self.y - other.y)
        far = (min(dx, 1 - dx) ** 2 + min(dy, 1 - dy) ** 2) ** 0.5
        return (0.015 + 0.25 * far) * (0.9 + 0.3 * lot.random())


def spot(lot: Random) -> Spot:
    return Spot(lot.random(), lot.random())


def address(lot: Random) -> bytes:
    if lot.random() < 0.3:
        return bytes([52, lot.randrange(CLOUDS), lot.randrange(256), lot.randrange(1, 255)])
    return bytes([lot.randrange(60, 96), lot.randrange(256), lot.randrange(256), lot.randrange(1, 255)])


def rented(blocks: int, each: int, lot: Random) -> Iterator[bytes]:
    """Addresses of an attacker: ``each`` in each of so many /24, of which eight are in a /16."""
    for at in range(blocks):
        for host in range(each):
            yield bytes([62 + at // 2048, at // 8 % 256, at % 8 * 16 + lot.randrange(16), host + 1])
