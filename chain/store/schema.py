"""Creates the tables of chains and small objects, step by step. Steps are added at the end and never changed."""

from __future__ import annotations

from typing import Final, get_args

from chain.model.block import Block, SealedBlock, UnknownEvent
from chain.model.events import MetadataEvent

ROOM: Final = "chain"
STEPS: Final = (
    """
    CREATE TABLE datasets (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id BLOB NOT NULL UNIQUE,
        head_sequence INTEGER NOT NULL,
        head_hash BLOB NOT NULL
    ) STRICT;
    CREATE TABLE blocks (
        dataset INTEGER NOT NULL REFERENCES datasets (number) ON DELETE CASCADE,
        sequence INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        hash BLOB NOT NULL,
        raw BLOB NOT NULL,
        PRIMARY KEY (dataset, sequence)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX blocks_by_hash ON blocks (hash);
    CREATE INDEX blocks_by_kind ON blocks (dataset, kind, sequence);
    CREATE TABLE small_objects (
        name BLOB PRIMARY KEY,
        data BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    """
    -- Hashes come in no order, so each new one lands somewhere in the index: the shorter its entries, the more of it
    -- stays in memory and the fewer pages a commit touches. Eight bytes tell any two blocks apart that are not made to
    -- collide, and those are told apart by the rest.
    DROP INDEX blocks_by_hash;
    CREATE INDEX blocks_by_hash ON blocks (substr(hash, 3, 8));
    """,
    """
    -- Grows with every change of a chain that is no append: whoever read it in parts sees that it is another one.
    ALTER TABLE datasets ADD COLUMN history INTEGER NOT NULL DEFAULT 0;
    """,
    """
    -- What was promised of a chain: no block of an earlier time (milliseconds) will follow. NULL: nothing was.
    ALTER TABLE datasets ADD COLUMN upper INTEGER;
    """,
    """
    -- Objects that lie outside of the state directory, and copies there that are to be deleted (chain.store.volumes).
    CREATE TABLE volume_objects (
        name BLOB PRIMARY KEY,
        volume TEXT NOT NULL,
        size INTEGER NOT NULL,
        dataset BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX volume_objects_by_volume ON volume_objects (volume, dataset);
    CREATE TABLE volume_remains (
        volume TEXT NOT NULL,
        name BLOB NOT NULL,
        PRIMARY KEY (volume, name)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    -- Where a volume was marked as this node's. A folder without its mark is a disk that is not mounted, ever after.
    CREATE TABLE volume_claims (
        volume TEXT PRIMARY KEY,
        place TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
)
KINDS: Final = {event.__name__: number for number, event in enumerate(get_args(MetadataEvent), start=1)}
"""Number of an event in the union of the wire format, which also numbers events unknown to this version."""


def kind_of(block: Block | SealedBlock) -> int:
    return block.variant if isinstance(block, SealedBlock) else kind_number(block.event)


_NAMES: Final[dict[int, str]] = {number: name for name, number in KINDS.items()}


def kind_name(event: MetadataEvent | UnknownEvent) -> str:
    """Names the kind of an event for queries of a chain; ``UnknownEvent`` stands for every unknown kind."""
    return _NAMES.get(kind_number(event), UnknownEvent.__name__)


def kind_number(event: MetadataEvent | UnknownEvent) -> int:
    return event.variant if isinstance(event, UnknownEvent) else KINDS[type(event).__name__]
