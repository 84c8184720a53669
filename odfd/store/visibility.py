"""Decides which datasets each peer may know of and get: private until published; every disclosure checks here.

A mark is a person's decision, or says how a dataset came. Without a mark, a dataset whose key is here is private unless
the settings publish all of them; one that is held without its key came from a folder and is private; and about one that
is not held there are only statements of others, which are passed on. A damaged mark counts as private. A private
dataset may be shared with some peers (``shares``); to anybody else it appears not to be here, and each question takes
the same lookups whatever the answer. A dataset may be limited to some networks (``shares``), and is then public
only there. No answer is remembered, so a change is in force for the next question. ADR 19, ADR 39, ADR 47.
"""

from __future__ import annotations

import enum
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from cachetools import LRUCache

from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.base import ChainStore
from chain.store.database import Database
from chain.store.seals import Sealed
from chain.wording import plural
from odfd.store.card_choices import CardChange, CardChoices, CardSamples, ChosenWords
from odfd.store.catalog import DatasetEntry
from odfd.store.shares import MAX_PEERS, NetworkScopes, Shares
from p2p.ports import PeerId

ROOM: Final = "visibility"
MARKS: Final = Sealed(
    "visibility", ("dataset", "mark", "at"), "until then it is private: odfctl publish NAME, or odfctl unpublish NAME"
)
STEPS: Final = (
    """
    CREATE TABLE visibility (
        dataset BLOB PRIMARY KEY,
        mark TEXT NOT NULL,
        at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO visibility VALUES (x'', 'unsettled', 0);
    """,
    MARKS.step,
)
"""Tables, as the steps that made them; steps are added at the end and never changed."""
_UNSETTLED: Final = b""
"""Key of a row that is there until it is settled, once, which datasets an older version gave to others."""


Chains = Callable[[sqlite3.Connection], Sequence[DatasetId]]
"""Lists the chains of a dataset."""


class PublicOf(Protocol):
    def __call__(self, datasets: Iterable[DatasetId], peer: PeerId | None = None, /) -> Collection[DatasetId]:
        """Returns those of the datasets that may be disclosed to anyone, or to ``peer`` if one is given."""


class VisibilityMark(enum.Enum):
    PUBLISHED = "published"
    """Published by a person."""
    PUBLISHED_TO = "published-to"
    """Published by a person, only in some networks (``NetworkScopes``)."""
    MIRRORED = "mirrored"
    """Found in a network, where it is public already."""
    BEFORE = "before"
    """Disclosed by this node before datasets could be private, without a decision since."""
    PRIVATE = "private"
    """Made private by a person, or mirrored from a place of limited reach."""
    UNSHARED = "unshared"
    """A mirror of what others shared with this node, and did not when they were last asked."""
    DELETED = "deleted"

    @property
    def is_public(self) -> bool:
        return self in (
            VisibilityMark.PUBLISHED,
            VisibilityMark.PUBLISHED_TO,
            VisibilityMark.MIRRORED,
            VisibilityMark.BEFORE,
        )


class Marks:
    """Reads and writes the visibility marks, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def of(self, dataset: DatasetId) -> VisibilityMark | None:
        """Returns a dataset's mark; ``None`` if it has none."""
        row, whole = MARKS.look(self._db, "dataset = ?", (dataset,))
        return None if row is None else _mark(row[1], whole=whole)

    def all(self) -> dict[DatasetId, VisibilityMark]:
        rows = MARKS.every(self._db)
        return {DatasetId(row[0]): _mark(row[1], whole=whole) for row, whole in rows if row[0] != _UNSETTLED}

    def put(self, dataset: DatasetId, mark: VisibilityMark, now: Instant) -> None:
        MARKS.put(self._db, dataset, mark.value, now)

    def drop(self, dataset: DatasetId, *marks: VisibilityMark) -> None:
        """Removes a dataset's mark if it is one of these."""
        if self.of(dataset) in marks:
            self._db.execute("DELETE FROM visibility WHERE dataset = ?", (dataset,))

    def settle(self) -> bool:
        """Notes that earlier disclosures are settled; returns true the first time in the life of a state directory."""
        gone = self._db.execute("DELETE FROM visibility WHERE dataset = ?", (_UNSETTLED,))
        return gone.rowcount > 0


@dataclass(eq=False)
class Visibility:
    """Tells and changes who may see a node's datasets. Safe to use from any thread. All methods raise Environment."""

    database: Database
    chains: ChainStore
    has_key: Callable[[DatasetId], bool]
    """Whether a dataset is this node's own, held or not."""
    publishes_all: Callable[[], bool]
    """Whether the settings publish each own dataset without a decision about it."""
    is_divided: Callable[[], bool]
    """Whether this node is in several networks."""
    changes: int = 0
    """Grows each time that a dataset is published or withdrawn."""

    def note_change(self) -> None:
        self.changes += 1

    def __post_init__(self) -> None:
        self._heard: LRUCache[DatasetId, frozenset[str]] = LRUCache(MAX_HEARD)
        """The networks in which others mentioned a dataset, since this process began."""
        self._lock = threading.Lock()

    def is_public(self, dataset: DatasetId, peer: PeerId | None = None) -> bool:
        """Whether a dataset may be disclosed to anyone anywhere, or to ``peer``.

        Always does all lookups, so that the response time does not tell private from absent datasets.
        """
        return bool(self._public_of(None, [dataset], peer))

    def public_of(self, datasets: Iterable[DatasetId], peer: PeerId | None = None, /) -> frozenset[DatasetId]:
        """Returns those of the datasets that are public anywhere, with a few queries."""
        return self._public_of(None, datasets, peer)

    def within(self, network: str) -> PublicOf:
        """Returns the predicate for disclosures in one network, in which datasets limited to it are public too."""
        return partial(self._public_of, network)

    def is_told(self, dataset: DatasetId) -> bool:
        """Whether a dataset is public somewhere: anywhere, or in the networks that it is limited to."""
        return bool(self.told_of([dataset]))

    def is_known(self, dataset: DatasetId) -> bool:
        """Whether others may know of a dataset: it is public somewhere, or shared with a peer."""
        return self.is_told(dataset) or bool(self.shared_with(dataset))

    def told_of(self, datasets: Iterable[DatasetId], peer: PeerId | None = None, /) -> frozenset[DatasetId]:
        """Returns those of the datasets that are public somewhere."""
        return self._public_of(ANY, datasets, peer)

    def scope(self, dataset: DatasetId) -> frozenset[str] | None:
        """Returns the networks that a dataset is limited to; ``None`` if it is not limited."""
        with self.database.read() as connection:
            mark, kept = Marks(connection).of(dataset), NetworkScopes(connection).of(dataset)
        return self._scope(dataset, mark, kept)

    def published_in(self, dataset: DatasetId) -> tuple[str, ...]:
        """Lists the only networks in which a person published a dataset; empty if it is not limited so."""
        with self.database.read() as connection:
            if Marks(connection).of(dataset) is not VisibilityMark.PUBLISHED_TO:
                return ()
            return tuple(NetworkScopes(connection).in_order(dataset))

    def met_in(self, dataset: DatasetId) -> list[str] | None:
        """Lists the networks in which a dataset was met, in that order; ``None`` if it is limited to none."""
        scope = self.scope(dataset)
        if scope is None:
            return None
        with self.database.read() as connection:
            noted = [name for name in NetworkScopes(connection).in_order(dataset) if name in scope]
        return [*noted, *sorted(scope.difference(noted))]

    def note_mention(self, dataset: DatasetId, network: str, now: Instant, *, is_wanted: bool) -> None:
        """Notes that others mention a dataset in a network; on disk for one that is wanted here."""
        if self.has_key(dataset):
            return
        with self._lock:
            known = self._heard.get(dataset, frozenset())
            self._heard[dataset] = known | {network}
        if is_wanted and self.is_divided():
            self.keep_heard(dataset, now)

    def keep_heard(self, dataset: DatasetId, now: Instant) -> None:
        """Stores in which networks a dataset of others was mentioned, since it will outlive this process."""
        with self._lock:
            heard = self._heard.get(dataset, frozenset())
        with self.database.read() as connection:
            mark, kept = Marks(connection).of(dataset), NetworkScopes(connection).of(dataset)
        if mark in (None, VisibilityMark.MIRRORED) and heard - (kept or frozenset()) and not self.has_key(dataset):
            with self.database.write() as connection:
                NetworkScopes(connection).add(dataset, heard, now)

    def limit_mirrors(self, network: str, now: Instant) -> int:
        """Limits mirrors to the one network they were found in, as another is joined; returns how many."""
        with self.database.write() as connection:
            return limit_mirrors(connection, network, now)

    def _public_of(
        self, network: str | None, datasets: Iterable[DatasetId], peer: PeerId | None = None, /
    ) -> frozenset[DatasetId]:
        """Returns those of the datasets that are public in a network, to a peer: few are looked up one by one."""
        asked = set(datasets)
        with self.database.read() as connection:
            marks, shares, scopes = Marks(connection), Shares(connection), NetworkScopes(connection)
            # By their number, and never by what is found: what is private takes the lookups of what is nowhere
            # (test_what_is_private_takes_the_lookups_of_what_is_nowhere).
            if len(asked) <= _FEW:
                mark_of, kept_of = {each: marks.of(each) for each in asked}, {each: scopes.of(each) for each in asked}
                shared = {each for each in asked if shares.has(each, peer)}
                held = {each for each in asked if self.chains.chain(each).head() is not None}
            else:
                mark_of, kept_of = {**marks.all()}, {**scopes.all()}
                shared, held = set(shares.of_peer(peer)), set(self.chains.datasets())
        all_of_ours = self.publishes_all()

        def is_public(dataset: DatasetId) -> bool:
            mark, is_ours = mark_of.get(dataset), self.has_key(dataset)
            public = mark.is_public if mark is not None else all_of_ours if is_ours else dataset not in held
            return dataset in shared or (public and _reaches(self._scope(dataset, mark, kept_of.get(dataset)), network))

        return frozenset(filter(is_public, asked))

    def _scope(
        self, dataset: DatasetId, mark: VisibilityMark | None, kept: frozenset[str] | None
    ) -> frozenset[str] | None:
        """Returns the networks that a dataset is limited to, by the stored rows.

        For others' datasets, while this node is in several networks, those in which they were mentioned count too.
        """
        if mark is VisibilityMark.PUBLISHED_TO:
            return kept or frozenset()
        if mark not in (None, VisibilityMark.MIRRORED) or not self.is_divided() or self.has_key(dataset):
            return kept
        with self._lock:
            heard = self._heard.get(dataset)
        if heard is None:
            # Not mentioned since the start, and met nowhere by the rows: told in no network rather than in all (ADR
            # 47).
            return frozenset() if kept is None and mark is None else kept
        return heard.union(kept or ())

    def shared_with(self, dataset: DatasetId) -> list[PeerId]:
        with self.database.read() as connection:
            return Shares(connection).peers(dataset)

    def share(self, dataset: DatasetId, peers: Collection[PeerId], now: Instant, chains: Chains | None = None) -> bool:
        """Shares a dataset by a user's decision; returns whether that is new for a peer.

        ``chains``: lists the dataset and its other shards, in the same transaction. Raises Refused for too many.
        """
        with self.database.write() as connection:
            shares, shards = Shares(connection), (dataset,) if chains is None else chains(connection)
            before = set(shares.peers(shards[0]))
            if len(before.union(peers)) > MAX_PEERS:
                raise Refused(
                    f"shared with {plural(len(before.union(peers)), 'peer')}",
                    rule="share-peers",
                    hint=f"at most {MAX_PEERS:,}: for more, publish it",
                )
            for shard in shards:
                for peer in peers:
                    shares.put(shard, peer, now)
        return not before.issuperset(peers)

    def revoke(self, dataset: DatasetId, peers: Collection[PeerId], chains: Chains | None = None) -> bool:
        """Revokes shares by a user's decision; returns whether there was one.

        ``chains``: lists the dataset and all that is withdrawn with it, in the same transaction.
        """
        with self.database.write() as connection:
            shares, every = Shares(connection), (dataset,) if chains is None else chains(connection)
            dropped = [shares.drop(each, peer) for each in every for peer in peers]
        return any(dropped)

    def mark(self, dataset: DatasetId) -> VisibilityMark | None:
        with self.database.read() as connection:
            return Marks(connection).of(dataset)

    def publish_to(
        self, entries: Sequence[DatasetEntry], networks: Collection[str], now: Instant, change: CardChange | None = None
    ) -> list[bool]:
        """Publishes the shards of a dataset in some networks by a user's decision, in one transaction.

        ``change``: what the card of the first says from now on. Returns of each whether it was not public in one of
        them before. Raises Refused for one that is published everywhere, since a disclosure cannot be limited
        afterwards.
        """
        with self.database.write() as connection:
            changes = [self._publish_to(connection, entry, networks, now) for entry in entries]
            if change is not None:
                CardChoices(connection).put(entries[0].id, change, now)
        return changes

    def _publish_to(
        self, connection: sqlite3.Connection, entry: DatasetEntry, networks: Collection[str], now: Instant
    ) -> bool:
        dataset, name = entry.id, entry.name
        marks, scopes = Marks(connection), NetworkScopes(connection)
        mark, before = marks.of(dataset), scopes.of(dataset)
        if mark in (VisibilityMark.PUBLISHED, VisibilityMark.BEFORE) or (mark is None and self.publishes_all()):
            raise Refused(
                f"{name} is published everywhere, and others may have it",
                rule="published-everywhere",
                hint=f"odfctl unpublish {name} takes it back; then publish it to some networks",
            )
        # Rows of a dataset that was made private stay, to say where it is withdrawn; nobody chose those networks
        # now.
        if mark is not VisibilityMark.PUBLISHED_TO:
            scopes.clear(dataset)
            before = None
        scopes.add(dataset, networks, now)
        marks.put(dataset, VisibilityMark.PUBLISHED_TO, now)
        Shares(connection).clear(dataset)
        return not frozenset(networks) <= (before or frozenset())

    def set_for_all(
        self, datasets: Sequence[DatasetId], mark: VisibilityMark, now: Instant, change: CardChange | None = None
    ) -> list[bool]:
        """Sets the visibility of datasets for everybody, and removes shares, in one transaction.

        ``change``: what the card of the first says from now on. Returns of each whether its visibility changed.
        """
        before = [self.is_public(dataset) if mark.is_public else self.is_told(dataset) for dataset in datasets]
        was_shared = []
        with self.database.write() as connection:
            for dataset in datasets:
                Marks(connection).put(dataset, mark, now)
                if mark.is_public:  # else the networks say where to withdraw it
                    NetworkScopes(connection).clear(dataset)
                else:
                    CardChoices(connection).clear(dataset)
                was_shared.append(Shares(connection).clear(dataset))
            if change is not None and mark.is_public:
                CardChoices(connection).put(datasets[0], change, now)
        return [one is not mark.is_public or other for one, other in zip(before, was_shared, strict=True)]

    def shown_rows(self, dataset: DatasetId) -> int:
        """Returns how many rows its card shows while a dataset is published."""
        with self.database.read() as connection:
            return CardSamples(connection).of(dataset)

    def card_words(self, dataset: DatasetId) -> ChosenWords:
        """Returns what its card says by its publisher's decision while a dataset is published."""
        with self.database.read() as connection:
            return CardChoices(connection).words_of(dataset)

    def is_unsettled(self) -> bool:
        """Whether ``settle`` has not been called yet in the life of this state directory."""
        with self.database.read() as connection:
            return MARKS.look(connection, "dataset = ?", (_UNSETTLED,))[0] is not None

    def settle(self, mirrors: Iterable[DatasetId], now: Instant, *, gave: bool) -> list[DatasetId]:
        """Publishes mirrors of networks, and what an older version disclosed, once at a start; returns the latter.

        ``gave``: whether others could reach this node before.
        """
        held = self.chains.datasets()
        with self.database.write() as connection:
            marks = Marks(connection)
            if not marks.settle():
                return []
            given = sorted(set(held) - set(mirrors)) if gave else []
            for dataset in given:
                marks.put(dataset, VisibilityMark.BEFORE, now)
            for dataset in mirrors:
                marks.put(dataset, VisibilityMark.MIRRORED, now)
        return given


_FEW: Final = 4
"""Most datasets that are looked up one by one."""
MAX_HEARD: Final = 20_000
"""Most datasets of others whose networks are remembered: twice as many as are kept unheld."""
ANY: Final = ""
"""Stands in place of a network for any of those that a dataset is limited to."""


def _reaches(scope: frozenset[str] | None, network: str | None) -> bool:
    if scope is None:
        return True
    return bool(scope) if network == ANY else network in scope


def limit_mirrors(connection: sqlite3.Connection, network: str, now: Instant) -> int:
    """Limits mirrors to the one network they were found in; returns how many were limited to none."""
    scopes = NetworkScopes(connection)
    limited = scopes.all()
    found = [each for each, mark in Marks(connection).all().items() if mark is VisibilityMark.MIRRORED]
    new = [each for each in found if each not in limited]
    for dataset in new:
        scopes.add(dataset, [network], now)
    return len(new)


def mark_mirrored(
    connection: sqlite3.Connection, dataset: DatasetId, mark: VisibilityMark, now: Instant, *, is_said: bool
) -> None:
    """Marks a mirror in the transaction of its spec.

    An earlier decision stays unless ``is_said``: a user decides now.
    """
    marks = Marks(connection)
    if is_said or marks.of(dataset) in (None, VisibilityMark.DELETED):
        marks.put(dataset, mark, now)


def limit_to(connection: sqlite3.Connection, dataset: DatasetId, network: str, now: Instant) -> None:
    """Limits a mirror to the network in which a person looks for it, in the transaction of its spec."""
    if Marks(connection).of(dataset) is VisibilityMark.MIRRORED:
        NetworkScopes(connection).add(dataset, [network], now)


def told_by_sharers(database: Database, dataset: DatasetId, now: Instant, *, is_shared: bool) -> None:
    """Records whether its sharers now share a mirrored dataset, unless a person decided otherwise."""
    here, there = (
        (VisibilityMark.UNSHARED, VisibilityMark.PRIVATE)
        if is_shared
        else (VisibilityMark.PRIVATE, VisibilityMark.UNSHARED)
    )
    with database.read() as connection:
        if Marks(connection).of(dataset) is not here:
            return
    with database.write() as connection:
        # Read again: a person may have decided between the two transactions.
        if Marks(connection).of(dataset) is here:
            Marks(connection).put(dataset, there, now)


def mark_imported(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Removes the mark of deletion from an imported dataset, in the transaction of its name."""
    Marks(connection).drop(dataset, VisibilityMark.DELETED)


def follow(connection: sqlite3.Connection, old: DatasetId, new: DatasetId, now: Instant) -> None:
    """Gives ``new`` the visibility of ``old``: the same mark, networks, shares, and decisions about the card."""
    marks, scopes, shares = Marks(connection), NetworkScopes(connection), Shares(connection)
    mark, networks = marks.of(old), scopes.of(old)
    CardChoices(connection).follow(old, new, now)
    if mark is None:
        marks.drop(new, *VisibilityMark)
    else:
        marks.put(new, mark, now)
    scopes.clear(new)
    if networks is not None:
        scopes.add(new, networks, now)
    shares.clear(new)
    for peer in shares.peers(old):
        shares.put(new, peer, now)


def mark_deleted(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> None:
    """Marks a deleted dataset, so that nothing more is disclosed or passed on about it.

    A mirror of what is public in a network keeps no mark: evidence about its owner must still be passed on.
    """
    marks = Marks(connection)
    Shares(connection).clear(dataset)
    CardChoices(connection).clear(dataset)
    if marks.of(dataset) is VisibilityMark.MIRRORED:
        marks.drop(dataset, VisibilityMark.MIRRORED)
    else:
        marks.put(dataset, VisibilityMark.DELETED, now)


def _mark(text: str, *, whole: bool) -> VisibilityMark:
    try:
        return VisibilityMark(text) if whole else VisibilityMark.PRIVATE
    except ValueError:
        return VisibilityMark.PRIVATE
