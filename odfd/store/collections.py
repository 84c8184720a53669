"""Stores the renditions of each collection, its timeline, and its commands, as one sealed row.

A decision about a collection is written in one transaction with its effects, such as a chain that begins or names that
are swapped. Synchronous, on the given connection. Spec: docs/spec/collections.md#renditions; ADR 42.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal

import msgspec

from chain.errors import Environment, Invalid, Refused
from chain.ids import DatasetId
from chain.store.seals import ROW_DAMAGED, Sealed
from odfd.renditions import former_rows
from odfd.renditions.former_rows import FormerCollection
from odfd.renditions.handover import Command
from odfd.renditions.timeline import RenditionRow, Switch, Timeline, active

ROOM: Final = "renditions"
COLLECTIONS: Final = Sealed(
    "collections", ("id", "body"), "restore a backup; the renditions' own chains are whole: odfctl get datasets"
)


def _gather(connection: sqlite3.Connection) -> Sequence[str]:
    return former_rows.gather(
        connection,
        [
            FormerCollection(
                chains=[shard for member in state.members for shard in member.row.shards],
                active=state.active.row.shards[0],
                renditions=len(state.members),
            )
            for state in every(connection)
        ],
    )


def _take_in(connection: sqlite3.Connection) -> Sequence[str]:
    """Makes recorded differences, which were datasets of their own, chains inside their collections."""
    told: list[str] = []
    for state in [each for each in every(connection) if each.differences]:
        active, found = str(state.active.dataset), list[KeptDifference]()
        for each in state.differences:
            line = former_rows.take_in(connection, str(each.dataset), active, state.handover_of(each.dataset))
            if line is not None:  # else it was deleted
                found.append(each)
                told.append(line)
        keep(connection, msgspec.structs.replace(state, differences=tuple(found)))
    return told


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
    _gather,
    _take_in,
)
MAX_RENDITIONS: Final = 64
"""Most renditions of a collection, including dropped ones, whose numbers are never used again."""


Origin = Literal["first", "raw", "snapshot", "inputs", "owner", "difference"]
"""How a rendition came to be: ``inputs`` for one over other inputs, ``owner`` for a mirror of another node's.

A recorded difference is the only rendition of its ``plain`` form.
"""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One rendition of a collection, and how it came to be."""

    row: RenditionRow
    origin: Origin
    command: str = ""
    """Id of the command that made it."""
    dropped: bool = False
    """Whether its chain is deleted."""
    let_go: bool = False
    """Whether its data is being freed, or is gone; its chain stays."""
    of: int | None = None
    """The rendition with whose contents it began; ``None`` if it was decoded."""
    synced: int = 0
    """Number of blocks that it had when all renditions of its content were last equal."""
    copied: int = 0
    """Number of blocks copied from the active rendition of the same content since then."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody can read it any more."""
        return self.dropped or self.let_go

    @property
    def dataset(self) -> DatasetId:
        """The chain that the name of the collection means: the first shard."""
        return DatasetId.parse(self.row.shards[0])

    @property
    def shards(self) -> tuple[DatasetId, ...]:
        return tuple(map(DatasetId.parse, self.row.shards))

    def has(self, dataset: DatasetId) -> bool:
        return str(dataset) in self.row.shards


class KeptDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference that was computed for the handover at a time (ms), and the chain that has its rows."""

    time: int
    dataset: DatasetId
    is_checked: bool = True
    """Whether it was compared with both renditions; readers use only such ones."""


class CollectionState(msgspec.Struct, frozen=True, kw_only=True):
    """All that was decided about a collection."""

    id: DatasetId
    """Id of its first rendition."""
    members: tuple[Member, ...]
    timeline: Timeline
    commands: tuple[Command, ...] = ()
    """Handovers that were asked for, including finished ones."""
    differences: tuple[KeptDifference, ...] = ()

    @property
    def active(self) -> Member:
        return self.member(self.timeline.last.number)

    def member(self, number: int) -> Member:
        """Returns the rendition with this number. Raises Invalid if there is none."""
        if 0 <= number < len(self.members):
            return self.members[number]
        raise Invalid(f"there is no rendition {number}", rule="rendition-unknown", hint="odfctl get renditions NAME")

    def number_of(self, dataset: DatasetId) -> int:
        return next(member.row.number for member in self.members if member.has(dataset))

    def handover_of(self, dataset: DatasetId) -> int | None:
        """Returns the number of the handover whose recorded difference a chain is; ``None`` if it is none."""
        time = next((each.time for each in self.differences if each.dataset == dataset), None)
        return next((number for number, each in enumerate(self.timeline.switches) if each.time == time), None)

    def content_of(self, number: int) -> int:
        """Returns the decoded rendition from whose contents this one comes; those with the same one are equal."""
        source = self.members[number].of
        return number if source is None else self.content_of(source)

    def equals(self, number: int) -> list[Member]:
        """Lists the renditions of the same content that can still be read, also itself."""
        content = self.content_of(number)
        return [
            member for member in self.members if not member.is_gone and self.content_of(member.row.number) == content
        ]

    def with_members(self, *members: Member) -> CollectionState:
        """Returns the state with these renditions in place of those with their numbers."""
        new = {member.row.number: member for member in members}
        return msgspec.structs.replace(
            self, members=tuple(new.get(member.row.number, member) for member in self.members)
        )

    def command(self, name: str) -> Command | None:
        return next((command for command in self.commands if command.id == name), None)


def plain(dataset: DatasetId, origin: Origin = "first") -> CollectionState:
    """Returns a plain dataset as a collection of one rendition, which is active from the beginning of time."""
    row = RenditionRow(number=0, shards=(str(dataset),))
    return CollectionState(
        id=dataset, members=(Member(row=row, origin=origin),), timeline=Timeline((Switch(0, "", row),), 0)
    )


def of(connection: sqlite3.Connection, dataset: DatasetId) -> CollectionState:
    """Returns the collection that a dataset is a rendition of; for any other dataset its ``plain`` form.

    That is also the form of a recorded difference, which is no rendition. Raises Environment for a damaged row.
    """
    state = whole(connection, dataset)
    return state if any(member.has(dataset) for member in state.members) else plain(dataset, "difference")


def whole(connection: sqlite3.Connection, dataset: DatasetId) -> CollectionState:
    """Returns the collection that a chain is inside of, as a rendition or a recorded difference.

    For any other dataset it is as ``of``. Raises Environment for a damaged row.
    """
    found = connection.execute("SELECT collection FROM collection_members WHERE dataset = ?", (dataset,)).fetchone()
    row = None if found is None else COLLECTIONS.one(connection, "id = ?", (found[0],))
    if row is None:
        return plain(dataset)
    try:
        return msgspec.json.decode(row[1], type=CollectionState, dec_hook=_parse)
    except msgspec.MsgspecError as error:
        raise Environment(f"a collection cannot be read: {error}", rule=ROW_DAMAGED, hint=COLLECTIONS.hint) from error


def every(connection: sqlite3.Connection) -> list[CollectionState]:
    """Lists the collections that have several renditions. Raises Environment for a damaged row."""
    return [of(connection, DatasetId(row[0])) for row in list(COLLECTIONS.rows(connection, "TRUE ORDER BY id"))]


def chains_of(state: CollectionState) -> list[DatasetId]:
    """Lists the chains of a collection that are not deleted, also of renditions whose data is gone."""
    shards = [shard for member in state.members if not member.dropped for shard in member.shards]
    return [*shards, *(each.dataset for each in state.differences)]


def keep(connection: sqlite3.Connection, state: CollectionState) -> None:
    """Stores a collection. Raises Refused if it has too many renditions."""
    if len(state.members) > MAX_RENDITIONS:
        raise Refused(
            f"a collection has at most {MAX_RENDITIONS} renditions, dropped ones too",
            rule="rendition-limit",
            hint="export it to a new dataset",
        )
    COLLECTIONS.put(connection, state.id, msgspec.json.encode(state, enc_hook=str))
    connection.executemany(
        "INSERT OR REPLACE INTO collection_members (dataset, collection) VALUES (?, ?)",
        [
            *((shard, state.id) for member in state.members for shard in member.shards),
            *((each.dataset, state.id) for each in state.differences),
        ],
    )


def forget(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Notes that a chain was deleted: with the one that its name means, which is the last, the collection is.

    The number of a deleted rendition is not used again.
    """
    state = whole(connection, dataset)
    if state.active.dataset == dataset:
        connection.execute("DELETE FROM collections WHERE id = ?", (state.id,))
        connection.execute("DELETE FROM collection_members WHERE collection = ?", (state.id,))
        return
    gone = [msgspec.structs.replace(member, dropped=True) for member in state.members if member.dataset == dataset]
    kept = tuple(each for each in state.differences if each.dataset != dataset)
    if kept != state.differences:
        connection.execute("DELETE FROM collection_members WHERE dataset = ?", (dataset,))
        keep(connection, msgspec.structs.replace(state, differences=kept))
    elif gone:  # else a shard after the first, which is deleted before that
        keep(connection, state.with_members(*gone))


def is_let_go(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    """Whether a dataset is a rendition whose data was freed after a handover."""
    return any(member.let_go for member in of(connection, dataset).members if member.has(dataset))


def ended_at(connection: sqlite3.Connection, dataset: DatasetId) -> int | None:
    """Returns when a rendition was replaced, in ms; ``None`` if it is active, never was, or its data is gone."""
    state = of(connection, dataset)
    member = state.member(state.number_of(dataset))
    number = member.row.number
    ends = [after.time for before, after in pairwise(state.timeline.switches) if before.to.number == number]
    return None if state.active.row.number == number or member.is_gone or not ends else ends[-1]


def active_at(connection: sqlite3.Connection, dataset: DatasetId, time: int) -> DatasetId:
    """Returns the rendition that a collection's name meant at a time; ``dataset`` if it is not the active one."""
    state = of(connection, dataset)
    if state.active.dataset != dataset:
        return dataset
    return state.member(active(state.timeline, time).number).dataset


def check_fed(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Raises Refused for a rendition that is not active, since data is fed only to the active one."""
    state = of(connection, dataset)
    check_rendition(state)
    if state.active.dataset == dataset:
        return
    check_member(state, dataset)
    raise Refused(
        f"rendition {state.number_of(dataset)} of a collection takes nothing in by itself: it is not the active one",
        rule="rendition-inactive",
        hint="name the collection; odfctl rendition handover makes another one active",
    )


def member_of(connection: sqlite3.Connection, dataset: DatasetId) -> Member | None:
    """Returns the rendition of several shards that a chain belongs to; ``None`` if it belongs to none."""
    found = connection.execute("SELECT 1 FROM collection_members WHERE dataset = ?", (dataset,)).fetchone()
    if found is None:
        return None
    state = of(connection, dataset)
    member = state.member(state.number_of(dataset))
    return member if len(member.row.shards) > 1 else None


def shards_of(connection: sqlite3.Connection, dataset: DatasetId) -> tuple[DatasetId, ...]:
    """Lists the chains that have the rows of a dataset: all shards if it is the first of several, else itself."""
    member = member_of(connection, dataset)
    return (dataset,) if member is None or member.dataset != dataset else member.shards


def check_single(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Raises Refused for one of several shards, which a change of one chain would set apart from the others."""
    member = member_of(connection, dataset)
    if member is not None:
        raise Refused(
            f"{dataset.short} is one of {len(member.row.shards)} shards, which change together",
            rule="shard-single",
            hint="odfctl rendition create NAME --from snapshot compacts them; with --shards 1 it makes one chain",
        )


def check_rendition(state: CollectionState) -> None:
    """Raises Refused for the ``plain`` form of a recorded difference, which stays as it is."""
    if state.active.origin == "difference":
        raise Refused(
            "a recorded difference is no rendition: it stays as it is",
            rule="rendition-inactive",
            hint="name the collection: odfctl get renditions",
        )


def check_member(state: CollectionState, dataset: DatasetId) -> None:
    """Raises Refused for a shard other than the first, since shards are written together."""
    member = state.member(state.number_of(dataset))
    if member.dataset == dataset:
        return
    raise Refused(
        f"{dataset.short} is one of {len(member.row.shards)} shards, which are written together",
        rule="shard-member",
        hint="name the collection: odfctl get renditions",
    )


def _parse(kind: type, value: object) -> object:
    return DatasetId.parse(str(value)) if kind is DatasetId else value
