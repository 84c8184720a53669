"""Declares the request to a fetcher, its possible outcomes, and the headers that only one origin may see.

A fetcher never writes outside of its folder and never keeps anything between calls: the source state in the chain tells
how far the source was ingested. If cancelled, it ends at once.
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
"""Names of headers with credentials, in lower case."""


DEFAULT_SOURCE = "default"
"""Name of a polling source in a source state."""
ETAG = "odf/etag"
LAST_MODIFIED = "odf/last-modified"
OBJECT = "w3id.org/odfd/object"
"""Kind of a source state: an object of a bucket."""


PassedOver: TypeAlias = Callable[[Sequence[str], Instant], tuple[SkippedFile, ...]]
"""Returns the files that came or changed too late, from paths in the order of their names, and the current time."""


class TakenObjects(Protocol):
    """Knows which objects of a bucket the chain took in."""

    turn: str
    """The key after which the next look for late objects begins."""

    def late(self, objects: Sequence[tuple[str, str, Instant]]) -> tuple[SkippedFile, ...]:
        """Returns those ``objects`` (key, tag, time), all before the last one taken, that came or changed too late."""


class FetchJob(msgspec.Struct, frozen=True, kw_only=True):
    """The request for one fetch; ``folder`` is empty and belongs to it."""

    state: SourceState | None
    now: Instant
    folder: Path
    settings: IngestSettings
    passed_over: PassedOver | None = None
    """Returns the files of a folder that came or changed too late to be taken."""
    taken: TakenObjects | None = None
    """Knows the objects of a bucket that were taken."""
    dataset: str = ""
    """The dataset's id, which identifies its session with a broker, and its container."""
    options: FetchOptions | None = None
    """Options of the source beyond its fetch step."""
    columns: DataSchema | None = None
    """The columns that the read step declares."""

    def value_of(self, kind: str) -> str | None:
        """Returns the value of the last source state if it is of ``kind``, else ``None``."""
        return self.state.value if self.state is not None and self.state.kind == kind else None


class Local(msgspec.Struct, frozen=True, kw_only=True):
    """A file of this machine that others may write to while it is read."""

    path: Path
    size: int
    changed: int
    """Time of the last change in nanoseconds since 1970, by the file system."""
    inode: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> Local:
        """Reads a file's identity. Blocking. Raises OSError."""
        found = path.stat()
        return cls(path=path, size=found.st_size, changed=found.st_mtime_ns, inode=(found.st_dev, found.st_ino))

    def is_unchanged(self) -> bool:
        """Whether the file is the same one, and unmodified. Blocking."""
        try:
            return Local.of(self.path) == self
        except OSError:
            return False


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one transaction to ingest now."""

    path: Path
    more: tuple[Path, ...] = ()
    """Further files of the same transaction, in this order."""
    name: str
    """Name of the file for people, in messages."""
    identity: str
    """A text that changes whenever the bytes do; part of the transaction's identity."""
    event_time: Instant | None = None
    """Event time for rows that have none."""
    state: SourceState | None = None
    """Source state for the next fetch; ``None``: this source cannot tell what is new."""
    has_more: bool = False
    local: Local | None = None
    """The original file, if ``path`` is not a copy of our own."""
    decoded: bool = False
    """Whether the server had packed the file with gzip for transport, and it was unpacked."""
    skipped: tuple[SkippedFile, ...] = ()
    """Further files that exist, and that no fetch will take."""


def names_of(found: Fetched) -> tuple[str, ...]:
    """Returns the names of the fetched files, for people: those of further pages are numbered."""
    return (found.name, *(f"{found.name} (page {number})" for number in range(2, len(found.more) + 2)))


class Unchanged(msgspec.Struct, frozen=True):
    """The source has nothing newer than the source state."""

    skipped: tuple[SkippedFile, ...] = ()
    """Files that exist, and that no fetch will take."""


FetchOutcome: TypeAlias = Fetched | Unchanged


def file_identity(path: Path) -> str:
    """Returns the identity of a local file without reading it: any write changes size or times. Raises OSError."""
    found = path.stat()
    return f"file:{path}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
