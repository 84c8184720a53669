"""Lists what the features of a node tell each other on its bus (``odfd.runtime.bus``)."""

from __future__ import annotations

from dataclasses import dataclass

from chain.ids import DatasetId
from odfd.store.damage import DamagedBlock


@dataclass(frozen=True, slots=True)
class DatabaseWritten:
    """A transaction changed something. Published by the thread that wrote."""


@dataclass(frozen=True, slots=True)
class SliceDamaged:
    """Bytes of a block do not match their hash. Published by the thread that was to read them."""

    dataset: DatasetId
    spot: DamagedBlock
