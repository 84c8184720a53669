"""Begins a collection that several instances ingest: its reclocking chain and its shards, in one commit.

Spec: docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chain.data.partition import MAX_SHARDS
from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant, to_millis
from chain.model.events import DatasetKind, MetadataEvent, Seed, SetDataSchema, SetPollingSource
from chain.model.read_options import quarantine_of
from chain.state import ChainState
from chain.store.shards import CommitPoint, Committed, Proposal, ShardStore
from chain.wording import plural
from odfd.datasets.manifest import MAX_SHARD_COLUMNS
from odfd.ingest.sharded_writes import check_source
from odfd.reclock.bindings import SCHEMA, Division, described
from odfd.trust.signing.owner_commit import author_blocks


def begin(
    store: ShardStore,
    new_id: Callable[[], DatasetId],
    declared: Sequence[MetadataEvent],
    division: tuple[int, tuple[str, ...]],
    now: Instant,
) -> DatasetId:
    """Begins the chains, at the time ``now``. Returns the id of the reclocking chain.

    ``declared``: the metadata of each shard, with a polling source. ``division``: the number of shards, and the columns
    that decide the shard of a row. Raises Invalid, Refused, Remote.
    """
    count, by = division
    check_division(count, by)
    check_declared(declared, by)
    time = Instant(now // MILLISECOND * MILLISECOND)
    layout = Division(tuple(new_id() for _ in range(count)), by)
    chain = new_id()
    proposals = [
        _first(chain, (described(layout), SetDataSchema(schema=SCHEMA)), time),
        *(_first(each, declared, time) for each in layout.shards),
    ]
    if not all(isinstance(outcome, Committed) for outcome in CommitPoint(store).append(proposals)):
        raise Conflict("chains of these ids are there already", rule="reclock-chain", hint="report it")
    return chain


def check_division(count: int, by: Sequence[str]) -> None:
    """Raises Invalid for a number of shards that cannot be, or without columns that decide the shard of a row."""
    if not 1 <= count <= MAX_SHARDS or (count > 1) != bool(by) or len(by) > MAX_SHARD_COLUMNS:
        raise Invalid(
            f"{plural(count, 'shard')} by {plural(len(by), 'column')}",
            rule="shard-number",
            hint=f"1 without a column, or 2 to {MAX_SHARDS} by 1 to {MAX_SHARD_COLUMNS}: --shards 4 --by id",
        )


def check_declared(declared: Sequence[MetadataEvent], by: Sequence[str]) -> None:
    """Raises Refused for a declaration whose transactions are no function of captured bytes, or would be parted."""
    sources = [event for event in declared if isinstance(event, SetPollingSource)]
    if len(sources) != 1:
        raise Refused(
            "a collection that several instances ingest has one polling source",
            rule="reclock-source",
            hint="declare it by SetPollingSource; pushes go to one node",
        )
    if quarantine_of(sources[0].read.schema) is not None:
        raise Refused(
            "a source with onError: quarantine writes to another dataset too",
            rule="rendition-quarantine",
            hint="leave out onError in the manifest",
        )
    if by:
        check_source(by, sources[0])


def _first(dataset: DatasetId, events: Sequence[MetadataEvent], time: Instant) -> Proposal:
    seed = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
    blocks = author_blocks(ChainState.EMPTY, (seed, *events), time)
    return Proposal(dataset=dataset, blocks=blocks, new_upper=to_millis(time) + 1)
