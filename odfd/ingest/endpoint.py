"""Describes the endpoint of a Source, checks pushes to it, and fetches the pushes that wait.

The bodies of pushes are checked as far as their format allows without columns. Faults that depend on the columns appear
when a dataset takes a push in; ``odfctl source drop`` then removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import trio

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.model.events import SourceState
from chain.model.source import ReadCsv, ReadJson, ReadNdGeoJson, ReadNdJson, ReadParquet, ReadStep
from chain.model.wire import U64, Scalar
from chain.wording import size
from odfd.ingest.fetch.base import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Unchanged
from odfd.ingest.hook_signature import HmacSignature, StandardWebhooks
from odfd.resources.manifest import described
from odfd.resources.types import OWN
from odfd.store.spool import Buffer, OverflowPolicy, Spooled

STATE: Final = "w3id.org/odfd/push"
"""Kind of a source state: the id of a Source, and the number of the last push that was taken."""
MAX_PUSH: Final = 8 << 20
"""Bytes of one push, which is checked as a whole in memory."""
_MOST: Final = 1000
"""Pushes taken in by one transaction."""
_MOST_BYTES: Final = 64 << 20
_USUAL: Final = 1000
"""Records of a buffer whose size is not declared."""


class MemoryBuffer(msgspec.Struct, frozen=True, kw_only=True, tag="Memory", rename="camel"):
    """A buffer in memory, whose records a crash loses."""

    buffer_size: Annotated[U64, described("Most records that wait. Default: 1000.")] | None = None
    overflow_policy: (
        Annotated[
            OverflowPolicy,
            Scalar("int32"),
            described("If the buffer is full: Reject (default) refuses new records, DropOldest drops the oldest."),
        ]
        | None
    ) = None


class RestEndpoint(msgspec.Struct, frozen=True, kw_only=True, tag="RestEndpoint"):
    """An endpoint to which records are pushed: POST /source/v1alpha1/sources/NAME/ingest."""

    buffer: (
        Annotated[MemoryBuffer, described("A buffer in memory. Without one, a push is on disk before it is answered.")]
        | None
    ) = None
    signature: (
        Annotated[
            StandardWebhooks | HmacSignature,
            described("Accepts calls signed in this way at /hooks/NAME, without a token."),
            OWN,
        ]
        | None
    ) = None


def buffer_of(endpoint: RestEndpoint) -> Buffer | None:
    said = endpoint.buffer
    if said is None:
        return None
    return Buffer(
        _USUAL if said.buffer_size is None else said.buffer_size, said.overflow_policy or OverflowPolicy.REJECT
    )


def records_in(data: bytes, read: ReadStep) -> int:
    """Checks a push against its format. Returns the number of records; a document counts as one.

    Raises Invalid for a push that is empty, too large, or not of the format.
    """
    if not data.strip() or len(data) > MAX_PUSH:
        text = f"{size(len(data))} were pushed" if data.strip() else "nothing was pushed"
        raise Invalid(text, rule="push-size", hint=f"from one record to {size(MAX_PUSH)}; odfctl ingest takes more")
    try:
        match read:
            case ReadNdJson() | ReadNdGeoJson() if _is_utf8(read):
                # msgspec.Raw leaves texts as they are, so bytes that are no UTF-8 would pass.
                data.decode()
                return len(_LINES.decode_lines(data))
            case ReadJson() if _is_utf8(read):
                data.decode()
                msgspec.json.decode(data, type=msgspec.Raw)
                return 1
            case ReadCsv() if _is_utf8(read):
                data.decode()
                rows = data.count(b"\n") + (not data.endswith(b"\n")) - bool(read.header)
                return max(rows, 1)
            case ReadParquet() if not (data[:4] == data[-4:] == b"PAR1"):
                raise Invalid("this is no Parquet file", rule="push-format", hint=_FORMAT)
            case _:
                return 1
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        kind = read.__struct_config__.tag
        raise Invalid(f"this is no {kind}: {error}", rule="push-format", hint=_FORMAT) from error


_LINES: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FORMAT: Final = "the Source's read step says what it takes: odfctl describe source NAME"


def _is_utf8(read: ReadStep) -> bool:
    return (getattr(read, "encoding", None) or "utf8").lower() in ("utf8", "utf-8")


Take: TypeAlias = Callable[[str, int, int, int], tuple[Sequence[Spooled], bool]]
"""The signature of ``odfd.store.spool.PushSpool.after``."""
Note: TypeAlias = Callable[[str, DatasetId, int], None]
"""The signature of ``odfd.store.spool.PushSpool.reads``."""


class EndpointFetch(NamedTuple):
    """Fetches for one dataset the pushes to one Source."""

    source: str
    """The id of the Source."""
    dataset: DatasetId
    singly: bool
    """Whether each push is a transaction of its own, since each is a whole snapshot."""
    take: Take
    note: Note

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        """Fetches the pushes after the source state. Raises Environment if the file of one is gone or cut off."""
        return await trio.to_thread.run_sync(self._fetch, job)

    def _fetch(self, job: FetchJob) -> FetchOutcome:
        after = position(job.value_of(STATE), self.source)
        # The chain knows what it took: a crash between its commit and this note leaves pushes that are freed now.
        self.note(self.source, self.dataset, after)
        found, has_more = self.take(self.source, after, 1 if self.singly else _MOST, _MOST_BYTES)
        if not found:
            return Unchanged()
        missing = next((each for each in found if not _is_whole(each)), None)
        if missing is not None:
            raise Environment(
                f"the file of push #{missing.number} is gone or cut off",
                rule="endpoint-push",
                hint=f"odfctl source drop NAME {missing.number} goes on without it",
            )
        first, last = found[0], found[-1]
        span = f"#{first.number}" if first is last else f"#{first.number} to #{last.number}"
        return Fetched(
            path=first.path,
            more=tuple(each.path for each in found[1:]),
            name=f"push {span}",
            identity=f"push:{self.source}:{first.number}:{last.number}",
            event_time=last.at,
            state=SourceState(source_name=DEFAULT_SOURCE, kind=STATE, value=f"{self.source}/{last.number}"),
            has_more=has_more,
        )


def _is_whole(push: Spooled) -> bool:
    try:
        return push.path.stat().st_size == push.bytes
    except FileNotFoundError:
        return False


def position(state: str | None, source: str) -> int:
    """Returns the number of the last push that was taken; 0 if the state is of another Source, or there is none."""
    whose, _, number = (state or "").rpartition("/")
    return int(number) if whose == source and number.isascii() and number.isdigit() else 0
