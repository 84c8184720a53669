"""Declares the request to a process that reads files by SFTP, its answer, and which file of a pattern is next. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from chain.instant import SECOND, Instant
from chain.model.source import SourceOrdering
from odfd.ingest.apart import SourceJob, SourceResult
from odfd.ingest.bucket_objects import QUIET, Keys, Position, StoredObject, ahead

SFTP: Final = "source-sftp"
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


class SftpJob(SourceJob, frozen=True, kw_only=True):
    """``user``, ``password`` and ``private_key`` are filled in."""

    addresses: tuple[str, ...]
    """Those that may be dialled, in this order; nothing is resolved again."""
    port: int
    host_key: str
    """The only key by which the server is known, as a line of OpenSSH."""
    user: str
    password: str | None
    private_key: str | None
    path: str
    """Of one file, or a pattern; without a slash at its begin it starts where the user arrives."""
    known: str | None
    """The version that the chain took in, of one file."""
    pattern: Pattern | None
    """``None``: one file is asked for."""
    connect: float
    silence: float
    """Seconds that the server may say nothing."""
    reserve: int
    """Bytes left free on the disk of the target."""


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


class SftpResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads files by SFTP."""

    found: RemoteFile | None = None
    """The file that was read; ``None``: none is new."""
    more: bool = False
    matched: bool = False
    """Whether any file fits the pattern."""
    behind: tuple[RemoteFile, ...] = ()
    """Files before the position: some may have come late."""
    rule: str = SFTP


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
