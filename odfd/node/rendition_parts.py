"""Makes the services of renditions and read holds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from chain.errors import Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.query.views import quote_name
from odfd.control import wire
from odfd.datasets.engine_pins import ENGINE_CHANGED, way
from odfd.node.parts import NodeParts
from odfd.queries.askers import Asker, Bound
from odfd.runtime.hanging_calls import in_loop
from odfd.services.datasets.deletion import DatasetDeletion
from odfd.services.datasets.holds import HoldService
from odfd.services.publishing.visibility import VisibilityService
from odfd.services.renditions.derived import DerivedRenditions
from odfd.services.renditions.differences import RenditionDifferences
from odfd.services.renditions.effects import RenditionEffects
from odfd.services.renditions.origins import RenditionOrigins
from odfd.services.renditions.service import RenditionService
from odfd.services.renditions.upkeep import RenditionUpkeep
from odfd.transform.driver import Committed, Ran
from odfd.transform.plan import Blocked, Rejected
from odfd.transform.recovery import run_recovering

_ALL_OFFSETS: Final = 1 << 40
"""Most bytes of a file of offsets, which has one for each row."""


def holds_of(parts: NodeParts, renditions: RenditionService) -> HoldService:
    """Makes the service of read holds, and wakes what waited for a released hold: mirrors and rendition upkeep."""

    @in_loop
    def released(dataset: DatasetId) -> None:
        parts.scheduler.poke(dataset)
        renditions.upkeep.loop.poke()

    return HoldService(parts.home, parts.context, lambda: secrets.token_hex(8), released)


def effects_of(parts: NodeParts) -> RenditionEffects:
    def readers(dataset: DatasetId) -> list[DatasetId]:
        return [other.id for other in parts.views.readers.of(dataset)]

    clock, visibility = parts.context.clock, parts.visibility
    return RenditionEffects(parts.home, parts.ingest_deps, parts.committer, parts.keeping, clock, visibility, readers)


def renditions_of(
    parts: NodeParts, effects: RenditionEffects, deletion: DatasetDeletion, seen: VisibilityService
) -> RenditionService:
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
        sql = f"SELECT {quote_name(column)} FROM current.d"  # noqa: S608  it is quoted
        await write(sql, {"d": Bound(dataset, block)}, target)

    home, deps, committer, clock = parts.home, parts.ingest_deps, parts.committer, parts.context.clock
    origins = RenditionOrigins(home, deps, committer, clock, effects, standing)
    derived = DerivedRenditions(home, clock, effects, origins, readers, derive)
    upkeep = RenditionUpkeep(home, effects, parts.context)
    differences = RenditionDifferences(home, deps.settings.staging, committer, clock, effects, write)
    made = RenditionService(
        home,
        effects,
        origins,
        derived,
        upkeep,
        differences,
        parts.context,
        deletion.delete_rendition,
        lambda: secrets.token_hex(8),
        seen.show_to_others,
        parts.moved,
    )
    parts.late.renditions.fill(made)
    return made
