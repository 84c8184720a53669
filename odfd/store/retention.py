"""Describes how much of a mirror's data is kept: all, the newest of so many days, or of so many bytes, or both.

The kept part is always the end of the chain: the data of all blocks from one block on. Days are counted back from the
newest block that is here, not from now, so that a source that falls silent empties no mirror. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

import msgspec

from chain.errors import Invalid
from chain.instant import DAY, SECOND, Instant
from odfd.resources.manifest import SIZE, parse_size

ALL: Final = "all"
UNCAPPED: Final = "none"
_SPAN: Final = re.compile(r"([1-9]\d{0,5})([dhw])\Z")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}
_HOUR: Final = DAY // 24
Mirrored = TypeVar("Mirrored", bound=Hashable)


class Piece(msgspec.Struct, frozen=True):
    """The data of one block, with what is deleted together with it."""

    sequence: int
    time: Instant
    """System time of the block."""
    bytes: int


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the data to keep; ``None``: no bound."""

    span: int | None = None
    """Nanoseconds back from the newest block."""
    bytes: int | None = None

    def holds(self, piece: Piece, newest: Instant, total: int) -> bool:
        """Whether a piece is kept, if it and all newer ones have ``total`` bytes."""
        old = self.span is not None and newest - piece.time > self.span
        return not old and (self.bytes is None or total <= self.bytes)


def parse_keep(text: str) -> Keep:
    """Parses ``all``, ``30d``, ``10GiB``, or ``30d,10GiB``. Raises Invalid."""
    span = size = None
    for part in text.split(",") if text != ALL else ():
        if (found := _SPAN.match(part)) and span is None:
            span = int(found[1]) * _HOURS[found[2]] * _HOUR * SECOND
        elif SIZE.match(part) and size is None:
            size = parse_size(part)
        else:
            raise Invalid(
                f"{text[:60]!r} does not say how much data to keep",
                rule="mirror-keep",
                hint="write all, 30d (of the newest block's last 30 days), 10GiB (the newest bytes), or 30d,10GiB",
            )
    return Keep(span=span, bytes=size)


def parse_rate(text: str) -> int:
    """Parses ``2MiB`` or ``2MiB/s`` into bytes a second. Raises Invalid."""
    try:
        rate = parse_size(text.removesuffix("/s"))
    except Invalid:
        rate = 0
    if not rate:
        raise Invalid(
            f"{text[:60]!r} is no rate", rule="mirror-rate", hint="write bytes a second, like 500kB or 2MiB, or none"
        )
    return rate


def giving_way(
    needed: int, mirrors: Iterable[tuple[Mirrored, Iterable[tuple[int, int]]]]
) -> dict[Mirrored, int] | None:
    """Decides which mirrors delete data before which blocks, to free ``needed`` bytes; ``None`` if that is impossible.

    ``mirrors``: in the order in which they give way, each with its block numbers, the oldest first, and the bytes of
    each.
    """
    plan: dict[Mirrored, int] = {}
    for mirror, pieces in mirrors:
        for number, size in pieces:
            if needed <= 0:
                return plan
            needed -= size
            plan[mirror] = number + 1
    return plan if needed <= 0 else None


def oldest_kept(keep: Keep, newest: Instant, pieces: Iterable[Piece], size: int) -> int:
    """Returns the first block whose data is kept, of a chain of ``size`` blocks; ``pieces`` come newest first.

    Reads no further than the first piece that is not kept.
    """
    first, total = size, 0
    for piece in pieces:
        total += piece.bytes
        if not keep.holds(piece, newest, total):
            return first
        first = piece.sequence
    return 0


def first_kept(keep: Keep, newest: Instant, pieces: Iterable[Piece], total: int, first: int) -> int:
    """Returns the first block whose data is kept,
    if ``total`` bytes from block ``first`` on are here; reads no further."""
    for piece in pieces:
        if keep.holds(piece, newest, total):
            break
        total -= piece.bytes
        first = piece.sequence + 1
    return first
