"""Finds or creates quarantine datasets, which keep the records that other datasets could not read.

A record of this node links the two, so that either may be renamed. A new quarantine dataset takes the name of its
dataset with ``.quarantine`` appended, is private until it is published, and outlives that dataset. Synchronous.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import DatasetKind, Seed, SetInfo
from odfd.datasets.commit import Commit, CommitPart, Committer
from odfd.resources import records
from odfd.store import collections
from odfd.store.catalog import Catalog
from odfd.store.directory import StateDirectory

KIND: Final = "quarantine"
"""Kind of the record that holds, under the did of a dataset, the did of its quarantine dataset."""
SUFFIX: Final = ".quarantine"


class QuarantineDatasets:
    """Finds and makes quarantine datasets for ``odfd.ingest.driver``. Safe to use from any thread."""

    def __init__(self, home: StateDirectory, committer: Committer, now: Callable[[], Instant]) -> None:
        self._home = home
        self._committer = committer
        self._now = now

    def find(self, dataset: DatasetId) -> DatasetId | None:
        with self._home.database.read() as connection:
            return _find(connection, dataset)

    def name(self, dataset: DatasetId) -> str | None:
        """Returns the local name of the quarantine dataset of ``dataset``."""
        with self._home.database.read() as connection:
            found = _find(connection, dataset)
            return None if found is None else Catalog(connection).name_of(found)

    def make(self, dataset: DatasetId) -> DatasetId:
        """Creates the quarantine dataset of ``dataset``. Raises Invalid if its name is taken."""
        now = Instant(self._now() // MILLISECOND * MILLISECOND)
        of = self._home.name_of(dataset)

        told = SetInfo(description=f"Records that {of} could not read: {dataset}", keywords=("quarantine",))
        with self._home.newborn() as made:

            def name_it(connection: sqlite3.Connection) -> None:
                Catalog(connection).add(f"{of}{SUFFIX}", made, now)
                records.put(connection, KIND, _key(connection, dataset), str(made).encode(), now)

            founding = (Seed(dataset_id=made, dataset_kind=DatasetKind.ROOT), told)
            part = CommitPart(dataset=made, expected=None, events=founding, time=now)
            self._committer.commit_now(Commit(parts=(part,), also=name_it))
        return made


def _key(connection: sqlite3.Connection, dataset: DatasetId) -> str:
    """Returns the key of a record about a dataset, which is the same for all renditions of a collection."""
    return str(collections.of(connection, dataset).id)


def _find(connection: sqlite3.Connection, dataset: DatasetId) -> DatasetId | None:
    record = records.get(connection, KIND, _key(connection, dataset))
    if record is None:
        return None
    found = DatasetId.parse(record.body.decode())
    return found if Catalog(connection).find(found) is not None else None
