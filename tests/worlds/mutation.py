"""Mutants of valid messages: bytes changed, cut, doubled and spliced, by lot from a seed.

What still decodes becomes a parent of others, so a walk goes deep and not only wide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

PARENTS = 400
LONG = 1 << 16
"""Bytes of a parent: its children would only grow."""
HOSTILE = (0, 1, 3, 4, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFC, 0xFFFF_FFFF)
TOKENS = (
    b"", b"null", b"-1", b"1e999", b"0.5", b"9" * 400, b'"\\ud800"', b'"', b"{}", b"[]", b"[" * 3000, b'{"a":' * 2000,
    b"\0", b"\xff" * 9, b"\xc3\x28", b"\n", b"../../x", b"\x80" * 12,
)  # fmt: skip
"""What parsers of text and of numbers of any length stumble over."""


def walk(parents: Sequence[bytes], count: int, seed: int, decodes: Callable[[bytes], bool]) -> int:
    """Shows so many mutants to ``decodes``; how many of them did."""
    lot = random.Random(seed)
    grown = list(parents)
    decoded = 0
    for _ in range(count):
        raw = mutated(lot, lot.choice(grown), lot.choice(grown))
        if not decodes(raw):
            continue
        decoded += 1
        if len(raw) > LONG:
            continue
        if len(grown) < PARENTS:
            grown.append(raw)
        elif lot.random() < 0.05:
            grown[lot.randrange(len(parents), PARENTS)] = raw
    return decoded


def mutated(lot: random.Random, raw: bytes, other: bytes) -> bytes:
    out = bytearray(raw or b"\0")
    for _ in range(lot.randint(1, 4)):
        place = lot.randrange(len(out))
        way = lot.randrange(7)
        if way == 0:
            out[place] = lot.randrange(256)
        elif way == 1:
            out[place] ^= 1 << lot.randrange(8)
        elif way == 2:
            del out[place : place + lot.randrange(9)]
        elif way == 3:
            out[place:place] = out[place : place + lot.randrange(9)]
        elif way == 4:
            out[place & ~3 : (place & ~3) + 4] = lot.choice(HOSTILE).to_bytes(4, lot.choice(("little", "big")))
        elif way == 5:
            start = lot.randrange(len(other) or 1)
            piece = other[start : start + lot.randrange(64)]
            out[place : place + len(piece)] = piece
        else:
            out[place : place + lot.choice((0, 0, 4, 9))] = lot.choice(TOKENS)
        out = out or bytearray(b"\0")
    return bytes(out)
