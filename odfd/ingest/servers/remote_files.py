"""Decides which file of a server's folders is next for a pattern, whatever protocol lists them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from chain.instant import SECOND, Instant
from chain.model.source import SourceOrdering
from odfd.ingest.bucket_objects import QUIET, Keys, Position, StoredObject, ahead

MAX_LISTED: Final = 100_000
"""Entries of folders that are looked at for one file."""
MAX_DEPTH: Final = 32
"""Folders within each other that ``**`` stands for."""
LOOKED_AT: Final = 10_000
"""Files before the position that are told to who knows which of them came late."""


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a source, and how far they were taken."""

    order: str
    last: Position | None
    now: int


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the server as it was listed."""

    key: str
    """Its path below the root, or below where the user arrives."""
    size: int
    modified: int
    """Seconds since 1970."""

    @property
    def version(self) -> str:
        """Another for another size or time."""
        return f"{self.size}-{self.modified}"

    def stored(self) -> StoredObject:
        """Returns it as an object of a bucket, by whose rules patterns are taken."""
        return StoredObject(self.key, self.size, self.version, Instant(self.modified * SECOND))


class Folders:
    """Says which folders of a pattern are still to be listed, and how deep they may lie."""

    def __init__(self, pattern: str) -> None:
        self.root = "/" if pattern.startswith("/") else ""
        self.keys = Keys(pattern.removeprefix("/"))
        is_deep = "**" in pattern.split("/")
        self._depth = MAX_DEPTH if is_deep else pattern.count("/") - len(self.root) + 1
        self.waiting = [self.keys.folder]

    def below(self, folder: str, name: str) -> str:
        """Returns the key of an entry."""
        return f"{folder}/{name}" if folder else name

    def add(self, key: str) -> None:
        """Notes a folder, unless no file of the pattern can lie in it."""
        if key.count("/") < self._depth - 1:
            self.waiting.append(key)


def next_files(listed: list[RemoteFile], path: str, pattern: Pattern) -> tuple[list[RemoteFile], list[RemoteFile]]:
    """Returns the next file with the one behind it, and those before the position.

    A file is left until it is ``QUIET`` old: it may still be written. By name those behind it wait for it, for they
    would be taken in its place.
    """
    keys, order = Keys(path.removeprefix("/")), SourceOrdering(pattern.order)
    by_key = {each.key: each for each in sorted(listed, key=lambda each: each.key)}
    stored = [each.stored() for each in by_key.values()]
    found = ahead(stored, keys, pattern.last, order, Instant(pattern.now))
    if found and found[0].modified > pattern.now - QUIET:
        found = []
    last = pattern.last
    behind = [] if last is None else [each for each in stored if keys.fit(each) and not last.is_before(each)]
    return [by_key[each.key] for each in found], [by_key[each.key] for each in behind[-LOOKED_AT:]]
