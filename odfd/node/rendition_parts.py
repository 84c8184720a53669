"""Makes the services of renditions and read holds, and the commit point for other nodes."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio

from chain.errors import Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.query.views import quoted
from odfd.api.datasets.gaps import GapService
from odfd.api.datasets.holds import HoldService
from odfd.api.datasets.reclocking import ReclockService
from odfd.api.datasets.rendition_derived import DerivedRenditions
from odfd.api.datasets.rendition_differences import RenditionDifferences
from odfd.api.datasets.rendition_effects import RenditionEffects
from odfd.api.datasets.rendition_origins import RenditionOrigins
from odfd.api.datasets.rendition_upkeep import RenditionUpkeep
from odfd.api.datasets.renditions import RenditionService
from odfd.api.datasets.service import DatasetService
from odfd.api.datasets.visibility import VisibilityService
from odfd.control import wire
from odfd.network.commit_point import Authorised, OwnedShards, ServedCommitPoint
from odfd.network.sharded_proposals import ShardedProposals
from odfd.node.parts import NodeParts
from odfd.queries.planning import Asker, Bound
from odfd.state.uploads import Uploads
from odfd.transform.driver import Committed, Ran
from odfd.transform.plan import Blocked, Rejected
from odfd.transform.recovery import run_recovering

_ALL_OFFSETS: Final = 1 << 40
"""Most bytes of a file of offsets, which has one for each row."""


def commit_point_of(parts: NodeParts) -> ServedCommitPoint:
    """Makes the commit point of this node's datasets, for the other nodes that may write them."""
    home = parts.home
    several = ShardedProposals(home.database, home.chains, home.objects)
    may = Authorised(home.database, home.keys, parts.context.clock.now, several.first_of)
    store = OwnedShards(home.database, home.chains, parts.committer)
    return ServedCommitPoint(store, home.objects, may, parts.settings.limits.disk_reserve_bytes, several)


def holds_of(parts: NodeParts, renditions: RenditionService) -> HoldService:
    """Makes the service of read holds, and wakes what waited for a released hold: mirrors and rendition upkeep."""

    def released(dataset: DatasetId) -> None:
        parts.scheduler.poke(dataset)
        renditions.upkeep.loop.poke()

    return HoldService(parts.home, parts.context, lambda: secrets.token_hex(8), released)


def reclocking_of(
    parts: NodeParts, values: Callable[[str], Mapping[str, str]], uploads: Uploads
) -> tuple[ReclockService, GapService]:
    """Makes the service of collections that several nodes ingest at a repository, and that of gaps of sources."""
    jitter, reserve = random.SystemRandom().random, parts.settings.limits.disk_reserve_bytes
    terms = parts.jumps.ahead, lambda: secrets.token_hex(16), jitter, reserve
    shared = parts.import_export.repositories.shared
    made = ReclockService(parts.home, parts.ingest_deps, shared, values, parts.context, terms, uploads)
    return made, GapService(parts.home, made, parts.context)


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
            raise Refused(f"{name} is not derived: {why}", rule=outcome.rule or "transform", hint=outcome.hint or "")

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
    return RenditionService(
        home,
        (effects, origins, derived, upkeep, differences),
        parts.context,
        delete,
        lambda: secrets.token_hex(8),
        seen.shown,
    )
