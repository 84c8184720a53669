"""Stores captures: which bytes of a source became which blocks, and at which time, so that they can be read again.

A capture is written in the transaction of the blocks that it became (``CommitExtras``), after its files were stored
durably as objects. So no block of a captured dataset is without its bytes, and no capture without its block. The
collector keeps captured objects. A history that is given up leaves its captures, since the bytes are the source's. None
of this is in the chain, so other nodes do not know it. Synchronous, on the given connection. Spec:
docs/spec/collections.md#raw.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from chain.errors import Environment
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import SourceState
from chain.multihash import Multihash
from chain.store.database import Database
from chain.store.seals import ROW_DAMAGED, Row, Sealed

ROOM: Final = "captures"
CAPTURES: Final = Sealed(
    "captures",
    ("dataset", "block", "first", "last", "time", "body"),
    "odfctl raw drop NAME forgets the captures of a dataset; its rows stay",
)
CAPTURED: Final = Sealed("captured_datasets", ("dataset", "since"), "odfctl raw keep NAME")
STEPS: Final = (
    """
    CREATE TABLE captures (
        dataset BLOB NOT NULL,
        block BLOB NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        time INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (dataset, block)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE captured_datasets (
        dataset BLOB PRIMARY KEY,
        since INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    CAPTURES.step,
    CAPTURED.step,
)
TABLES: Final = ("captures", "captured_datasets")


class CapturedFile(msgspec.Struct, frozen=True):
    name: str
    """The name of the file, for people."""
    object: Multihash
    size: int


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one transaction as they came from their source, and what was known about them."""

    files: tuple[CapturedFile, ...]
    source: str = ""
    """Name of the push source; empty if they were polled."""
    label: SourceState | None = None
    """The state that the source reported for these bytes, such as a version."""
    event_time: Instant | None = None
    fills_event_time: bool = False
    decoded: bool = False
    """Whether gzip was decoded in transfer."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class CapturedPart(msgspec.Struct, frozen=True):
    """The blocks of one chain that a capture became."""

    dataset: DatasetId
    block: Multihash
    """Hash of the last one."""
    first: int
    """Number of the first one."""
    last: int


class _Stored(Capture, frozen=True, kw_only=True):
    """A capture as it is stored, with its parts if they are not one of the dataset itself."""

    parts: tuple[CapturedPart, ...] = ()


class BoundCapture(msgspec.Struct, frozen=True, kw_only=True):
    """A capture with the transaction that it became."""

    capture: Capture
    parts: tuple[CapturedPart, ...]
    """The blocks in each chain that got some: of several shards only in those for which something changed."""
    time: int
    """System time of the transaction in whole milliseconds."""

    @property
    def block(self) -> Multihash:
        """Hash of the transaction's last block, in the first chain that got one."""
        return self.parts[0].block

    @property
    def last(self) -> int:
        return self.parts[0].last


def keep(
    connection: sqlite3.Connection, dataset: DatasetId, capture: Capture, parts: Sequence[CapturedPart], time: int
) -> None:
    """Stores a capture with its transaction. ``dataset``: the first of several shards, or the only chain."""
    first, said = parts[0], capture
    if len(parts) > 1 or first.dataset != dataset:
        said = _Stored(**msgspec.structs.asdict(capture), parts=tuple(parts))
    body = msgspec.json.encode(said, enc_hook=str)
    CAPTURES.put(connection, dataset, first.block, first.first, first.last, time, body)


def begin(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> bool:
    """Begins to capture what a dataset ingests; ``False`` if it is captured already."""
    if CAPTURED.look(connection, "dataset = ?", (dataset,))[0] is not None:
        return False
    CAPTURED.put(connection, dataset, now)
    return True


def end(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    """Ends the capturing of a dataset; what was captured stays. ``False`` if it was not captured."""
    return bool(connection.execute("DELETE FROM captured_datasets WHERE dataset = ?", (dataset,)).rowcount)


def is_captured(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    """Whether a dataset is captured; true also for a damaged row, since too many bytes are better than too few."""
    return CAPTURED.look(connection, "dataset = ?", (dataset,))[0] is not None


def of(connection: sqlite3.Connection, dataset: DatasetId) -> list[BoundCapture]:
    """Lists the captures of a dataset, oldest first. Raises Environment for a damaged one."""
    return [_bound(row) for row in CAPTURES.rows(connection, "dataset = ? ORDER BY time, first", (dataset,))]


def count(connection: sqlite3.Connection, dataset: DatasetId) -> int:
    """Returns the number of captures of a dataset, without reading them."""
    return int(connection.execute("SELECT COUNT(*) FROM captures WHERE dataset = ?", (dataset,)).fetchone()[0])


def forget(connection: sqlite3.Connection, dataset: DatasetId) -> int:
    """Deletes the captures of a dataset, also damaged ones; the next collection deletes their objects."""
    return connection.execute("DELETE FROM captures WHERE dataset = ?", (dataset,)).rowcount


def objects(database: Database) -> Iterator[Multihash]:
    """Yields the captured objects, for the collector.

    Raises Environment for a damaged row, since its objects are unknown and nothing may be freed then.
    """
    with database.read() as connection:
        names = [file.object for row in CAPTURES.rows(connection) for file in _bound(row).capture.files]
    return iter(names)


def _bound(row: Row) -> BoundCapture:
    dataset, block, first, last, time, body = row
    try:
        said = msgspec.json.decode(body, type=_Stored, dec_hook=_parsed)
    except msgspec.MsgspecError as error:
        place = DatasetId(dataset).short
        raise Environment(f"a capture of {place} cannot be read: {error}", rule=ROW_DAMAGED) from error
    capture = Capture(**{name: getattr(said, name) for name in Capture.__struct_fields__})
    own = CapturedPart(DatasetId(dataset), Multihash(block), first, last)
    return BoundCapture(capture=capture, parts=said.parts or (own,), time=time)


def _parsed(kind: type, value: object) -> object:
    if kind is DatasetId:
        return DatasetId.parse(str(value))
    return Multihash.parse(str(value)) if kind is Multihash else value


class CaptureTable:
    """Tells whether a dataset is captured, over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __call__(self, dataset: DatasetId) -> bool:
        with self._database.read() as connection:
            return is_captured(connection, dataset)
