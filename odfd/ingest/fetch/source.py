"""Declares what a kind of source is: everything that the node asks of it, the request for a fetch and its outcomes.

A kind is a subclass of ``Source``, and a row of ``odfd.ingest.fetch.dispatch`` or an entry point of another package. It
never writes outside of the folder of its job and keeps nothing between calls: the source state in the chain tells how
far the source was ingested. If cancelled, it ends at once.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from chain.errors import Invalid, Refused
from chain.instant import Instant
from chain.model.events import SourceState
from chain.model.fetch_options import OWN_SCHEME, RULE, FetchOptions
from chain.model.read_options import read_options
from chain.model.schema import DataSchema
from chain.model.source import FetchFilesGlob, FetchUrl, ReadNdJson, ReadParquet, ReadStep
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


NOT_OPEN: Final = "source-not-open"
_PART: Final = re.compile(r"([A-Za-z0-9+/=_-]{1,64})/(0|[1-9][0-9]{0,8})\Z")
StepT = TypeVar("StepT", bound=msgspec.Struct)
OptionsT = TypeVar("OptionsT")


class AddressRange(msgspec.Struct, frozen=True):
    """Addresses of one part of a source, from ``start`` to before ``end``.

    A part is numbered within one incarnation of the source, ``ID/NUMBER``: a topic that was made again has other parts.
    """

    part: str
    start: int
    end: int

    @property
    def place(self) -> tuple[str, int]:
        """The id of the incarnation, and the number of the part. Raises Invalid."""
        if (found := _PART.match(self.part)) is None:
            raise Invalid(f"{self.part[:100]!r} is no partition of a topic", rule="kafka-position")
        return found[1], int(found[2])


class Source(ABC, Generic[StepT, OptionsT]):
    """One source: a fetch step of the format, with the options that the format does not have."""

    options_type: ClassVar[type[msgspec.Struct] | None] = None
    """Class of the options; ``None``: the kind has none. If it can do without, each option has a default."""

    def __init__(self, step: StepT, options: OptionsT) -> None:
        self.step, self.options = step, options

    @abstractmethod
    def check(self, settings: IngestSettings) -> None:
        """Checks the step before a fetch. Raises Refused, Invalid. Blocking."""

    @abstractmethod
    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches what is next. Raises NotFound, Remote (not reachable), Refused, Invalid, Environment."""

    @property
    def address(self) -> str:
        """The place that the rows are from, for people."""
        return url_of(self.step) if isinstance(self.step, FetchUrl | FetchFilesGlob) else tag_of(self.step)

    @property
    def is_asked_anew(self) -> bool:
        """Whether each fetch brings a document of its own, and no continuation."""
        return False

    def check_read(self, read: ReadStep) -> None:
        """Raises Invalid for a read step that cannot read what the source gives."""

    def check_open(self) -> None:
        """Raises Refused for a source that is not equally open to all validators."""
        raise Refused("its source is not on the web", rule=NOT_OPEN, hint="other nodes cannot fetch it")

    @classmethod
    def misfit(cls, step: StepT, _options: FetchOptions) -> Invalid:
        """Describes options that the kind does not have."""
        return Invalid(f"a step of kind {tag_of(step)} has no options", rule=RULE, hint="see odfctl docs sources")

    async def find_lost(self, _job: FetchJob) -> tuple[AddressRange, ...]:
        """Asks what the source let go of after the position of the job; raises what ``fetch`` does."""
        return ()

    def skip(self, before: SourceState, lost: tuple[AddressRange, ...]) -> SourceState:
        """Returns the source state that goes on after what was lost from the position ``before`` on."""
        raise NotImplementedError

    def addresses_between(self, _before: SourceState, _after: SourceState) -> tuple[AddressRange, ...] | None:
        """Returns what lies between two states; nothing: the second does not follow; ``None``: no positions."""
        return None


AnySource: TypeAlias = Source[Any, Any]


def url_of(step: FetchUrl | FetchFilesGlob) -> str:
    """Returns the URL or the pattern of a step."""
    return step.url if isinstance(step, FetchUrl) else step.path


def tag_of(step: msgspec.Struct) -> str:
    """Returns the kind of a fetch step of the format, or of options, as manifests write it."""
    return str(step.__struct_config__.tag)


def web_step(step: FetchUrl) -> FetchUrl:
    """Returns the step that a manifest has, whose URL has no prefix of ours."""
    return msgspec.structs.replace(step, url=step.url.removeprefix(OWN_SCHEME))


def check_rows(read: ReadStep, kind: str) -> None:
    """Raises Invalid where a source of rows with types is read as anything else."""
    if not isinstance(read, ReadParquet) or read_options(read.schema).format is not None:
        raise Invalid(f"{kind} gives rows with their types", rule=RULE, hint="write read: {kind: Parquet}")


def check_lines(read: ReadStep, kind: str) -> None:
    """Raises Invalid where a source of JSON documents is read as anything else."""
    if not isinstance(read, ReadNdJson):
        raise Invalid(f"{kind} gives a document a line", rule=RULE, hint="write read: {kind: NdJson}")
