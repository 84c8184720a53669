"""Makes the services of renditions and read holds."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Final

from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.query.views import quoted
from odfd.api.datasets.holds import HoldService
from odfd.api.datasets.rendition_effects import RenditionEffects
from odfd.api.datasets.rendition_origins import RenditionOrigins
from odfd.api.datasets.rendition_upkeep import RenditionUpkeep
from odfd.api.datasets.renditions import RenditionService
from odfd.api.datasets.service import DatasetService
from odfd.api.datasets.visibility import VisibilityService
from odfd.control import wire
from odfd.node.parts import NodeParts
from odfd.queries.planning import Asker, Bound

_ALL_OFFSETS: Final = 1 << 40
"""Bytes of a file of offsets: as many as there are rows."""


def holds_of(parts: NodeParts, renditions: RenditionService) -> HoldService:
    """Whatever waited for a reader goes on when a hold is released: a mirror, or a rendition that is to be dropped."""

    def released(dataset: DatasetId) -> None:
        parts.scheduler.poke(dataset)
        renditions.upkeep.loop.poke()

    return HoldService(parts.home, parts.context, lambda: secrets.token_hex(8), released)


def renditions_of(parts: NodeParts, datasets: DatasetService, seen: VisibilityService) -> RenditionService:
    def derived(dataset: DatasetId) -> list[str]:
        return [f"{other.name} derives from it" for other in parts.views.readers.of(dataset)]

    async def standing(dataset: DatasetId, block: Multihash, column: str, target: Path) -> None:
        asker = Asker(bound={"d": Bound(dataset, block)})
        request = wire.QueryRequest(sql=f"SELECT {quoted(column)} FROM current.d")  # noqa: S608  it is quoted
        await parts.queries.keep(request, asker, target, _ALL_OFFSETS)

    home, deps, committer, clock = parts.home, parts.ingest_deps, parts.committer, parts.context.clock
    terms = clock, parts.visibility
    effects = RenditionEffects(home, deps, committer, parts.keeping, terms, (derived, derived))
    origins = RenditionOrigins(home, deps, committer, clock, effects, standing)
    upkeep = RenditionUpkeep(home, effects, parts.context)
    delete = partial(datasets.delete, purge=True)
    return RenditionService(
        home, (effects, origins, upkeep), parts.context, delete, lambda: secrets.token_hex(8), seen.shown
    )
