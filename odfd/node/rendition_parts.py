"""Makes the services of renditions and read holds, and the commit point for other nodes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from chain.errors import Refused, Remote
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.base import Head
from engines.query.views import quoted
from odfd.api.datasets.holds import HoldService
from odfd.api.datasets.rendition_derived import DerivedRenditions
from odfd.api.datasets.rendition_differences import RenditionDifferences
from odfd.api.datasets.rendition_effects import RenditionEffects
from odfd.api.datasets.rendition_origins import RenditionOrigins
from odfd.api.datasets.rendition_upkeep import RenditionUpkeep
from odfd.api.datasets.renditions import RenditionService
from odfd.api.datasets.service import DatasetService
from odfd.api.datasets.visibility import VisibilityService
from odfd.control import wire
from odfd.datasets.engine_pins import ENGINE_CHANGED, way
from odfd.ingest.driver import IngestDependencies
from odfd.network.commit_point import Authorised, OwnedShards, ServedCommitPoint
from odfd.network.proposals import ProposingCommitter, WrittenShards
from odfd.network.sharded_proposals import ShardedProposals
from odfd.node.parts import NodeParts
from odfd.queries.planning import Asker, Bound
from odfd.renditions import tables
from odfd.transform.driver import Committed, Ran
from odfd.transform.plan import Blocked, Rejected
from odfd.transform.recovery import run_recovering
from odfd.trust.ledger.authorities import Authorities
from odfd.trust.ledger.signed_heads import publishing_keys
from p2p.identity import peer_of_did
from p2p.ports import PeerId

_ALL_OFFSETS: Final = 1 << 40
"""Most bytes of a file of offsets, which has one for each row."""
FOLLOW_SECONDS: Final = 60.0
"""Time in which a mirror is to have what its owner took from this node; then the next ingest plans again."""
PASSES: Final = 5
"""Passes of a mirror in that time."""


def commit_point_of(parts: NodeParts) -> ServedCommitPoint:
    """Makes the commit point of this node's datasets, for the other nodes that may write them."""
    home = parts.home
    several = ShardedProposals(home.database, home.chains, home.objects)
    may = Authorised(home.database, home.keys, parts.context.clock.now, several.first_of)
    store = OwnedShards(home.database, home.chains, parts.committer)
    return ServedCommitPoint(store, home.objects, may, parts.settings.limits.disk_reserve_bytes, several)


def proposing_of(parts: NodeParts) -> Callable[[DatasetId], IngestDependencies | None]:
    """Returns a function that gives the dependencies of ingests into datasets of others that this node may write."""
    home, me = parts.home, parts.home.keys.node_key().did

    def shards(dataset: DatasetId) -> WrittenShards:
        with home.database.read() as connection:
            member = tables.member_of(connection, dataset)
        return WrittenShards((dataset,)) if member is None else WrittenShards(member.shards, member.row.by)

    def owners(dataset: DatasetId) -> list[PeerId]:
        with home.database.read() as connection:
            return [peer_of_did(each) for each in sorted(publishing_keys(connection, dataset) - {me})]

    async def follow(dataset: DatasetId, head: Head | None) -> None:
        with trio.move_on_after(FOLLOW_SECONDS), suppress(Remote):
            for _ in range(PASSES):
                for each in home.shards_of(dataset):
                    await parts.scheduler.pass_now(each)
                now = home.chains.chain(dataset).head()
                if head is None or (now is not None and now.sequence_number >= head.sequence_number):
                    return

    propose = parts.membership.propose_at
    committer = ProposingCommitter(home.chains, home.objects, home.database, shards, owners, propose, follow)

    def dependencies(dataset: DatasetId) -> IngestDependencies | None:
        if home.keys.has_dataset_key(dataset) or parts.scheduler.find(dataset) is None:
            return None
        with home.database.read() as connection:
            rights = Authorities(connection).rights(dataset)
        if not rights.may_write(me, parts.context.clock.now()):
            return None
        for each in home.shards_of(dataset):
            home.need_data(each, home.name_of(dataset), whole=True)
        return replace(parts.ingest_deps, committer=committer, is_captured=lambda _: False, quarantines=None)

    return dependencies


def holds_of(parts: NodeParts, renditions: RenditionService) -> HoldService:
    """Makes the service of read holds, and wakes what waited for a released hold: mirrors and rendition upkeep."""

    def released(dataset: DatasetId) -> None:
        parts.scheduler.poke(dataset)
        renditions.upkeep.loop.poke()

    return HoldService(parts.home, parts.context, lambda: secrets.token_hex(8), released)


def renditions_of(parts: NodeParts, datasets: DatasetService, seen: VisibilityService) -> RenditionService:
    def readers(dataset: DatasetId) -> list[DatasetId]:
        return [other.id for other in parts.views.readers.of(dataset)]

    async def derive(dataset: DatasetId) -> None:
        outcome: Ran = await run_recovering(parts.transform_deps, dataset)
        while isinstance(outcome, Committed):
            outcome = await run_recovering(parts.transform_deps, dataset)
        if isinstance(outcome, Rejected | Blocked):
            name = await trio.to_thread.run_sync(parts.home.name_of, dataset)
            why = outcome.message if isinstance(outcome, Rejected) else outcome.reason
            hint = way(name) if outcome.rule == ENGINE_CHANGED else outcome.hint
            raise Refused(f"{name} is not derived: {why}", rule=outcome.rule or "transform", hint=hint)

    async def write(sql: str, bound: Mapping[str, Bound], target: Path) -> None:
        await parts.queries.keep(wire.QueryRequest(sql=sql), Asker(bound=bound), target, _ALL_OFFSETS)

    async def standing(dataset: DatasetId, block: Multihash, column: str, target: Path) -> None:
        sql = f"SELECT {quoted(column)} FROM current.d"  # noqa: S608  it is quoted
        await write(sql, {"d": Bound(dataset, block)}, target)

    home, deps, committer, clock = parts.home, parts.ingest_deps, parts.committer, parts.context.clock
    terms = clock, parts.visibility
    effects = RenditionEffects(home, deps, committer, parts.keeping, terms, readers)
    derived = DerivedRenditions(home, committer, clock, effects, readers, derive)
    origins = RenditionOrigins(home, deps, committer, clock, effects, standing)
    upkeep = RenditionUpkeep(home, effects, parts.context)
    differences = RenditionDifferences(home, deps.settings.staging, committer, clock, effects, write)
    delete = partial(datasets.delete, purge=True)
    made = RenditionService(
        home,
        (effects, origins, derived, upkeep, differences),
        parts.context,
        delete,
        lambda: secrets.token_hex(8),
        seen.shown,
    )
    parts.handovers.readers = made.hand_over_readers
    return made
