"""Reads the addresses of a source for reclocking: what is new, and the bytes of a binding again. The port of sources.

There are two kinds of addresses. **Files**, and all that a source answers once: their bytes are kept beside the chain
before they are bound, and nobody asks the source again. **Positions** of a topic: the source itself gives the same
bytes for the same range, until it lets go of them: a binding has only their hash, and each instance reads them there.
Bytes of a topic that is compacted are kept too. Spec: docs/spec/collections.md#addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from chain.errors import Refused
from chain.ids import DatasetId
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import KafkaTopic, fetch_options
from chain.model.source import FetchUrl
from chain.state import ChainState
from engines.contract import SkippedFile
from engines.skipped import bounded_list
from odfd.ingest.driver import IngestDependencies, check_unchanged, fetch_job, fetched
from odfd.ingest.fetch.base import Fetched, Unchanged, names_of
from odfd.ingest.fetch.files import left_alone
from odfd.ingest.fetch.kafka_ranges import (
    MOST_PARTITIONS,
    AddressRange,
    check_follows,
    fetch_again,
    fetch_gaps,
    fetch_ranges,
    parsed_part,
)
from odfd.ingest.plan import Batch


class Offer(NamedTuple):
    """New bytes of a source, to be bound."""

    batch: Batch
    ranges: tuple[AddressRange, ...] = ()
    """The addresses of each file; none: the source has no positions."""
    kept: bool = True
    """Whether the bytes have to be kept, because the source may not give them again."""


class Addresses(Protocol):
    """The port: a source whose addresses are bound to times."""

    async def offered(self, state: ChainState, last: str | None, folder: Path, /) -> Offer | None:
        """Fetches what is new after ``state``; ``None``: nothing. ``last``: the part that was bound last, if any."""

    async def check(self, offer: Offer, /) -> None:
        """Raises Remote if the bytes changed while they were kept."""

    async def again(self, state: ChainState, ranges: Sequence[AddressRange], folder: Path, /) -> Sequence[Path | None]:
        """Fetches the bytes of bound addresses: a file for each, ``None`` where nothing is left.

        Raises Refused by the rule ``source-forgot`` where the source has let go of them.
        """

    async def forgotten(self, state: ChainState, before: SourceState | None, folder: Path, /) -> Sequence[AddressRange]:
        """Returns the addresses after the position ``before`` that the source let go of."""

    def check_follows(
        self, before: SourceState | None, after: SourceState | None, ranges: Sequence[AddressRange], /
    ) -> None:
        """Raises Remote for a binding of addresses that do not go on where the last ones ended."""


def addresses_of(deps: IngestDependencies, shard: DatasetId, source: SetPollingSource, *, one_part: bool) -> Addresses:
    """Returns the addresses of a source. ``one_part``: each binding is of one part of it."""
    options = fetch_options(source.read.schema)
    if isinstance(options, KafkaTopic) and isinstance(source.fetch, FetchUrl):
        return Positions(deps, shard, source, 1 if one_part else MOST_PARTITIONS)
    return KeptFiles(deps, shard, source)


class KeptFiles:
    """Addresses whose bytes are kept: all kinds of sources but topics."""

    def __init__(self, deps: IngestDependencies, shard: DatasetId, source: SetPollingSource) -> None:
        self._deps, self._shard, self._source = deps, shard, source
        self.skipped: tuple[SkippedFile, ...] = ()
        """Files that the source has and no fetch will take, and what it lost."""

    async def offered(self, state: ChainState, _last: str | None, folder: Path) -> Offer | None:
        found = await fetched(self._deps, self._shard, self._source, state, folder)
        self.skipped = bounded_list((*self.skipped, *found.skipped))
        if isinstance(found, Unchanged) or not await left_alone(found.local, self._deps.settings, self._deps.now):
            return None
        return Offer(_batch(found, fills=getattr(self._source.fetch, "event_time", None) is not None))

    async def check(self, offer: Offer) -> None:
        await check_unchanged(offer.batch)

    async def again(self, _state: ChainState, _ranges: Sequence[AddressRange], _folder: Path) -> Sequence[Path | None]:
        raise _no_positions()

    async def forgotten(self, _state: ChainState, _before: SourceState | None, _folder: Path) -> Sequence[AddressRange]:
        return ()

    def check_follows(
        self, _before: SourceState | None, _after: SourceState | None, ranges: Sequence[AddressRange]
    ) -> None:
        if ranges:
            raise _no_positions()


class Positions:
    """Positions in the partitions of a topic."""

    def __init__(self, deps: IngestDependencies, shard: DatasetId, source: SetPollingSource, most: int) -> None:
        """``most``: partitions of one binding."""
        self._deps, self._shard, self._source, self._most = deps, shard, source, most
        topic = fetch_options(source.read.schema)
        assert isinstance(topic, KafkaTopic)
        assert isinstance(source.fetch, FetchUrl)
        self._topic, self._step = topic, source.fetch

    async def offered(self, state: ChainState, last: str | None, folder: Path) -> Offer | None:
        job = await fetch_job(self._deps, self._shard, self._source, state, folder)
        first = 0 if last is None else parsed_part(last)[1] + 1
        found = await fetch_ranges(self._step, self._topic, job, first=first, most=self._most)
        if found is None:
            return None
        ranges = tuple(f"{each.part}:{each.start}-{each.end}" for each in found.ranges)
        batch = Batch(
            paths=found.paths, names=found.names, identity="\n".join(ranges), event_time=job.now, state=found.state
        )
        return Offer(batch, found.ranges, kept=not found.is_replayable)

    async def check(self, offer: Offer) -> None:
        """Files of a fetch are its own: nobody else writes to them."""

    async def again(self, state: ChainState, ranges: Sequence[AddressRange], folder: Path) -> Sequence[Path | None]:
        job = await fetch_job(self._deps, self._shard, self._source, state, folder)
        return await fetch_again(self._step, self._topic, job, ranges)

    async def forgotten(self, state: ChainState, before: SourceState | None, folder: Path) -> Sequence[AddressRange]:
        job = await fetch_job(self._deps, self._shard, self._source, state, folder)
        return await fetch_gaps(self._step, self._topic, msgspec.structs.replace(job, state=before))

    def check_follows(
        self, before: SourceState | None, after: SourceState | None, ranges: Sequence[AddressRange]
    ) -> None:
        check_follows(before, after, ranges)


def _no_positions() -> Refused:
    return Refused(
        "the reclocking chain binds positions of a topic, and this source has none",
        rule="reclock-addresses",
        hint="something else wrote to the reclocking chain",
    )


def _batch(found: Fetched, *, fills: bool) -> Batch:
    """Returns the bytes as they came, which each instance prepares when it decodes them."""
    return Batch(
        paths=(found.path, *found.more),
        names=names_of(found),
        identity=found.identity,
        event_time=found.event_time,
        state=found.state,
        fills_event_time=found.event_time is not None and fills,
        local=found.local,
        decoded=found.decoded,
    )
