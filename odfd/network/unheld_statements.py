"""Stores statements on datasets that are neither held nor wanted here: in memory, within bounds, never on disk.

A node passes such statements on and shows them to peers that ask, so that interested nodes find them. They are judged
by the same rules as all others, over tables of the same form in an in-memory database: they neither wait for nor write
to the node's database, and do not outlive the process; peers send them again. Of each dataset the newest head, the
versions of its authority and a few other statements are kept, up to a number of bytes; the datasets mentioned least
recently make room. Safe to use from any thread. Spec: docs/spec/trust.md#room.

Statements that arrived before the authority version they depend on wait here too, and are retried when it arrives. They
are bounded as well, and the sender with the most waiting statements makes room first. An evicted statement is requested
again by anti-entropy.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.statement import AUTHORITY, HEAD, HeadStatement
from odfd.store.ledger import kinds
from odfd.store.ledger.log import STEPS, Ledger
from odfd.trust.admission.statement_kinds import KINDS
from p2p.ports import PeerId, StatementRef, Topic

MAX_DATASETS: Final = 10_000
MAX_BYTES: Final = 32 << 20
"""Bytes of all envelopes together: a head, a card and an authority for each of many datasets."""
MAX_BYTES_OF_ONE: Final = 128 << 10
"""Bytes of the envelopes on one dataset: some dozen authority versions, a head, and verdicts of a few validators."""
_SPOKEN: Final = tuple(each for each in kinds.TABLES if each.of_dataset)


@functools.cache
def _empty_tables() -> sqlite3.Connection:
    """Creates the empty tables once per process: a copy takes a tenth of the time."""
    made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for script in STEPS:
        made.executescript(script)
    return made


class UnheldFull(Exception):
    """A dataset that is not held has more statements than are kept."""


class UnheldStatements:
    """Stores statements on datasets that are not held."""

    def __init__(
        self, most: int = MAX_DATASETS, most_bytes: int = MAX_BYTES, most_of_one: int = MAX_BYTES_OF_ONE
    ) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._most_of_one = most_of_one
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._db.close)
        _empty_tables().backup(self._db)
        self._bytes: OrderedDict[DatasetId, int] = OrderedDict()
        """Bytes by dataset; the one mentioned least recently comes first."""
        self._total = 0

    def __len__(self) -> int:
        return len(self._bytes)

    @property
    def size(self) -> int:
        """Returns the bytes of all envelopes."""
        return self._total

    @contextmanager
    def write(self, dataset: DatasetId) -> Iterator[sqlite3.Connection]:
        """Opens a transaction on a dataset's statements, undone on errors. Raises UnheldFull at its end."""
        with self._lock:
            self._db.execute("BEGIN")
            try:
                yield self._db
                size = self._tidy(dataset)
                if size > self._most_of_one:
                    raise UnheldFull
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._account(dataset, size)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yields the tables under the lock."""
        with self._lock:
            yield self._db

    def speaks_of(self, dataset: DatasetId) -> bool:
        return dataset in self._bytes

    def datasets(self) -> list[DatasetId]:
        with self._lock:
            return list(self._bytes)

    def heads(self) -> dict[DatasetId, HeadStatement]:
        """Returns the newest head of each dataset."""
        with self._lock:
            ledger = Ledger(self._db)
            found = ((dataset, ledger.newest_head(dataset)) for dataset in ledger.datasets(HEAD))
            return {dataset: newest[0] for dataset, newest in found if newest is not None}

    def refs(self, datasets: Collection[DatasetId] | None = None) -> list[StatementRef]:
        """Lists statements on these datasets and against these keys; ``None``: all."""
        with self._lock:
            subjects = None if datasets is None else [dataset for dataset in datasets if dataset in self._bytes]
            found = kinds.refs(self._db, of_dataset=True, subjects=subjects)
            found += [(key, name) for key, _, name in kinds.accusing(self._db, datasets or ())]
        return [StatementRef(sid, dataset) for dataset, sid in found]

    def envelope(self, sid: Multihash) -> tuple[DatasetId, Topic, bytes] | None:
        with self._lock:
            dataset, found = kinds.subject_of(self._db, sid), kinds.find(self._db, sid)
        if dataset is None or found is None:
            return None
        return dataset, KINDS[found[0]].topic, found[1]

    def take(self, dataset: DatasetId) -> Sequence[tuple[Topic, bytes]]:
        """Removes and returns all statements on a dataset, versions of its authority first."""
        with self._lock:
            found: list[tuple[Topic, bytes]] = []
            for table in sorted(_SPOKEN, key=lambda each: AUTHORITY not in each.kinds):
                # Each version is judged by the one before it.
                order = "version" if AUTHORITY in table.kinds else table.id
                rows = table.sealed.rows(self._db, f"dataset = ? ORDER BY {order}", (dataset,))
                for row in rows:
                    values = dict(zip(table.sealed.columns, row, strict=True))
                    found.append((KINDS[values.get("type", table.kinds[0])].topic, bytes(values[table.body])))
            self._forget(dataset)
            return found

    def _tidy(self, dataset: DatasetId) -> int:
        """Deletes all heads but the newest, and logged statements that contradict nothing; returns the bytes left."""
        ledger = Ledger(self._db)
        newest = ledger.newest_head(dataset)
        if newest is not None:
            self._db.execute(
                "DELETE FROM trust_live WHERE dataset = ? AND type = ? AND sid != ?", (dataset, HEAD, newest[1].sid)
            )
        self._db.execute("DELETE FROM trust_ledger WHERE dataset = ? AND outcome != 'fork'", (dataset,))
        of_each = (
            f"SELECT COALESCE(SUM(LENGTH({each.body})), 0) FROM {each.name} WHERE dataset = ?1"  # noqa: S608
            for each in _SPOKEN
        )
        contradicting = "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM trust_ledger WHERE dataset = ?1"
        sizes = self._db.execute(" UNION ALL ".join((*of_each, contradicting)), (dataset,))
        return sum(size for (size,) in sizes)

    def _account(self, dataset: DatasetId, size: int) -> None:
        self._total += size - self._bytes.pop(dataset, 0)
        if size:
            self._bytes[dataset] = size
        while len(self._bytes) > self._most or self._total > self._most_bytes:
            self._forget(next(iter(self._bytes)))

    def _forget(self, dataset: DatasetId) -> None:
        self._total -= self._bytes.pop(dataset, 0)
        self._db.execute(
            "DELETE FROM trust_accused WHERE proof IN (SELECT id FROM trust_proofs WHERE dataset = ?)", (dataset,)
        )
        for table in ("trust_ledger", "trust_resolved", *(each.name for each in _SPOKEN)):
            self._db.execute(f"DELETE FROM {table} WHERE dataset = ?", (dataset,))  # noqa: S608


MAX_WAITING: Final = 512
"""Waiting envelopes at most, of up to 16 KiB each."""
MAX_OF_ONE: Final = 64
"""Waiting envelopes on one dataset: its authority versions may come in any order, and some heads with them."""


class EarlyStatements:
    """A bounded store of waiting statements. Evicts the oldest of the sender with the most."""

    def __init__(self) -> None:
        self._by_envelope: OrderedDict[bytes, tuple[DatasetId, PeerId]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, dataset: DatasetId, envelope: bytes, sender: PeerId) -> None:
        with self._lock:
            same = [raw for raw, (of, _) in self._by_envelope.items() if of == dataset]
            if envelope not in self._by_envelope and len(same) >= MAX_OF_ONE:
                del self._by_envelope[same[0]]
            self._by_envelope[envelope] = (dataset, sender)
            if len(self._by_envelope) > MAX_WAITING:
                heaviest, _ = Counter(of for _, of in self._by_envelope.values()).most_common(1)[0]
                del self._by_envelope[next(raw for raw, (_, of) in self._by_envelope.items() if of == heaviest)]

    def take(self, dataset: DatasetId) -> list[tuple[bytes, PeerId]]:
        """Removes and returns all waiting statements on a dataset, oldest first."""
        with self._lock:
            taken = [(raw, sender) for raw, (of, sender) in self._by_envelope.items() if of == dataset]
            for raw, _ in taken:
                del self._by_envelope[raw]
        return taken
