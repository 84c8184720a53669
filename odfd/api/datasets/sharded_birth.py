"""Checks and records a collection that a manifest divides into shards; one transaction begins all its chains.

The number and columns of shards are fixed for a rendition: another number needs another rendition, which a manifest
does not make. Synchronous. Spec: docs/spec/collections.md#shards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from chain.codec.arrow_schema import schema_of
from chain.data.partition import MAX_SHARDS
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import DatasetKind, MetadataEvent, SetDataSchema
from chain.wording import plural
from odfd.api.datasets.desired import DesiredSnapshot
from odfd.datasets.catalog import Catalog
from odfd.datasets.manifest import MAX_SHARD_COLUMNS
from odfd.datasets.visibility import Mark, Marks
from odfd.ingest.sharded_writes import check_columns, check_source
from odfd.renditions import tables
from odfd.renditions.tables import CollectionState, Member
from odfd.renditions.timeline import RenditionRow, Switch, Timeline
from odfd.state.directory import StateDirectory


def check_shards(home: StateDirectory, desired: DesiredSnapshot, dataset: DatasetId | None) -> None:
    """Checks the declared shards of a dataset. ``dataset``: its id, if it is here already.

    Raises Invalid for an impossible number, Refused for other shards than those that the dataset has.
    """
    wanted = desired.shards
    if wanted is None:
        return
    place = desired.place("shards")
    if not 1 <= wanted.number <= MAX_SHARDS or (wanted.number > 1) != bool(wanted.by):
        raise Invalid(
            f"{plural(wanted.number, 'shard')} by {plural(len(wanted.by), 'column')}",
            rule="shard-number",
            hint=f"1 without a column, or 2 to {MAX_SHARDS} by 1 to {MAX_SHARD_COLUMNS}",
            place=place,
        )
    if desired.snapshot.kind is DatasetKind.DERIVATIVE:
        raise Refused(f"{desired.name} is derived, and has one shard", rule="rendition-derived", place=place)
    if dataset is None:
        return
    with home.database.read() as connection:
        row = tables.of(connection, dataset).active.row
    if (len(row.shards), row.by) != (wanted.number, wanted.by):
        raise Refused(
            f"{desired.name} has {plural(len(row.shards), 'shard')}, and its rows stay where they are",
            rule="shard-number",
            hint=f"odfctl rendition create {desired.name} --from snapshot --shards {wanted.number}"
            f"{' --by ' + ','.join(wanted.by) if wanted.by else ''}, and hand over to it",
            place=place,
        )


def note_birth(
    connection: sqlite3.Connection, desired: DesiredSnapshot, born: Sequence[DatasetId], now: Instant
) -> None:
    """Writes the collection of all shards, if the dataset declares shards.

    All of them are private until they are published.
    """
    if desired.shards is None:
        return
    marks = Marks(connection)
    Catalog(connection).check_inner(born[0], 0, len(born))
    for each in born:
        marks.put(each, Mark.PRIVATE, now)  # private, whatever the settings publish
    row = RenditionRow(number=0, shards=tuple(map(str, born)), by=desired.shards.by)
    member, timeline = Member(row=row, origin="first"), Timeline((Switch(0, "", row),), 0)
    tables.keep(connection, CollectionState(id=born[0], members=(member,), timeline=timeline))


def check_birth(desired: DesiredSnapshot, events: Sequence[MetadataEvent]) -> None:
    """Raises Refused or Invalid for sources that would part rows of one key, and for unsuitable columns."""
    if desired.shards is None:
        return
    try:
        for event in events:
            check_source(desired.shards.by, event)
            if isinstance(event, SetDataSchema):
                check_columns(desired.shards.by, schema_of(event))
    except (Invalid, Refused) as fault:
        fault.place = desired.place("shards")
        raise
