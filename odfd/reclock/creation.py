"""Begins a collection that several instances ingest: its reclocking chain and its shards, in one commit.

Spec: docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from chain.data.partition import MAX_SHARDS
from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant, to_millis
from chain.model.events import AddPushSource, DatasetKind, MetadataEvent, Seed, SetDataSchema, SetPollingSource
from chain.model.fetch_options import KafkaTopic, fetch_options
from chain.model.read_options import quarantine_of
from chain.model.source import FetchFilesGlob, primary_key
from chain.state import ChainState
from chain.store.shards import CommitPoint, Committed, Proposal, ShardStore
from chain.wording import plural
from odfd.datasets.manifest import MAX_SHARD_COLUMNS
from odfd.ingest.capture_bindings import SCHEMA, Division, described
from odfd.ingest.sharded_writes import check_source
from odfd.trust.signing.owner_commit import author_blocks


class ShardsWanted(NamedTuple):
    """The shards of a new collection, and what decides the shard of a row: columns, or the part of the source."""

    number: int = 1
    by: tuple[str, ...] = ()
    by_part: bool = False
    keep_raw: bool = False
    """Whether bytes are kept that the source would give again, too."""


def begin(
    store: ShardStore,
    new_id: Callable[[], DatasetId],
    declared: Sequence[MetadataEvent],
    division: ShardsWanted,
    now: Instant,
) -> DatasetId:
    """Begins the chains, at the time ``now``. Returns the id of the reclocking chain.

    ``declared``: the metadata of each shard, with a polling source. Raises Invalid, Refused, Remote.
    """
    check_division(division)
    check_declared(declared, division)
    time = Instant(now // MILLISECOND * MILLISECOND)
    layout = Division(tuple(new_id() for _ in range(division.number)), division.by, division.by_part, division.keep_raw)
    chain = new_id()
    proposals = [
        _first(chain, (described(layout), SetDataSchema(schema=SCHEMA)), time),
        *(_first(each, declared, time) for each in layout.shards),
    ]
    if not all(isinstance(outcome, Committed) for outcome in CommitPoint(store).append(proposals)):
        raise Conflict("chains of these ids are there already", rule="reclock-chain", hint="report it")
    return chain


def check_division(wanted: ShardsWanted) -> None:
    """Raises Invalid for a number of shards that cannot be, or without something that decides the shard of a row."""
    count, by, by_part, _ = wanted
    ways = bool(by) + by_part
    if not 1 <= count <= MAX_SHARDS or ways != (count > 1) or len(by) > MAX_SHARD_COLUMNS:
        said = f"{plural(len(by), 'column')}{' and by part' * by_part}"
        raise Invalid(
            f"{plural(count, 'shard')} by {said}",
            rule="shard-number",
            hint=f"1 without a column, or 2 to {MAX_SHARDS} by 1 to {MAX_SHARD_COLUMNS} columns (--shards 4 --by id) or"
            " by the parts of the source (--shards 4 --by-part)",
        )


Declared: TypeAlias = SetPollingSource | tuple[AddPushSource, ...]
"""The source of a collection: one that is polled, or those through which clients push."""


def declared_in(state: ChainState) -> Declared | None:
    """Returns the source that a dataset declares; ``None`` without one."""
    if state.polling_source is not None:
        return state.polling_source
    return tuple(each for _, each in sorted(state.active_push_sources.items())) or None


def check_declared(declared: Sequence[MetadataEvent], wanted: ShardsWanted) -> None:
    """Raises Refused for a declaration whose transactions are no function of captured bytes, or would be parted."""
    sources = [event for event in declared if isinstance(event, SetPollingSource | AddPushSource)]
    polled = sum(isinstance(each, SetPollingSource) for each in sources)
    if not sources or (polled and len(sources) > 1):
        raise Refused(
            "a collection that several instances ingest has one polling source, or push sources",
            rule="reclock-source",
            hint="declare it by SetPollingSource, or by AddPushSource for each",
        )
    for source in sources:
        if quarantine_of(source.read.schema) is not None:
            raise Refused(
                "a source with onError: quarantine writes to another dataset too",
                rule="rendition-quarantine",
                hint="leave out onError in the manifest",
            )
        if wanted.by:
            check_source(wanted.by, source)
        if wanted.by_part:
            _check_parts(source)


def _check_parts(source: SetPollingSource | AddPushSource) -> None:
    """Raises Refused for a source whose transactions are not each of one part, or that merges rows of several parts."""
    if isinstance(source, AddPushSource):
        raise Refused(
            "pushes have no parts, so none can decide the shard of their rows",
            rule="shard-part",
            hint="shard by columns (--by COLUMN)",
        )
    if not isinstance(source.fetch, FetchFilesGlob) and not isinstance(fetch_options(source.read.schema), KafkaTopic):
        kind = source.fetch.__struct_config__.tag
        raise Refused(
            f"a source of kind {kind} has no parts that come one by one, so none can decide the shard of its rows",
            rule="shard-part",
            hint="shard by columns (--by COLUMN); parts are the files of a FilesGlob, and the partitions of a topic",
        )
    if key := primary_key(source.merge):
        raise Refused(
            f"rows are merged by {', '.join(key)}, and their part of the source decides their shard: rows of one key"
            " would be in several",
            rule="shard-key",
            hint="shard by columns of the primary key (--by COLUMN), or merge by Append",
        )


def _first(dataset: DatasetId, events: Sequence[MetadataEvent], time: Instant) -> Proposal:
    seed = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
    blocks = author_blocks(ChainState.EMPTY, (seed, *events), time)
    return Proposal(dataset=dataset, blocks=blocks, new_upper=to_millis(time) + 1)
