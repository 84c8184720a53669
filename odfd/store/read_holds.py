"""Stores read holds: while one lives, its dataset's history is not rewritten or deleted, and its data not let go.

A hold is leased: whoever took it renews it in time, or loses it and is told so. Or it is owned, by a name: it lasts
until it is released, and each process that takes it for that name gets a greater fence, by which what earlier ones
still ask is refused. It is a row, so it outlives a restart. Code that gives up history calls ``HoldGuard`` in its own
transaction, which also drops expired holds: so a hold that lives has lived all the time, even if the clock went back. A
damaged row holds until it is released. Synchronous, on the given connection and at the given time. Spec:
docs/spec/collections.md#holds; ADR 50.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, Instant, from_millis, render
from chain.multihash import Multihash
from chain.store.seals import Sealed
from chain.terminal_text import is_visible
from chain.wording import plural

ROOM: Final = "read_holds"
HOLDS: Final = Sealed(
    "read_holds",
    ("id", "dataset", "time", "block", "note", "taken", "expires"),
    "it holds until it is released: odfctl hold release ID",
)
OWNERS: Final = Sealed(
    "hold_owners",
    ("hold", "dataset", "owner", "fence"),
    "its hold stays until it is released: odfctl hold release ID",
)
STEPS: Final = (
    """
    CREATE TABLE read_holds (
        id TEXT PRIMARY KEY,
        dataset BLOB NOT NULL,
        time INTEGER NOT NULL,
        block BLOB NOT NULL,
        note TEXT NOT NULL,
        taken INTEGER NOT NULL,
        expires INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX read_holds_dataset ON read_holds (dataset);
    """,
    HOLDS.step,
    """
    CREATE TABLE hold_owners (
        hold TEXT PRIMARY KEY,
        dataset BLOB NOT NULL,
        owner TEXT NOT NULL,
        fence INTEGER NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX hold_owners_owner ON hold_owners (dataset, owner);
    """,
)
TTL: Final = 15 * 60 * SECOND
MIN_TTL: Final = 1 * SECOND
MAX_TTL: Final = 86_400 * SECOND
MAX_NOTE: Final = 200
MAX_OWNER: Final = 100
NEVER: Final = Instant(2**63 - 1)
"""The stored expiry of an owned hold."""
FENCED: Final = "hold-fenced"
MAX_OF_DATASET: Final = 64
MAX_HOLDS: Final = 1024
"""Most holds on a node, of all datasets together."""
HELD: Final = "read-hold"


class ReadHold(msgspec.Struct, frozen=True, kw_only=True):
    """One hold: the rows at ``time``, and at any later time, stay as they are."""

    id: str
    dataset: DatasetId
    time: int
    """The time from which on the history stays, in whole milliseconds."""
    block: Multihash
    """The last block up to that time: reading up to it gives the rows of ``time``."""
    note: str = ""
    """Who took it, or for what."""
    taken: Instant
    expires: Instant | None
    """When it expires; ``None`` if only a release ends it: it is owned, or its row is damaged."""
    owner: str = ""
    """The name by which it is owned; empty: it is leased."""
    fence: int = 0
    """How often it was taken for that name: only the last process may move or release it."""

    def is_live(self, now: Instant) -> bool:
        return self.expires is None or now < self.expires


class HistoryHeld(Refused):
    """Raised because somebody reads the history that was to be given up."""


class ReadHolds:
    """Takes, renews, releases and lists holds, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def take(self, hold: ReadHold, ttl: int, now: Instant) -> ReadHold:
        """Stores a hold until ``ttl`` nanoseconds from now. Raises Invalid; Refused if there are too many."""
        _check_ttl(ttl)
        if len(hold.note) > MAX_NOTE:
            raise Invalid(f"a note of {plural(len(hold.note), 'character')}", rule="hold-note", hint="200 at most")
        self._check_room(hold.dataset, now)
        return self._put(msgspec.structs.replace(hold, taken=now, expires=Instant(now + ttl)))

    def own(self, hold: ReadHold, now: Instant, *, moves: bool, among: Iterable[DatasetId] = ()) -> ReadHold:
        """Takes a hold for its owner, or takes it over from an earlier process of that owner, whose fence is over.

        ``among``: further chains of the collection, on one of which it may be. ``moves``: to the time of ``hold``;
        otherwise a hold that is there stays at its time. Raises Invalid; Refused if there are too many, or for a time
        before the held one.
        """
        if not 0 < len(hold.owner) <= MAX_OWNER or not is_visible(hold.owner):
            raise Invalid("an owner has 1 to 100 visible characters", rule="hold-owner", hint="name the pipeline")
        rows = (
            OWNERS.one(self._db, "dataset = ? AND owner = ?", (each, hold.owner)) for each in (hold.dataset, *among)
        )
        row = next((row for row in rows if row is not None), None)
        held = None if row is None else self._find(row[0])
        if row is None or held is None:
            self._check_room(hold.dataset, now)
            taken = msgspec.structs.replace(hold, taken=now, expires=None, fence=1)
        else:
            _check_forward(held, hold.time if moves else held.time)
            place = hold if moves else held
            taken = msgspec.structs.replace(
                held, dataset=place.dataset, time=place.time, block=place.block, fence=row[3] + 1
            )
        OWNERS.put(self._db, taken.id, taken.dataset, taken.owner, taken.fence)
        return self._put(taken)

    def move(self, hold_id: str, fence: int | None, time: int, block: Multihash) -> ReadHold:
        """Moves an owned hold to a later time, so that what is before may go. Raises Refused if it is lost, fenced."""
        held = self._find_owned(hold_id, fence)
        _check_forward(held, time)
        return self._put(msgspec.structs.replace(held, time=time, block=block))

    def _find_owned(self, hold_id: str, fence: int | None) -> ReadHold:
        """Returns an owned hold for the process with this fence. Raises Refused."""
        held = self._find(hold_id)
        if held is None:
            raise _to_lost(hold_id)
        if not held.owner:
            raise Refused(f"hold {hold_id} is leased, not owned", rule="hold-owner", hint="renew it without a fence")
        if held.fence != fence:
            said = "without a fence" if fence is None else f"with the fence {fence}"
            raise Refused(
                f"hold {hold_id} of {held.owner} has the fence {held.fence}, and was asked for {said}",
                rule=FENCED,
                hint="another process of this owner has taken over: end this one",
            )
        return held

    def _check_room(self, dataset: DatasetId, now: Instant) -> None:
        self.sweep(now)
        (total, own) = self._db.execute(
            "SELECT count(*), coalesce(sum(dataset = ?), 0) FROM read_holds", (dataset,)
        ).fetchone()
        if total >= MAX_HOLDS or own >= MAX_OF_DATASET:
            raise Refused(
                f"too many holds: {own} on the dataset, {total} in all",
                rule="hold-limit",
                hint="release holds that are not needed: odfctl hold list",
            )

    def renew(self, hold_id: str, ttl: int, now: Instant, fence: int | None = None) -> ReadHold:
        """Extends a hold to ``ttl`` nanoseconds from now, unless it lasts longer. Raises Refused if it is lost.

        ``fence``: of an owned one, which is only looked at: it lasts anyway.
        """
        _check_ttl(ttl)
        held = self._find(hold_id)
        if held is None or not held.is_live(now):
            raise _to_lost(hold_id)
        if held.owner or fence is not None:
            return self._find_owned(hold_id, fence)
        if held.expires is None:
            raise Refused(f"hold {hold_id} is damaged on disk", rule="hold-damaged", hint="release it, take a new one")
        return self._put(msgspec.structs.replace(held, expires=Instant(max(now + ttl, held.expires))))

    def release(self, hold_id: str, now: Instant, fence: int | None = None) -> ReadHold:
        """Ends a hold. Raises NotFound if there is none, or if it has expired.

        ``fence``: of the process that ends an owned one; ``None``: a person ends it. Raises Refused for another one.
        """
        held = self._find(hold_id) if fence is None else self._find_owned(hold_id, fence)
        if held is None or not held.is_live(now):
            raise NotFound(f"no hold {hold_id}", rule="hold", hint="odfctl hold list; an expired one is gone by itself")
        self._db.execute("DELETE FROM read_holds WHERE id = ?", (hold_id,))
        self._db.execute("DELETE FROM hold_owners WHERE hold = ?", (hold_id,))
        return held

    def all(self, now: Instant) -> list[ReadHold]:
        """Lists the live holds, oldest first."""
        return sorted((held for held in self._every() if held.is_live(now)), key=lambda held: (held.taken, held.id))

    def of(self, dataset: DatasetId, now: Instant) -> list[ReadHold]:
        found = self._every("dataset = ?", (dataset,))
        return sorted((held for held in found if held.is_live(now)), key=lambda held: (held.taken, held.id))

    def check_free(self, dataset: DatasetId, now: Instant) -> None:
        """Raises HistoryHeld while anybody holds the dataset's history."""
        held = self.of(dataset, now)
        if not held:
            return
        first = held[0]
        until = (
            "until it is released"
            if first.expires is None
            else f"until {render(Instant(first.expires // SECOND * SECOND))}"
        )
        note = f" ({first.note})" if first.note else ""
        more = f", and {plural(len(held) - 1, 'more hold')}" if len(held) > 1 else ""
        raise HistoryHeld(
            f"the history is held for a reader: {first.id}{note} {until}{more}",
            rule=HELD,
            hint=f"wait, or end it: odfctl hold release {first.id}",
            place=dataset.short,
        )

    def sweep(self, now: Instant) -> int:
        """Deletes the rows of expired holds, and returns their number."""
        gone = [held.id for held in self._every() if not held.is_live(now)]
        self._db.executemany("DELETE FROM read_holds WHERE id = ?", [(each,) for each in gone])
        return len(gone)

    def _put(self, held: ReadHold) -> ReadHold:
        expires = NEVER if held.owner else held.expires or Instant(0)
        HOLDS.put(self._db, held.id, held.dataset, held.time, held.block, held.note, held.taken, expires)
        return held

    def _find(self, hold_id: str) -> ReadHold | None:
        return next(self._every("id = ?", (hold_id,)), None)

    def _every(self, where: str = "TRUE", values: tuple[str | bytes, ...] = ()) -> Iterator[ReadHold]:
        for row, whole in list(HOLDS.every(self._db, where, values)):
            hold_id, dataset, time, block, note, taken, expires = row
            owned = OWNERS.look(self._db, "hold = ?", (hold_id,))[0] if expires == NEVER else None
            yield ReadHold(
                id=hold_id,
                dataset=DatasetId(dataset),
                time=time,
                block=Multihash(block),
                note=note,
                taken=Instant(taken),
                expires=Instant(expires) if whole and expires != NEVER else None,
                owner="" if owned is None else owned[2],
                fence=0 if owned is None else owned[3],
            )


class HoldGuard:
    """Tells a store whether history may be given up, by the clock of its node."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now

    def __call__(self, connection: sqlite3.Connection, dataset: DatasetId) -> None:
        """Drops expired holds, and raises HistoryHeld if one is left.

        Called in the transaction that gives up history, so a dropped hold is gone whatever the clock says later.
        """
        holds, now = ReadHolds(connection), self._now()
        holds.sweep(now)
        holds.check_free(dataset, now)

    def check(self, connection: sqlite3.Connection, dataset: DatasetId) -> None:
        """Raises HistoryHeld while anybody holds the history, and changes nothing."""
        ReadHolds(connection).check_free(dataset, self._now())


def _to_lost(hold_id: str) -> Refused:
    return Refused(
        f"hold {hold_id} is lost: it expired, or was released",
        rule="hold-lost",
        hint="what was read under it may be another history by now: take a new one, and read again",
    )


def _check_forward(held: ReadHold, time: int) -> None:
    if time < held.time:
        raise Refused(
            f"hold {held.id} of {held.owner} holds times from {render(from_millis(held.time))} on",
            rule="hold-back",
            hint="what is before may be gone: an owned hold only moves forward; take one for another owner",
        )


def _check_ttl(ttl: int) -> None:
    if not MIN_TTL <= ttl <= MAX_TTL:
        raise Invalid(
            f"a hold for {ttl / SECOND:,.0f} seconds",
            rule="hold-ttl",
            hint="from 1 second to 24 hours; renew it if you need it longer",
        )
