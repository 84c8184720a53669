"""Decides which object of a bucket a source takes next, from a listing and the position in the chain. Pure.

With the order by name the position is a key: objects whose keys sort after it follow, in the order of UTF-8, as
listings have it. With the order by time it is the time of an object and its key; an object is left until it is
``QUIET`` old, so that others of the same second are seen with it. Objects that appear later before the position are not
taken, but reported.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from chain.errors import Invalid, Refused
from chain.instant import SECOND, Instant, parse, render
from chain.model.source import SourceOrdering

QUIET: Final = 10 * SECOND
MAX_LISTED: Final = 1_000_000
"""Objects of a listing that are looked at for the next one: a thousand requests."""
RULE: Final = "bucket-objects"
_SPECIAL: Final = re.compile(r"[*?\[]")
_PIECE: Final = re.compile(r"\*+|\?|\[[!^]?\]?[^\]/]*\]|.", re.DOTALL)


class StoredObject(NamedTuple):
    """An object of a bucket, as a listing has it."""

    key: str
    size: int
    tag: str
    """The entity tag: it changes whenever the content does."""
    modified: Instant


class ObjectPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The last object that was taken, as a source state."""

    key: str
    tag: str
    modified: str
    order: str

    @classmethod
    def of(cls, taken: StoredObject, order: SourceOrdering) -> ObjectPosition:
        return cls(key=taken.key, tag=taken.tag, modified=render(taken.modified), order=order.value)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    def is_before(self, found: StoredObject) -> bool:
        """Whether an object comes after this position, in the order by which objects are taken."""
        if self.order == SourceOrdering.BY_NAME.value:
            return found.key > self.key
        return (found.modified, found.key) > (parse(self.modified), self.key)


def decode(value: str) -> ObjectPosition:
    """Decodes a source state. Raises Invalid if it is no position in a bucket."""
    try:
        found = msgspec.json.decode(value, type=ObjectPosition)
        parse(found.modified)
    except (msgspec.DecodeError, Invalid) as error:
        raise Invalid(f"the source state of the chain is no object of a bucket: {error}", rule=RULE) from error
    return found


class Keys:
    """A pattern of keys: ``*``, ``?`` and ``[…]`` match within one folder, ``**`` matches any number of folders."""

    def __init__(self, pattern: str) -> None:
        parts = pattern.split("/")
        self.folder = "/".join(itertools.takewhile(lambda part: _SPECIAL.search(part) is None, parts[:-1]))
        """The common folder of all matching keys, without the last slash."""
        self._matches = re.compile("".join(_expressions(parts)) + r"\Z", re.DOTALL)

    def fit(self, found: StoredObject) -> bool:
        """Whether an object belongs to the source. An object without bytes stands for a folder, and does not."""
        return found.size > 0 and self._matches.match(found.key) is not None


def _expressions(parts: list[str]) -> Iterator[str]:
    for number, part in enumerate(parts, 1):
        if part == "**":
            yield "(?:[^/]+/)*" if number < len(parts) else ".+"
        else:
            yield "".join(_expression(piece) for piece in _PIECE.findall(part)) + ("/" if number < len(parts) else "")


def _expression(piece: str) -> str:
    if piece.startswith("*"):
        return "[^/]*"
    if piece == "?":
        return "[^/]"
    if len(piece) > 1:
        inside = piece[1:-1]
        none = inside[:1] in ("!", "^")
        # A negated class matches a slash too, and re.escape takes the range out of [a-z].
        return f"(?!/)[{'^' if none else ''}{re.escape(inside[none:]).replace(chr(92) + '-', '-')}]"
    return re.escape(piece)


def in_order(listed: Iterable[StoredObject]) -> Iterator[StoredObject]:
    """Passes on the objects of a listing that have bytes. Raises Refused if it is not ordered by name, or too long."""
    last: str | None = None
    for number, each in enumerate(listed, 1):
        if number > MAX_LISTED:
            raise Refused(
                f"more than {MAX_LISTED:,} objects are listed, and the next one is not among them",
                rule=RULE,
                hint="narrow the folder before the first * of the path",
            )
        if each.size == 0:  # it stands for a folder, whose slash some libraries take away
            continue
        if last is not None and each.key <= last:
            raise Refused(
                f"the store lists {each.key!r} behind {last!r}, so nothing says what is new",
                rule=RULE,
                hint="a store that lists by name is needed; S3 directory buckets do not",
            )
        last = each.key
        yield each


def ahead(
    listed: Iterable[StoredObject], keys: Keys, last: ObjectPosition | None, order: SourceOrdering, now: Instant
) -> list[StoredObject]:
    """Returns the next object to take and the one after it, as far as they exist."""
    wanted = (each for each in listed if keys.fit(each) and (last is None or last.is_before(each)))
    if order is SourceOrdering.BY_NAME:
        return list(itertools.islice(wanted, 2))
    old = (each for each in wanted if each.modified <= now - QUIET)
    return heapq.nsmallest(2, old, key=lambda each: (each.modified, each.key))
