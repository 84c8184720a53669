"""Opens the node's state directory: its database, objects, keys and work folders, for one process at a time.

Opened first and closed last. It holds the parts that every service needs and decides nothing. Leftovers of a crash in
the folders of work in progress are deleted when it is opened. The database opens also on a full disk, so that what is
there can be read: for the index of its log, which takes 32 KiB for 4,096 pages, a reserve is given up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from chain.errors import Environment
from chain.ids import DatasetId
from chain.store import durable, schema
from chain.store.database import Database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from chain.wording import agree, plural
from odfd.access.uses import Uses
from odfd.resources import tables as resources
from odfd.runtime.clock import Clock, SystemClock
from odfd.runtime.filesystem import make_private
from odfd.runtime.slots import KeyedLocks
from odfd.store import (
    access_tokens,
    captures,
    card_choices,
    catalog,
    collections,
    damage,
    idempotency,
    incidents,
    invitation_tokens,
    mirror_specs,
    pushes,
    read_holds,
    references,
    resume,
    row_counts,
    saved_views,
    shares,
    spool,
    unmanaged,
    visibility,
)
from odfd.store import flow_runs as flows
from odfd.store import webhook_calls as webhooks
from odfd.store.access_state import AccessReader
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.crash_recovery import OBJECTS, CrashRecovery, look_back, without_orphans
from odfd.store.damage import DamagedBlock
from odfd.store.keys.keystore import KeyStore
from odfd.store.keys.secret_keys import SecretKeys
from odfd.store.ledger import kinds, log
from odfd.store.slice_files import SliceFiles

RESERVE: Final = "reserve"
_RESERVE_BYTES: Final = 128 << 10
"""They are random, since some file systems compress."""


def open_reserved(directory: Path, name: str, written: Callable[[], None] | None = None) -> Database:
    """Opens the database ``name``; makes the reserve if there is room. Raises Environment.

    ``written``: as for ``Database``.
    """
    reserve = directory / RESERVE
    try:
        database = Database(directory / name, written)
    except Environment as error:
        if error.rule != "disk-full" or not reserve.exists():
            raise
        reserve.unlink()
        database = Database(directory / name, written)
        database.is_full = True
    if not reserve.exists():
        with suppress(OSError):  # it is made at a later start
            durable.write(reserve, secrets.token_bytes(_RESERVE_BYTES))
    return database


DATABASE: Final = "odfd.sqlite"
STAGING: Final = "staging"
"""Folder of work in progress which, like UPLOADS, is emptied at the start (``crash_recovery``)."""
UPLOADS: Final = "uploads"
STAGED: Final = "staged"
"""Folder of blocks that arrived as one stream, until they are adopted; kept over a restart."""
SEGMENTS: Final = "segments"
"""Folder of merged small slices, for ingestion, which can be made again from the chains."""
FOLDS: Final = "folds"
"""Folder of the state of datasets at earlier cuts, for queries; can be made again."""
PROJECTIONS: Final = "projections"
"""Folder of the tables of projections; can be made again."""
VOLUMES: Final = "volumes"
"""Folder of copies read from volumes that are no folders; can be made again."""
SPOOL: Final = "spool"
"""Folder of pushes that wait for their Sources, which are stored nowhere else."""
_COPIES: Final = "reclock"
"""Folder of earlier versions: copies of chains at repositories into which several nodes ingested."""
PARTIAL: Final = "partial"
PARTIAL_EVIDENCE: Final = "partial-evidence"
"""Folder of evidence that is being fetched; like PARTIAL, with objects, it is kept over a restart."""
ROOMS: Final[tuple[Any, ...]] = (
    schema, references, row_counts, pushes, resources, flows, visibility, log, damage, resume, saved_views,
    shares.Shares, webhooks, idempotency, shares.NetworkScopes, read_holds, access_tokens, collections, captures,
    unmanaged, spool, invitation_tokens, incidents, card_choices.CardSamples, card_choices.CardChoices,
)  # fmt: skip
"""Modules and classes with ``ROOM`` and ``STEPS``, which define the database's tables."""
NAMES: Final = b"names"
"""Key in ``Database.has_changed`` for the names of all datasets."""
_KEYS: Final = {
    "datasets": "{row}.id",
    **dict.fromkeys(
        (
            "card_samples",
            "card_words",
            "damage",
            "held_extents",
            "network_scopes",
            "row_counts",
            "shares",
            "trust_again",
            "trust_chains",
            "trust_cosignatures",
            "trust_ledger",
            "trust_met",
            "trust_rechecked",
            "trust_replays",
            "trust_resolved",
            "trust_runs",
            "trust_subtrees",
            "trust_wanted",
            "verified",
            "visibility",
            *kinds.SAID,
        ),
        "{row}.dataset",
    ),
    "collections": "{row}.id",
    # A dataset is known by its name, and a mirror's terms are of its dataset; the others are of all.
    "declarations": f"CASE {{row}}.type WHEN '{catalog.TYPE}' THEN x'{NAMES.hex()}'"
    f" WHEN '{mirror_specs.TYPE}' THEN CAST({{row}}.did AS BLOB) WHEN 'Network' THEN NULL WHEN 'Validator' THEN NULL"
    " WHEN 'TrustPolicy' THEN NULL WHEN 'Peer' THEN NULL ELSE x'' END",
    # A base, a publication and a quarantine change nothing of what is shown of their dataset.
    "records": "CASE {row}.kind WHEN 'accepted-policy' THEN NULL ELSE x'' END",
}
"""Tables whose rows are about one dataset (``keys_of``) or about names, with an SQL expression for the key to watch."""
_UNWATCHED: Final = (
    "blocks",
    "flow_runs",
    "hold_owners",
    "held_blocks",
    "held_bytes",
    "held_objects",
    "idempotency",
    "incidents",
    "object_links",
    "object_references",
    "purged",
    "pushes",
    "read_holds",
    "small_objects",
    "unmanaged",
    "versions",
    "volume_claims",
    "volume_objects",
    "volume_remains",
    *captures.TABLES,
    *spool.TABLES,
    "collection_members",
    *resources.UNWATCHED,
    *saved_views.TABLES,
    *webhooks.TABLES,
)
"""Tables that views do not depend on: a changed chain has another head, and a logged mirror is in force."""
LOCK_NAME: Final = "lock"


def keys_of(dataset: DatasetId) -> frozenset[bytes]:
    """Returns a dataset's keys in ``Database.has_changed``: for all its rows, and for the intent of that name."""
    return frozenset((bytes(dataset), str(dataset).encode()))


def _without_copies(folder: Path) -> Sequence[str]:
    """Removes the copies of chains at repositories that earlier versions kept. Returns a line that says so, or none."""
    count = sum(path.is_dir() for path in folder.iterdir()) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    if not count:
        return ()
    copies = f"{plural(count, 'copy', 'copies')} of collections that several nodes ingested ({folder.name}/)"
    were = agree(count, "was", "were")
    return (f"{copies} {were} removed: the collections stay at their repositories, and get no more rows",)


@dataclass(frozen=True, slots=True)
class HomeTerms:
    """Decisions of a node about its state, read anew each time; by default those of a program that only reads it."""

    clock: Clock = field(default_factory=SystemClock)
    """Clock by which holds of readers expire."""
    spool_bytes: Callable[[], int] = lambda: 1 << 30
    """Returns the most bytes of pushes that wait for one Source."""
    publishes_all: Callable[[], bool] = lambda: False
    """Whether the settings publish each own dataset without a decision about it."""
    is_divided: Callable[[], bool] = lambda: False
    """Whether this node is in several networks."""
    written: Callable[[], None] | None = None
    """Called after each transaction that changed something, by the thread that wrote."""
    found_damaged: Callable[[DatasetId, DamagedBlock], object] = lambda _dataset, _spot: None
    """Called with each damaged slice, by the thread that was to read it."""


class StateDirectory:
    """An open state directory, with its database, chains, objects and keys."""

    def __init__(
        self,
        directory: Path,
        database: Database,
        recovery: CrashRecovery | None = None,
        terms: HomeTerms = HomeTerms(),
    ) -> None:
        self.directory = directory
        self.recovery = recovery or CrashRecovery()
        self.database = database
        # All at once, as each transaction waits for the disk.
        database.migrate_all((room.ROOM, room.STEPS) for room in ROOMS)
        self.recovery.brought_forward, self.recovery.converted = (
            tuple(database.brought_forward),
            tuple(database.converted),
        )
        self.objects = DiskObjects(self.folder(OBJECTS), database)
        self.slices = SliceFiles(self.objects, self.catalog, terms.found_damaged)
        self.clock = terms.clock
        self.held = read_holds.HoldGuard(self.clock.now)
        """Raises Refused while the history of a dataset is held for a reader."""
        self.chains = SqliteChains(database, self.objects, guard=self.held)
        self.spool = spool.PushSpool(database, self.folder(SPOOL), terms.spool_bytes)
        self.secrets = SecretKeys(directory / "keys")
        self.keys = KeyStore(directory / "keys", secrets.token_bytes)
        self.visibility = visibility.Visibility(
            database, self.chains, self.keys.has_dataset_key, terms.publishes_all, terms.is_divided
        )
        self.access = AccessReader(database, self.visibility.public_of, lambda: self.visibility.changes)
        self.uses = Uses(self.access)
        """Follows references by the rights of accounts; all may read what is published."""
        self.turns = KeyedLocks()
        """Locks for writing a dataset: data fetched for one history is never committed to another."""
        for folder in (STAGING, UPLOADS):
            shutil.rmtree(directory / folder, ignore_errors=True)
        self.recovery.converted = (*self.recovery.converted, *_without_copies(directory / _COPIES))
        if not self.recovery.lost:  # else Sources may be among the lost pages, and what was pushed to them must stay
            without_orphans(database, self.spool)
        self.recovery.files += self.spool.sweep()
        if not self.recovery.lost:  # else chains that had begun may be among the lost pages, and their keys must stay
            self.recovery.keys = sum(not self._settle_key(each) for each in self.keys.unborn())
        database.watch(_KEYS, _UNWATCHED, saved_views.drop)

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        """Opens the catalog of names in a transaction."""
        with self.database.read() as connection:
            yield Catalog(connection)

    def entries(self) -> Sequence[DatasetEntry]:
        with self.catalog() as catalog:
            return catalog.entries()

    def resolve(self, ref: str) -> DatasetEntry:
        """Returns a dataset by local name or did. Raises NotFound, Invalid."""
        with self.catalog() as catalog:
            return catalog.resolve(ref)

    def name_of(self, dataset: DatasetId) -> str:
        with self.catalog() as catalog:
            return catalog.name_of(dataset)

    @contextmanager
    def newborn(self) -> Iterator[DatasetId]:
        """Creates a dataset's key for a commit; deletes it if the commit fails, also after a crash."""
        made = self.keys.new_dataset_key().dataset_id
        try:
            yield made
        finally:
            self._settle_key(made)

    def _settle_key(self, dataset: DatasetId) -> bool:
        """Keeps the key if the dataset's chain has begun, else deletes it; returns whether it has begun."""
        has_begun = self.chains.chain(dataset).head() is not None
        (self.keys.keep_dataset_key if has_begun else self.keys.discard_dataset_key)(dataset)
        return has_begun

    def shards_of(self, dataset: DatasetId) -> tuple[DatasetId, ...]:
        """Lists the chains with the rows of a dataset: itself, or all shards if it is the first of several."""
        with self.database.read() as connection:
            return collections.shards_of(connection, dataset)

    def database_size(self) -> int:
        """Returns the bytes of the database and its log, which holds the newest changes. Blocking."""
        files = (self.directory / f"{DATABASE}{suffix}" for suffix in ("", "-wal"))
        return sum(path.stat().st_size for path in files if path.exists())

    def folder(self, name: str) -> Path:
        """Returns a folder of the state directory, made if absent. Raises Environment."""
        path = self.directory / name
        try:
            durable.make_folder(path, 0o700)
        except OSError as error:
            raise Environment(f"cannot make {path}: {error.strerror}", rule="state-directory") from error
        return path


@contextmanager
def open_state_directory(
    directory: Path,
    *,
    is_entered: bool = False,
    terms: HomeTerms = HomeTerms(),
) -> Iterator[StateDirectory]:
    """Opens the state directory and locks it for this process.

    Raises Environment when it cannot be used or another process has it. ``is_entered``: others may pass through it, to
    a socket in it.
    """
    try:
        durable.make_folder(directory, 0o700)
    except OSError as error:
        raise Environment(
            f"cannot make the state directory {directory}: {error.strerror}",
            rule="state-directory",
            hint="name one that this user may write: odfd run --state DIR",
        ) from error
    with StateLock(directory):
        make_private(directory, is_entered=is_entered)
        recovery = look_back(directory, DATABASE)
        database = open_reserved(directory, DATABASE, terms.written)
        recovery.is_full = database.is_full
        make_private(directory, is_entered=is_entered)  # the database may be new
        recovery.lost = max(0, recovery.promised - database.recovered)
        try:
            yield StateDirectory(directory, database, recovery, terms)
        finally:
            database.close()


class StateLock:
    """Locks a directory for one process; the kernel releases the lock when its holder dies, however it dies.

    Held from ``acquire`` (or ``with``) to ``release``. The file stays; only the lock on it counts.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._file: int | None = None

    def acquire(self) -> None:
        """Takes the lock. Raises Environment with the process that holds the directory, or with the disk's error."""
        try:
            # A lock of flock(2) belongs to the open file: a child that inherited it would hold the directory after us.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Environment(
                f"cannot use the state directory {self._path.parent}: {error.strerror}",
                rule="state-directory",
                hint="it must exist and be writable for this user",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise Environment(
                f"another odfd (process {holder}) uses the state directory {self._path.parent}",
                rule="state-lock",
                hint="stop it first, or name another directory with --state",
            ) from error
        # For people only; a full disk must not keep a node from its state.
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> StateLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
