"""Stores captures: which bytes of a source became which blocks, and at which time, so that they can be read again.

A capture is written in the transaction of the blocks that it became (``CommitPart``), after its files were stored
durably as objects. So no block of a captured dataset is without its bytes, and no capture without its block. Whether a
dataset is captured is declared by an annotation of its resource. The collector keeps captured objects. A history that
is given up leaves its captures, since the bytes are the source's. None of this is in the chain, so other nodes do not
know it. Synchronous, on the given connection. Spec: docs/spec/collections.md#raw.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import SourceState
from chain.multihash import Multihash
from chain.store.database import Database
from chain.store.seals import ROW_DAMAGED, Row, Sealed
from odfd.resources.plan import LABEL
from odfd.resources.store import ResourceStore
from odfd.resources.types import annotation_of
from odfd.store import collections
from odfd.store.catalog import Catalog

ROOM: Final = "captures"
CAPTURES: Final = Sealed(
    "captures",
    ("dataset", "block", "first", "last", "time", "body"),
    "odfctl raw drop NAME forgets the captures of a dataset; its rows stay",
)
KEEP_RAW: Final = "keepRaw"
"""Name of the annotation of a Dataset: the bytes of its source are kept. A Source has a field of this name."""


def convert_captured(connection: sqlite3.Connection) -> Sequence[str]:
    """Annotates the datasets whose active rendition the former rows call captured. Returns a line for each."""
    lines = []
    for (raw,) in connection.execute("SELECT dataset FROM captured_datasets ORDER BY dataset").fetchall():
        dataset = DatasetId(raw)
        row = Catalog(connection).resource_of(dataset)
        if row is None or collections.of(connection, dataset).active.dataset != dataset:
            continue
        said = {**row.annotations, KEEP_RAW: True}
        managers = {
            **row.managers,
            f"annotations.{KEEP_RAW}": LABEL,
        }  # as by hand: manifests of before leave it alone
        ResourceStore(connection).rewrite(
            msgspec.structs.replace(row, annotations=said, managers=managers), row.updated_at
        )
        lines.append(f"the dataset {row.name}, captured by odfctl raw keep before, has the annotation keepRaw: true")
    return lines


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
    Sealed("captured_datasets", ("dataset", "since"), "").step,
    convert_captured,
    "DROP TABLE captured_datasets",
)
TABLES: Final = ("captures",)


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
    given: str = ""
    """Id of the Source that they were taken from; empty if the chain declares their source."""
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


def keeps_raw(annotations: Mapping[str, Any]) -> bool:
    """Whether the annotations of a Dataset say that it is captured. Raises Invalid."""
    said = annotation_of(annotations, "dataset", KEEP_RAW)
    if said is None or isinstance(said, bool):
        return bool(said)
    raise Invalid(f"{KEEP_RAW}: expected true or false", rule="manifest-type", hint=f"{KEEP_RAW}: true")


def is_captured(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    """Whether a dataset is captured: with all its renditions, as the resource says that stands for them."""
    row = Catalog(connection).resource_of(dataset)
    return row is not None and keeps_raw(row.annotations)


def is_captured_in(database: Database, dataset: DatasetId) -> bool:
    """Whether a dataset is captured, as ``is_captured``."""
    with database.read() as connection:
        return is_captured(connection, dataset)


def goes_on(connection: sqlite3.Connection, dataset: DatasetId) -> bool:
    """Whether bytes are kept as they come: as the dataset says, or the Source from which it took the last that are."""
    rows = list(CAPTURES.rows(connection, "dataset = ? ORDER BY time DESC LIMIT 1", (dataset,)))
    source = ResourceStore(connection).get(_to_bound(rows[0]).capture.given) if rows else None
    return is_captured(connection, dataset) or bool(source is not None and source.spec.get(KEEP_RAW))


def of(connection: sqlite3.Connection, dataset: DatasetId) -> list[BoundCapture]:
    """Lists the captures of a dataset, oldest first. Raises Environment for a damaged one."""
    return [_to_bound(row) for row in CAPTURES.rows(connection, "dataset = ? ORDER BY time, first", (dataset,))]


def count(connection: sqlite3.Connection, dataset: DatasetId) -> int:
    """Returns the number of captures of a dataset, without reading them."""
    return int(connection.execute("SELECT COUNT(*) FROM captures WHERE dataset = ?", (dataset,)).fetchone()[0])


def objects(database: Database) -> Iterator[Multihash]:
    """Yields the captured objects, for the collector.

    Raises Environment for a damaged row, since its objects are unknown and nothing may be freed then.
    """
    with database.read() as connection:
        names = [file.object for row in CAPTURES.rows(connection) for file in _to_bound(row).capture.files]
    return iter(names)


def _to_bound(row: Row) -> BoundCapture:
    dataset, block, first, last, time, body = row
    try:
        said = msgspec.json.decode(body, type=_Stored, dec_hook=_parse)
    except msgspec.MsgspecError as error:
        place = DatasetId(dataset).short
        raise Environment(f"a capture of {place} cannot be read: {error}", rule=ROW_DAMAGED) from error
    capture = Capture(**{name: getattr(said, name) for name in Capture.__struct_fields__})
    own = CapturedPart(DatasetId(dataset), Multihash(block), first, last)
    return BoundCapture(capture=capture, parts=said.parts or (own,), time=time)


def _parse(kind: type, value: object) -> object:
    if kind is DatasetId:
        return DatasetId.parse(str(value))
    return Multihash.parse(str(value)) if kind is Multihash else value
