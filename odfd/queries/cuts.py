"""Finds where a dataset is cut for a query: by system time, at a block, or at a pin. Reads few blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from chain import instant
from chain.errors import Invalid, NotFound
from chain.instant import Instant
from chain.model.block import Block
from chain.multihash import Multihash
from chain.store.base import ChainReader
from engines.query.temporal import AS_AT, AS_OF, AT_BLOCK
from odfd.control.wire import Pin

_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d\Z")
_LOCAL: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?\Z")
_MICROSECOND: Final = 1000


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The first ``size`` blocks of a chain, the last of which is ``block``."""

    size: int
    block: Multihash
    until: int | None = None
    """Microseconds since 1970: rows with a later event time are left out; ``None``: none are."""


def cut_of(name: str, chain: ChainReader, clauses: Mapping[str, str], pin: Pin | None, limit: int | None = None) -> Cut:
    """Computes a cut. ``limit``: number of readable blocks; later blocks are treated as absent.
    Raises Invalid, NotFound."""
    head = chain.head()
    if head is None or limit == 0:
        raise NotFound(f"{name} has no blocks here", rule="query-cut", hint=f"odfctl pull {name}")
    if AS_OF in clauses and AT_BLOCK in clauses:
        raise Invalid(f"{name} is cut by time and at a block", rule="query-time", hint="say one of both")
    until = int(moment(clauses[AS_AT])) // _MICROSECOND if AS_AT in clauses else None
    size = head.size if limit is None else min(limit, head.size)
    if pin is not None:
        block = _pin_block(name, chain, pin, size)
    elif AT_BLOCK in clauses:
        block = _block_of(name, chain, clauses[AT_BLOCK], size)
    elif AS_OF in clauses:
        block = chain.block_at(_known_at(name, chain, moment(clauses[AS_OF]), size) - 1)
    elif size == head.size:
        return Cut(size=size, block=head.hash, until=until)
    else:
        block = chain.block_at(size - 1)
    return Cut(size=block.sequence_number + 1, block=block.hash, until=until)


def moment(text: str) -> Instant:
    """Parses a day, a time of UTC, or RFC 3339. Raises Invalid."""
    wanted = text.strip()
    if _DAY.match(wanted):
        wanted += "T00:00:00Z"
    elif _LOCAL.match(wanted):
        wanted = wanted.replace(" ", "T") + ("Z" if wanted.count(":") > 1 else ":00Z")
    try:
        return instant.parse(wanted)
    except (Invalid, ValueError) as error:
        raise Invalid(
            f"not a time: {text[:60]!r}", rule="query-time", hint="write 2024-05-01, or 2024-05-01T12:00:00Z"
        ) from error


def _block_of(name: str, chain: ChainReader, at: str, size: int) -> Block:
    digits = at.removeprefix("#")
    if digits.isascii() and digits.isdecimal():
        if len(digits) > 18 or int(digits) >= size:
            raise NotFound(
                f"{name} has no block #{digits[:20]}",
                rule="query-cut",
                hint=f"its newest is #{size - 1}: odfctl log {name}",
            )
        return chain.block_at(int(digits))
    block = chain.block_by_hash(Multihash.parse(at))
    if block.sequence_number >= size:
        raise NotFound(f"{name} has no block {at[:200]}", rule="query-cut", hint=f"its newest is #{size - 1}")
    return block


def _known_at(name: str, chain: ChainReader, when: Instant, size: int) -> int:
    """Returns the number of blocks at a time, by bisection, since system times of a chain never go back.
    Raises NotFound if zero."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if chain.block_at(middle).system_time <= when:
            low = middle + 1
        else:
            high = middle
    if not low:
        first = instant.render(chain.block_at(0).system_time)
        raise NotFound(
            f"nothing of {name} was known at {instant.render(when)}",
            rule="query-cut",
            hint=f"its first block is of {first}",
        )
    return low


def _pin_block(name: str, chain: ChainReader, pin: Pin, size: int) -> Block:
    number = pin.sequence_number
    if not 0 <= number < size:
        raise NotFound(
            f"{name} has no block #{number}, at which it is pinned", rule="query-pin", hint=f"odfctl pull {name}"
        )
    block = chain.block_at(number)
    if str(block.hash) != pin.block:
        raise NotFound(
            f"block #{number} of {name} is not the pinned one: its history was rewritten",
            rule="query-pin",
            hint=f"odfctl log {name} --epoch N shows what is kept of an earlier one",
        )
    return block
