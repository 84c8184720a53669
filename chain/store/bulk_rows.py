"""Binds rows to one SQLite statement by the thousand.

``executemany`` releases the interpreter's lock before each row and takes it again after. Beside a thread that computes,
each of these can cost 5 ms: a commit next to a busy network took 25 times as long. Here the columns of all rows are
bound as a few values, and SQLite loops over them itself, without the lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec

_TAG_BITS: Final = 8
_LENGTH_BITS: Final = 25
LONGEST: Final = (1 << _LENGTH_BITS) - 1
"""Most bytes of one value; a block has 16 MiB at most."""
MOST: Final = 1 << 28
"""Most bytes of all values, so that place, length and tag fit into one integer of SQLite's."""

TAG: Final = f"value & {(1 << _TAG_BITS) - 1}"
"""SQL for the tag of the row."""


def each(parameter: str) -> str:
    """Returns SQL for the row's value in the bytes bound to ``parameter``, beside ``json_each`` over ``places``."""
    found = f"substr({parameter}, (value >> {_LENGTH_BITS + _TAG_BITS}) + 1, (value >> {_TAG_BITS}) & {LONGEST})"
    return f"coalesce({found}, x'')"  # SQLite returns NULL for an empty part


def places(values: Sequence[bytes], tags: Sequence[int]) -> str:
    """Encodes each value's place in the joined bytes, with a tag below 256, as a JSON array for ``json_each``."""
    lengths = [len(value) for value in values]
    starts = accumulate(lengths, initial=0)  # one more than values: where the next would begin
    of_rows = zip(starts, lengths, tags)  # noqa: B905
    return numbers([start << _LENGTH_BITS + _TAG_BITS | size << _TAG_BITS | tag for start, size, tag in of_rows])


def by_width(values: Sequence[bytes], counted: Sequence[int]) -> Iterator[tuple[int, bytes, str]]:
    """Groups numbered values by width; yields the width, the values joined, and the numbers to bind.

    Within a width the order stays. ``substr(?, key * width + 1, width)`` is the value of a row, ``value`` its number.
    """
    widths = set(map(len, values))
    if len(widths) == 1:
        yield widths.pop(), b"".join(values), numbers(counted)
        return
    for width in sorted(widths):
        same = [(value, number) for value, number in zip(values, counted, strict=True) if len(value) == width]
        yield width, b"".join(value for value, _ in same), numbers([number for _, number in same])


def numbers(values: Sequence[int]) -> str:
    return msgspec.json.encode(list(values)).decode()
