"""Stores which renditions a collection has, its timeline, and the commands that are under way: one sealed row each.

All that is decided of a collection changes in one transaction with what it decides of: a chain that begins, names that
are swapped. Synchronous, on the connection that is given. Spec: docs/spec/collections.md#renditions; ADR 53.
"""

from __future__ import annotations

import sqlite3
from typing import Final, Literal

import msgspec

from chain.errors import Environment, Invalid, Refused
from chain.ids import DatasetId
from chain.store.seals import ROW_DAMAGED, Sealed
from odfd.renditions.handover import Command
from odfd.renditions.timeline import RenditionRow, Switch, Timeline, active

ROOM: Final = "renditions"
COLLECTIONS: Final = Sealed(
    "collections", ("id", "body"), "restore a backup; the renditions' own chains are whole: odfctl get datasets"
)
STEPS: Final = (
    """
    CREATE TABLE collections (
        id BLOB PRIMARY KEY,
        body BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE collection_members (
        dataset BLOB PRIMARY KEY,
        collection BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    COLLECTIONS.step,
)
TABLES: Final = ("collections", "collection_members")
MAX_RENDITIONS: Final = 64
"""Of a collection, dropped ones too: numbers are never used again."""


Origin = Literal["first", "raw", "snapshot", "inputs", "owner"]
"""``inputs``: derived, over other inputs. ``owner``: another node made it, and this one mirrors it."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One rendition of a collection, and how it came."""

    row: RenditionRow
    origin: Origin
    command: str = ""
    """That made it."""
    dropped: bool = False
    """Its chain is gone."""
    let_go: bool = False
    """Its data goes, or is gone; its chain stays."""
    of: int | None = None
    """The rendition whose contents it began with; ``None``: it was decoded."""
    synced: int = 0
    """Blocks that it had when all renditions of one content had the same contents the last time."""
    copied: int = 0
    """Blocks of the active one that it has, after those that were synced; where both are of one content."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody can read it any more."""
        return self.dropped or self.let_go

    @property
    def dataset(self) -> DatasetId:
        """The chain that the name of the collection means; of several shards the first."""
        return DatasetId.parse(self.row.shards[0])

    @property
    def shards(self) -> tuple[DatasetId, ...]:
        return tuple(map(DatasetId.parse, self.row.shards))

    def has(self, dataset: DatasetId) -> bool:
        return str(dataset) in self.row.shards


class CollectionState(msgspec.Struct, frozen=True, kw_only=True):
    """All that was decided of a collection."""

    id: DatasetId
    """Of its first rendition."""
    members: tuple[Member, ...]
    timeline: Timeline
    commands: tuple[Command, ...] = ()
    """Handovers that were asked for, also those that are done."""

    @property
    def active(self) -> Member:
        return self.member(self.timeline.last.number)

    def member(self, number: int) -> Member:
        """Raises Invalid where there is none."""
        if 0 <= number < len(self.members):
            return self.members[number]
        raise Invalid(f"there is no rendition {number}", rule="rendition-unknown", hint="odfctl get renditions NAME")

    def number_of(self, dataset: DatasetId) -> int:
        return next(each.row.number for each in self.members if each.has(dataset))

    def content_of(self, number: int) -> int:
        """Returns the rendition that was decoded, from whose contents this one comes: such as share it are equal."""
        source = self.members[number].of
        return number if source is None else self.content_of(source)

    def equals(self, number: int) -> list[Member]:
        """Lists the renditions of the same content that are still there, itself too."""
        content = self.content_of(number)
        return [each for each in self.members if not each.is_gone and self.content_of(each.row.number) == content]

    def replaced(self, *members: Member) -> CollectionState:
        """With these in place of those of their numbers."""
        new = {each.row.number: each for each in members}
        return msgspec.structs.replace(self, members=tuple(new.get(each.row.number, each) for each in self.members))

    def command(self, name: str) -> Command | None:
        return next((each for each in self.commands if each.id == name), None)


def plain(dataset: DatasetId) -> CollectionState:
    """Returns a plain dataset as a collection: one rendition, which is active from the beginning of time."""
    row = RenditionRow(number=0, shards=(str(dataset),))
    return CollectionState(
        id=dataset, members=(Member(row=row, origin="first"),), timeline=Timeline((Switch(0, "", row),), 0)
    )


def of(connection: sqlite3.Connection, dataset: DatasetId) -> CollectionState:
    """Returns the collection that a dataset is a rendition of; ``plain`` of it where it is none.

    Raises Environment for a damaged row.
    """
    found = connection.execute("SELECT collection FROM collection_members WHERE dataset = ?", (dataset,)).fetchone()
    row = None if found is None else COLLECTIONS.one(connection, "id = ?", (found[0],))
    if row is None:
        return plain(dataset)
    try:
        return msgspec.json.decode(row[1], type=CollectionState, dec_hook=_parsed)
    except msgspec.MsgspecError as error:
        raise Environment(f"a collection cannot be read: {error}", rule=ROW_DAMAGED, hint=COLLECTIONS.hint) from error


def every(connection: sqlite3.Connection) -> list[CollectionState]:
    """Lists the collections that have several renditions. Raises Environment for a damaged row."""
    return [of(connection, DatasetId(row[0])) for row in list(COLLECTIONS.rows(connection, "TRUE ORDER BY id"))]


def keep(connection: sqlite3.Connection, state: CollectionState) -> None:
    """Stores it. Raises Refused where it has too many renditions."""
    if len(state.members) > MAX_RENDITIONS:
        raise Refused(
            f"a collection has at most {MAX_RENDITIONS} renditions, dropped ones too",
            rule="rendition-limit",
            hint="export it to a new dataset",
        )
    COLLECTIONS.put(connection, state.id, msgspec.json.encode(state, enc_hook=str))
    connection.executemany(
        "INSERT OR REPLACE INTO collection_members (dataset, collection) VALUES (?, ?)",
        [(shard, state.id) for each in state.members for shard in each.shards],
    )


def forget(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Notes that a rendition is deleted; the number stays its own."""
    state = of(connection, dataset)
    if len(state.members) == 1:
        if state.id == dataset:  # the last of its shards, if it has several
            connection.execute("DELETE FROM collections WHERE id = ?", (state.id,))
            connection.execute("DELETE FROM collection_members WHERE collection = ?", (state.id,))
        return
    members = tuple(
        msgspec.structs.replace(each, dropped=True) if each.has(dataset) else each for each in state.members
    )
    keep(connection, msgspec.structs.replace(state, members=members))


def is_let_go(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    """Whether a dataset is a rendition whose data went after a handover."""
    return any(each.let_go for each in of(connection, dataset).members if each.has(dataset))


def active_at(connection: sqlite3.Connection, dataset: DatasetId, time: int) -> DatasetId:
    """Returns the rendition that a collection's name meant at a time; ``dataset`` where it is not the active one."""
    state = of(connection, dataset)
    if state.active.dataset != dataset:
        return dataset
    return state.member(active(state.timeline, time).number).dataset


def check_fed(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Raises Refused for a rendition that is not active: what comes in goes to the one that is."""
    state = of(connection, dataset)
    if state.active.dataset == dataset:
        return
    check_member(state, dataset)
    raise Refused(
        f"rendition {state.number_of(dataset)} of a collection takes nothing in by itself: it is not the active one",
        rule="rendition-inactive",
        hint="name the collection; odfctl rendition handover makes another one active",
    )


def member_of(connection: sqlite3.Connection, dataset: DatasetId) -> Member | None:
    """Returns the rendition with several shards that a chain is one of; ``None``: it is whole by itself."""
    found = connection.execute("SELECT 1 FROM collection_members WHERE dataset = ?", (dataset,)).fetchone()
    if found is None:
        return None
    state = of(connection, dataset)
    member = state.member(state.number_of(dataset))
    return member if len(member.row.shards) > 1 else None


def shards_of(connection: sqlite3.Connection, dataset: DatasetId) -> tuple[DatasetId, ...]:
    """Lists the chains whose rows a dataset's name means: itself, unless it is the first of several shards."""
    member = member_of(connection, dataset)
    return (dataset,) if member is None or member.dataset != dataset else member.shards


def check_single(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Raises Refused for a shard of several: what is done to one chain alone would part it from the others."""
    member = member_of(connection, dataset)
    if member is not None:
        raise Refused(
            f"{dataset.short} is one of {len(member.row.shards)} shards, which change together",
            rule="shard-single",
            hint="odfctl rendition create NAME --from snapshot compacts them; with --shards 1 it makes one chain",
        )


def check_member(state: CollectionState, dataset: DatasetId) -> None:
    """Raises Refused for a shard that is not the first one of its rendition: it is written with the others."""
    member = state.member(state.number_of(dataset))
    if member.dataset == dataset:
        return
    raise Refused(
        f"{dataset.short} is one of {len(member.row.shards)} shards, which are written together",
        rule="shard-member",
        hint="name the collection: odfctl get renditions",
    )


def _parsed(kind: type, value: object) -> object:
    return DatasetId.parse(str(value)) if kind is DatasetId else value
