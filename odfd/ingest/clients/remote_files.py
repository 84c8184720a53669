"""Declares the request for files of a server and its answer, and decides which file a pattern takes next. Pure.

For any protocol that lists folders. The request and answer of SFTP are here too, since the module that serves them
imports a client that is an extra.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.instant import SECOND, Instant
from chain.model.source import SourceOrdering
from odfd.ingest.bucket_objects import QUIET, Keys, ObjectPosition, StoredObject, ahead
from odfd.ingest.source_process import SourceJob, SourceResult

MAX_LISTED: Final = 100_000
"""Entries of folders that are looked at for one file."""
MAX_DEPTH: Final = 32
"""Depth of folders that ``**`` matches."""
LOOKED_AT: Final = 10_000
"""Files before the position that are reported to find late ones among them."""
SFTP: Final = "source-sftp"
PROGRAM: Final = "odfd.ingest.clients.sftp"
"""The module of the process: only it imports the client, which is an extra."""


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """The order of a pattern's files, and how far they were taken."""

    order: str
    last: ObjectPosition | None
    now: int


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the server as it was listed."""

    key: str
    """Path of the file below the root, or below the user's initial folder."""
    size: int
    modified: int
    """Seconds since 1970."""

    @property
    def version(self) -> str:
        """A text that changes with size or time."""
        return f"{self.size}-{self.modified}"

    def as_object(self) -> StoredObject:
        """Returns the file as an object of a bucket, whose rules for patterns apply."""
        return StoredObject(self.key, self.size, self.version, Instant(self.modified * SECOND))


class RemoteFileJob(SourceJob, frozen=True, kw_only=True):
    """The request to read a file of a server. The user and the secrets are filled in."""

    addresses: tuple[str, ...]
    """Addresses that may be dialled, in this order; the name is not resolved again."""
    port: int
    user: str
    path: str
    """Path of one file, or a pattern; without a leading slash it is relative to the user's initial folder."""
    known: str | None
    """The version of the file that the chain took in, for a single file."""
    pattern: Pattern | None
    """Order and position of the pattern; ``None``: a single file is requested."""
    connect: float
    silence: float
    """Seconds without a word from the server after which the read fails."""
    reserve: int
    """Bytes left free on the disk of the target."""


class RemoteFileResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads a file of a server."""

    found: RemoteFile | None = None
    """The file that was read; ``None``: none is new."""
    more: bool = False
    behind: tuple[RemoteFile, ...] = ()
    """Files before the position, of which some may have appeared late."""


class SftpJob(RemoteFileJob, frozen=True, kw_only=True):
    """The request to read a file by SFTP."""

    host_key: str
    """The only key that the server may show, as a line of OpenSSH."""
    password: str | None
    private_key: str | None


class SftpResult(RemoteFileResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads files by SFTP."""

    rule: str = SFTP


class Folders:
    """Tracks which folders of a pattern are still to be listed, up to a depth."""

    def __init__(self, pattern: str) -> None:
        self.root = "/" if pattern.startswith("/") else ""
        self.keys = Keys(pattern.removeprefix("/"))
        is_deep = "**" in pattern.split("/")
        self._depth = MAX_DEPTH if is_deep else pattern.count("/") - len(self.root) + 1
        self.waiting = [self.keys.folder]

    def below(self, folder: str, name: str) -> str:
        """Returns the key of an entry of a folder."""
        return f"{folder}/{name}" if folder else name

    def add(self, key: str) -> None:
        """Adds a folder to list, unless no file of the pattern can lie in it."""
        if key.count("/") < self._depth - 1:
            self.waiting.append(key)


def next_files(listed: list[RemoteFile], path: str, pattern: Pattern) -> tuple[list[RemoteFile], list[RemoteFile]]:
    """Returns the next file with the one after it, and the files before the position.

    A file is left until it is ``QUIET`` old, as it may still be written. In the order by name the files after it wait
    too, since they would be taken in its place.
    """
    keys, order = Keys(path.removeprefix("/")), SourceOrdering(pattern.order)
    by_key = {each.key: each for each in sorted(listed, key=lambda each: each.key)}
    stored = [each.as_object() for each in by_key.values()]
    found = ahead(stored, keys, pattern.last, order, Instant(pattern.now))
    if found and found[0].modified > pattern.now - QUIET:
        found = []
    last = pattern.last
    behind = [] if last is None else [each for each in stored if keys.fit(each) and not last.is_before(each)]
    return [by_key[each.key] for each in found], [by_key[each.key] for each in behind[-LOOKED_AT:]]
