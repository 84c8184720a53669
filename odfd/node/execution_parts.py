"""Makes the dependencies of a node's ingests and transforms."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Protocol

from chain.ids import DatasetId
from config.model import Settings
from engines.provision.warm import EnginePool
from odfd.control.assembly import Context
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.slices import SliceIndex
from odfd.node.component_settings import ingest_settings
from odfd.services.ingest.quarantine import QuarantineDatasets
from odfd.services.maintenance.engine import NodeEngine
from odfd.store import captures
from odfd.store.directory import SEGMENTS, STAGING, StateDirectory
from odfd.transform.driver import TransformDependencies
from odfd.trust.signing.owner_commit import OwnerCommitter


class ExecutionContext(Protocol):
    """The parts of a node that ingests and transforms need; ``odfd.node.parts.NodeParts`` has them."""

    home: StateDirectory
    context: Context
    engine: NodeEngine
    committer: OwnerCommitter

    @property
    def settings(self) -> Settings: ...


def dependencies_of(
    parts: ExecutionContext, usable: Callable[[DatasetId], int | None]
) -> tuple[IngestDependencies, TransformDependencies]:
    """Makes the dependencies.

    ``usable`` returns how many blocks of a dataset a transform may read; ``None`` for all.
    """
    home, clock = parts.home, parts.context.clock
    ingest = IngestDependencies(
        store=home.chains,
        objects=home.objects,
        engine=parts.engine,
        committer=parts.committer,
        now=clock.now,
        settings=ingest_settings(parts.settings, home, os.environ),
        index=SliceIndex(home.folder(SEGMENTS)),
        quarantines=QuarantineDatasets(home, parts.committer, clock.now),
        is_captured=partial(captures.is_captured_in, home.database),
        shards=home.shards_of,
    )
    transform = TransformDependencies(
        chains=home.chains,
        objects=home.objects,
        engines=EnginePool({"spark": (parts.engine,)}),
        committer=parts.committer,
        now=clock.now,
        staging=home.folder(STAGING),
        rows=parts.settings.engine.transaction_rows,
        usable=usable,
    )
    return ingest, transform
