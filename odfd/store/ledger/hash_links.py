"""Links the entries of the log by hash, and keeps the links when entries are dropped.

Entries that are dropped leave a gap: one row for all adjacent ones. It says which entries they were and carries the
hash before the first and that of the last, so that the remaining entries are linked as before, and a flipped bit is
still found. Only undamaged entries are dropped; otherwise damage would disappear unnoticed. Calls are synchronous, on
the connection given.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import msgspec

from chain.errors import Environment
from chain.instant import Instant
from chain.statements import canonical

GENESIS: Final = bytes(32)
"""The link before the first entry."""
GAP: Final = "gap"
"""Type of the row that replaces dropped entries."""
_COLUMNS: Final = "seq, at, dataset, signer, type, sid, body, from_peer, outcome, prev_hash, hash"


class LinkedEntry(NamedTuple):
    """One row of the log."""

    seq: int
    at: int
    dataset: bytes
    signer: bytes
    type: str
    sid: bytes
    body: bytes
    from_peer: str
    outcome: str
    prev_hash: bytes
    hash: bytes


_TYPES: Final = (int, int, bytes, bytes, str, bytes, bytes, str, str, bytes, bytes)


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A gap in the log: first and last number, count of dropped entries, and the hashes on both sides in hex."""

    first: int
    last: int
    entries: int
    previous: str
    hash: str


def link(previous: bytes, row: tuple[object, ...]) -> bytes:
    """Returns the hash of an entry that follows one with the hash ``previous``."""
    digest = hashlib.sha3_256(previous)
    for value in row:
        raw = value if isinstance(value, bytes) else str(value).encode()
        # Without lengths, bytes that move from one column to the next leave the hash as it is.
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.digest()


def entries(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> Iterator[LinkedEntry]:
    """Yields entries in order."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM trust_ledger WHERE {where} ORDER BY seq", values)  # noqa: S608
    return map(LinkedEntry._make, rows)


def whole(found: Iterator[LinkedEntry]) -> Iterator[LinkedEntry]:
    """Yields the same entries after a check of each hash. Raises Environment at the first that does not match."""
    for entry in found:
        if not _is_whole(entry):
            raise _to_altered(entry)
        yield entry


def check_links(found: Iterator[LinkedEntry], previous: bytes | None) -> Iterator[LinkedEntry]:
    """Yields the same entries after a check of each hash and link.
    ``previous``: ``None`` accepts any link of the first."""
    for entry in whole(found):
        if previous not in (None, entry.prev_hash):
            raise _to_altered(entry)
        previous = entry.hash
        yield entry


def cut(connection: sqlite3.Connection, dropped: Collection[int], now: Instant) -> None:
    """Replaces these entries with gaps, and merges adjacent gaps. Raises Environment if one is damaged."""
    low, high = min(dropped), max(dropped)
    before = connection.execute("SELECT MAX(seq) FROM trust_ledger WHERE seq < ?", (low,)).fetchone()[0]
    after = connection.execute("SELECT MIN(seq) FROM trust_ledger WHERE seq > ?", (high,)).fetchone()[0]
    around = (low if before is None else before, high if after is None else after)
    for gap in list(_gaps(check_links(entries(connection, "seq BETWEEN ? AND ?", around), None), dropped)):
        connection.execute("DELETE FROM trust_ledger WHERE seq BETWEEN ? AND ?", (gap.first, gap.last))
        row = (now, b"", b"", GAP, canonical.encode(msgspec.to_builtins(gap)), "", "dropped")
        connection.execute(
            f"INSERT INTO trust_ledger ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
            (gap.last, *row[:4], link(GENESIS, row), *row[4:], bytes.fromhex(gap.previous), bytes.fromhex(gap.hash)),
        )


def _gaps(around: Iterator[LinkedEntry], dropped: Collection[int]) -> Iterator[Gap]:
    """Yields the gaps that grow or are made; entries that are not dropped end them."""
    names, gap, grows = frozenset(dropped), None, False
    for entry in around:
        if entry.type == GAP or entry.seq in names:
            gap = _join(gap, entry)
            grows = grows or entry.seq in names
            continue
        if gap is not None and grows:
            yield gap
        gap, grows = None, False
    if gap is not None and grows:
        yield gap


def _join(gap: Gap | None, entry: LinkedEntry) -> Gap:
    more = _read(entry) if entry.type == GAP else None
    if more is None:
        more = Gap(entry.seq, entry.seq, 1, entry.prev_hash.hex(), entry.hash.hex())
    return more if gap is None else Gap(gap.first, more.last, gap.entries + more.entries, gap.previous, more.hash)


def _to_altered(entry: LinkedEntry) -> Environment:
    return Environment(
        f"entry {entry.seq} of the trust ledger was altered", rule="ledger-link", hint="restore the database"
    )


def _is_whole(entry: LinkedEntry) -> bool:
    if not all(map(isinstance, entry, _TYPES)):  # a damaged page of a database can hold NULL in any column
        return False
    if entry.type != GAP:
        return entry.hash == link(entry.prev_hash, entry[1:9])
    gap = _read(entry)
    fields = (*entry[1:5], *entry[6:9])
    names = None if gap is None else (gap.last, gap.previous, gap.hash)
    return entry.sid == link(GENESIS, fields) and names == (entry.seq, entry.prev_hash.hex(), entry.hash.hex())


def _read(entry: LinkedEntry) -> Gap | None:
    try:
        return msgspec.json.decode(entry.body, type=Gap)
    except msgspec.DecodeError:
        return None
