"""Converts the former rows of which datasets are captured to the annotation ``keepRaw`` of these datasets."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.store.seals import Sealed
from odfd.datasets.catalog import Catalog
from odfd.renditions import tables
from odfd.resources.plan import LABEL
from odfd.resources.store import ResourceStore

SEALED: Final = Sealed("captured_datasets", ("dataset", "since"), "").step
DROPPED: Final = "DROP TABLE captured_datasets"


def converted(connection: sqlite3.Connection) -> Sequence[str]:
    """Annotates the datasets whose active rendition is captured. Returns a line for each."""
    lines = []
    for (raw,) in connection.execute("SELECT dataset FROM captured_datasets ORDER BY dataset").fetchall():
        dataset = DatasetId(raw)
        row = Catalog(connection).declared(dataset)
        if row is None or tables.of(connection, dataset).active.dataset != dataset:
            continue
        said = {**row.annotations, "keepRaw": True}
        managers = {**row.managers, "annotations.keepRaw": LABEL}  # as by hand: a manifest of before leaves it alone
        ResourceStore(connection).rewrite(
            msgspec.structs.replace(row, annotations=said, managers=managers), row.updated_at
        )
        lines.append(f"the dataset {row.name}, captured by odfctl raw keep before, has the annotation keepRaw: true")
    return lines
