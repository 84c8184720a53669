"""Declares the request to a fetcher, its possible answers, and headers that are for one origin alone.

A fetcher never writes outside of its folder and never keeps anything between calls: what was ingested last is told by
the source state in the chain. Cancelled, it ends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from chain.instant import Instant
from chain.model.events import SourceState
from chain.model.fetch_options import FetchOptions
from chain.model.schema import DataSchema
from engines.contract import SkippedFile
from odfd.ingest.settings import IngestSettings

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""In lower case."""


DEFAULT_SOURCE = "default"
"""Name of a polling source in a source state."""
ETAG = "odf/etag"
LAST_MODIFIED = "odf/last-modified"
OBJECT = "w3id.org/odfd/object"
"""Kind of a source state: an object of a bucket."""


PassedOver: TypeAlias = Callable[[Sequence[str], Instant], tuple[SkippedFile, ...]]
"""Paths in the order of their names, and the time."""


class TakenObjects(Protocol):
    """Knows the objects of a bucket that the chain took in."""

    turn: str
    """The key behind which the next look for late ones begins."""

    def late(self, objects: Sequence[tuple[str, str, Instant]]) -> tuple[SkippedFile, ...]:
        """Returns those of keys, tags and times before the last that came, or changed, too late to be taken."""


class FetchJob(msgspec.Struct, frozen=True, kw_only=True):
    """One fetch; ``folder`` is empty and belongs to it."""

    state: SourceState | None
    now: Instant
    folder: Path
    settings: IngestSettings
    passed_over: PassedOver | None = None
    """Tells which files of a folder came, or changed, too late to be taken."""
    taken: TakenObjects | None = None
    """The same of a bucket."""
    dataset: str = ""
    """Its identity, by which a broker knows who it is that comes again."""
    options: FetchOptions | None = None
    """What the source is beyond its fetch step."""
    columns: DataSchema | None = None
    """Declared columns of the read step."""

    def known(self, kind: str) -> str | None:
        """Returns the last source state if it is of ``kind``; ignores other kinds."""
        return self.state.value if self.state is not None and self.state.kind == kind else None


class Local(msgspec.Struct, frozen=True, kw_only=True):
    """A file of this machine that others may write to while it is read."""

    path: Path
    size: int
    changed: int
    """Nanoseconds since 1970, by the file system."""
    inode: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> Local:
        """Reads a file's identity. Blocking. Raises OSError."""
        found = path.stat()
        return cls(path=path, size=found.st_size, changed=found.st_mtime_ns, inode=(found.st_dev, found.st_ino))

    def is_unchanged(self) -> bool:
        """Whether the file is the same, and unmodified. Blocking."""
        try:
            return Local.of(self.path) == self
        except OSError:
            return False


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """One file to ingest now."""

    path: Path
    more: tuple[Path, ...] = ()
    """Further files of the same transaction, in this order."""
    name: str
    """What people call it, for messages."""
    identity: str
    """Changes whenever the bytes do; part of the transaction's identity."""
    event_time: Instant | None = None
    """For rows that carry none."""
    state: SourceState | None = None
    """What the next fetch needs to know; ``None``: this source cannot tell what is new."""
    has_more: bool = False
    local: Local | None = None
    """The file at its source, where it is not a copy of our own."""
    decoded: bool = False
    """Its server had packed it with gzip for the way, and it is unpacked."""
    skipped: tuple[SkippedFile, ...] = ()
    """Files that are there too, and that no fetch will take."""


class Unchanged(msgspec.Struct, frozen=True):
    """The source has nothing newer than the source state."""

    skipped: tuple[SkippedFile, ...] = ()
    """As of ``Fetched``."""


FetchOutcome: TypeAlias = Fetched | Unchanged


def file_identity(path: Path) -> str:
    """Returns the identity of a local file without reading it: any write changes size or times. Raises OSError."""
    found = path.stat()
    return f"file:{path}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
