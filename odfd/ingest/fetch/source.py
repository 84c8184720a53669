"""Declares what a kind of source is: everything that the node asks of it, with answers for kinds that are plain.

A kind is a subclass, and a row of ``odfd.ingest.fetch.dispatch`` or an entry point of another package.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import msgspec

from chain.errors import Invalid, Refused
from chain.model.events import SourceState
from chain.model.fetch_options import OWN_SCHEME, RULE, FetchOptions
from chain.model.read_options import read_options
from chain.model.source import FetchFilesGlob, FetchUrl, ReadNdJson, ReadParquet, ReadStep
from odfd.ingest.fetch.base import FetchJob, FetchOutcome
from odfd.ingest.settings import IngestSettings

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
