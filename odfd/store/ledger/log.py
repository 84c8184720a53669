"""Implements the trust ledger: every admitted statement and every decision, append-only and hash-linked.

Beside the log there is the live set (newest head and attestations by signer), which is a view and can be rebuilt from
the log (``odfd.store.ledger.live_set``). Entries that nobody needs any more leave the log, and a gap in their place
keeps the links (``odfd.store.ledger.retention``). It also stores the frontier of each chain's tree. The ledger handles
SQL and bytes; ``odfd.trust.judgement`` judges. Calls are synchronous, on the connection they are given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.authority import Rights
from chain.statements.envelope import Signed, unseal
from chain.statements.proof import Proof
from chain.statements.statement import ATTESTATION, AUTHORITY, HEAD, Attestation, Authority, HeadStatement
from chain.statements.tree import Frontier
from odfd.store.ledger import hash_links, tables
from odfd.store.ledger.kinds import PROOF, SAID
from odfd.store.ledger.subtree_roots import Subtrees
from odfd.store.ledger.tables import CHAINS, LIVE

_CONCLUDED: Final = (
    *("trust_chains", "trust_runs", "trust_replays", "trust_again", "trust_wanted", "trust_met"),
    *("trust_rechecked", "trust_subtrees"),
)
_ANY_SAID: Final = " UNION ".join(f"SELECT dataset FROM {table}" for table in SAID)  # noqa: S608
_IS_SAID: Final = f"SELECT EXISTS (SELECT 1 FROM ({_ANY_SAID.replace(' UNION ', ' UNION ALL ')}) WHERE dataset = ?)"  # noqa: S608
_NOT_HELD: Final = f"SELECT dataset FROM ({_ANY_SAID}) WHERE dataset NOT IN (SELECT dataset FROM trust_chains)"  # noqa: S608
ROOM: Final = "trust"
STEPS: Final = (
    """
    CREATE TABLE trust_ledger (
        seq INTEGER PRIMARY KEY,
        at INTEGER NOT NULL,
        dataset BLOB NOT NULL,
        signer BLOB NOT NULL,
        type TEXT NOT NULL,
        sid BLOB NOT NULL,
        body BLOB NOT NULL,
        from_peer TEXT NOT NULL,
        outcome TEXT NOT NULL,
        prev_hash BLOB NOT NULL,
        hash BLOB NOT NULL
    ) STRICT;
    CREATE INDEX trust_ledger_sid ON trust_ledger (sid);
    CREATE TABLE trust_live (
        dataset BLOB NOT NULL,
        type TEXT NOT NULL,
        signer BLOB NOT NULL,
        sid BLOB NOT NULL UNIQUE,
        envelope BLOB NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY (dataset, type, signer)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE trust_chains (
        dataset BLOB PRIMARY KEY,
        frontier BLOB NOT NULL,
        data INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE trust_replays (
        dataset BLOB PRIMARY KEY,
        sequence INTEGER NOT NULL,
        block BLOB NOT NULL,
        checkpoint BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE trust_runs (
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        block BLOB NOT NULL,
        at INTEGER NOT NULL,
        verdict TEXT NOT NULL,
        reason TEXT NOT NULL,
        runs INTEGER NOT NULL,
        engine BLOB NOT NULL,
        actual BLOB,
        evidence BLOB,
        PRIMARY KEY (dataset, sequence)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE trust_runs ADD COLUMN bundle BLOB;
    CREATE TABLE trust_proofs (
        id BLOB PRIMARY KEY,
        dataset BLOB NOT NULL,
        epoch INTEGER NOT NULL,
        kind TEXT NOT NULL,
        place INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX trust_proofs_dataset ON trust_proofs (dataset, kind, epoch, place);
    CREATE TABLE trust_accused (
        key BLOB NOT NULL,
        kind TEXT NOT NULL,
        proof BLOB NOT NULL,
        PRIMARY KEY (key, kind, proof)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE trust_chains ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE trust_authorities (
        dataset BLOB NOT NULL,
        version INTEGER NOT NULL,
        sid BLOB NOT NULL UNIQUE,
        signers BLOB NOT NULL,
        payload BLOB NOT NULL,
        envelope BLOB NOT NULL,
        PRIMARY KEY (dataset, version)
    ) STRICT, WITHOUT ROWID;
    """,
    "ALTER TABLE trust_runs ADD COLUMN first INTEGER;",
    """
    CREATE TABLE trust_witnessed (
        origin TEXT PRIMARY KEY,
        size INTEGER NOT NULL,
        root BLOB NOT NULL,
        at INTEGER NOT NULL,
        head BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE trust_cosignatures (
        origin TEXT NOT NULL,
        witness BLOB NOT NULL,
        dataset BLOB NOT NULL,
        size INTEGER NOT NULL,
        at INTEGER NOT NULL,
        id BLOB NOT NULL UNIQUE,
        body BLOB NOT NULL,
        PRIMARY KEY (origin, witness)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX trust_cosignatures_dataset ON trust_cosignatures (dataset);
    """,
    "\n".join(each.step for each in tables.SEALED_LATE),
    *tables.LATER,
)
"""Migrations of the ledger's tables, in order; new ones are added at the end and never changed."""


class CheckedChain(msgspec.Struct, frozen=True):
    """The state of the checks of a chain on this node."""

    frontier: Frontier = Frontier()
    """The tree over its checked blocks."""
    data: int = 0
    """Number of blocks from the first whose objects are here and were verified."""
    epoch: int = 0
    """The epoch to whose history these blocks belong."""


class Ledger:
    """Reads and writes the trust tables over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def record(self, signed: Signed, signer: KeyDid, outcome: str, peer: str, now: Instant, *, live: bool) -> None:
        """Appends a statement to the log and, if it is the newest of its kind, puts it into the live set."""
        predicate = statement.decode(signed.payload)
        kind = HEAD if isinstance(predicate, HeadStatement) else ATTESTATION
        self.append((now, predicate.dataset, signer, kind, signed.sid, signed.envelope, peer, outcome))
        if live:
            LIVE.put(self._db, predicate.dataset, kind, signer, signed.sid, signed.envelope, signed.payload)

    def record_proof(self, proof: Proof, peer: str, now: Instant) -> None:
        """Appends a proof to the log; ``odfd.store.ledger.proofs`` keeps it."""
        self.append((now, proof.dataset, proof.accused[0], PROOF, proof.id, proof.raw, peer, proof.kind))

    def record_authority(self, authority: Authority, signed: Signed, outcome: str, peer: str, now: Instant) -> None:
        """Appends a version of an authority to the log; ``odfd.store.ledger.authorities`` keeps it."""
        row = (now, authority.dataset, signed.signers[0], AUTHORITY, signed.sid, signed.envelope, peer, outcome)
        self.append(row)

    def close_epochs(self, rights: Rights) -> None:
        """Removes heads of closed epochs from the live set,
        except heads within the blocks that were kept of the epoch."""
        for signer, payload, _ in list(self._live(rights.dataset, HEAD)):
            head = statement.decode(payload)
            opened = rights.opened(head.epoch + 1)
            beyond = opened is None or head.size > opened.base.size
            if head.epoch < rights.epoch and beyond:
                self._db.execute(
                    "DELETE FROM trust_live WHERE dataset = ? AND type = ? AND signer = ?",
                    (rights.dataset, HEAD, signer),
                )

    def follow(self, dataset: DatasetId, signed: Signed, now: Instant) -> None:
        """Makes this head the only known one of the dataset, because a person chose its history."""
        self._db.execute("DELETE FROM trust_live WHERE dataset = ? AND type = ?", (dataset, HEAD))
        self.record(signed, signed.signers[0], "followed", "", now, live=True)

    def drop_heads_under(self, dataset: DatasetId, version: int) -> None:
        """Removes the heads signed under this version of the authority, or a later one, from the live set."""
        for signer, payload, _ in list(self._live(dataset, HEAD)):
            head = statement.decode(payload)
            if isinstance(head, HeadStatement) and head.authority >= version:
                self._db.execute(
                    "DELETE FROM trust_live WHERE dataset = ? AND type = ? AND signer = ?", (dataset, HEAD, signer)
                )

    def outcomes(self, dataset: DatasetId, outcome: str) -> frozenset[Multihash]:
        """Returns the ids of the statements on a dataset that were recorded with this outcome."""
        rows = self._db.execute("SELECT sid FROM trust_ledger WHERE dataset = ? AND outcome = ?", (dataset, outcome))
        return frozenset(Multihash(row[0]) for row in rows)

    def contradictions(self, dataset: DatasetId, signer: KeyDid) -> list[HeadStatement]:
        """Lists recorded heads of a signer that contradict others; one of each epoch."""
        rows = self._db.execute(
            "SELECT body FROM trust_ledger WHERE dataset = ? AND type = ? AND signer = ? AND outcome = 'fork'",
            (dataset, HEAD, signer),
        )
        predicates = (statement.decode(unseal(body, HeadStatement.MAX_ENVELOPE).payload) for (body,) in rows)
        return [head for head in predicates if isinstance(head, HeadStatement)]

    def decide(self, dataset: DatasetId, decision: bytes, now: Instant) -> None:
        """Appends a decision of this node; ``decision`` is JSON that names the policy's hash and the sids it rests
        on."""
        self.append((now, dataset, b"", "decision", Multihash.sha3_256(decision), decision, "", "decided"))

    def decide_on(self, decision: bytes, now: Instant) -> None:
        """Appends a decision that concerns no dataset, such as whose verdicts count."""
        self.append((now, b"", b"", "decision", Multihash.sha3_256(decision), decision, "", "decided"))

    def append(self, row: tuple[int, bytes, bytes, str, bytes, bytes, str, str]) -> int:
        """Appends an entry: time, dataset, signer, type, sid, body, peer, outcome; returns its number."""
        last = self._db.execute("SELECT hash FROM trust_ledger ORDER BY seq DESC LIMIT 1").fetchone()
        previous = last[0] if last else hash_links.GENESIS
        made = self._db.execute(
            "INSERT INTO trust_ledger (at, dataset, signer, type, sid, body, from_peer, outcome, prev_hash, hash)"
            " VALUES (?,?,?,?,?,?,?,?,?,?)",
            (*row, previous, hash_links.link(previous, row)),
        )
        return made.lastrowid or 0

    def check(self, last: int | None = None) -> int:
        """Checks the links of the ``last`` entries, or of all; returns their number.
        Raises Environment at a broken link."""
        first = self._db.execute(
            "SELECT seq FROM trust_ledger ORDER BY seq DESC LIMIT 1 OFFSET ?", (last if last is not None else -1,)
        ).fetchone()
        is_part = first is not None and last is not None
        found = hash_links.entries(self._db, "seq >= ?", first if is_part else (0,))
        return sum(1 for _ in hash_links.check_links(found, None if is_part else hash_links.GENESIS))

    def has(self, sid: Multihash) -> bool:
        return self._db.execute("SELECT 1 FROM trust_ledger WHERE sid = ? LIMIT 1", (sid,)).fetchone() is not None

    def is_settled(self, sid: Multihash) -> bool:
        """Whether the statement is live or recorded as a fork; all others are judged again when they come again."""
        row = self._db.execute(
            "SELECT EXISTS (SELECT 1 FROM trust_live WHERE sid = ?1)"
            " OR EXISTS (SELECT 1 FROM trust_ledger WHERE sid = ?1 AND outcome = 'fork')",
            (sid,),
        ).fetchone()
        return bool(row[0])

    def newest_head(self, dataset: DatasetId) -> tuple[HeadStatement, Signed] | None:
        """Returns the newest head known, whether or not its blocks are here;
        heads of several signers are compared by order."""
        return max(self._heads(dataset), key=lambda item: item[0].order, default=None)

    def heads(self, dataset: DatasetId) -> list[HeadStatement]:
        """Lists the newest head of each signer."""
        return [head for head, _ in self._heads(dataset)]

    def _heads(self, dataset: DatasetId) -> Iterator[tuple[HeadStatement, Signed]]:
        for signer, payload, envelope in self._live(dataset, HEAD):
            predicate = statement.decode(payload)
            if isinstance(predicate, HeadStatement):
                yield predicate, Signed(payload, (KeyDid(signer),), envelope)

    def statement(self, dataset: DatasetId, kind: str, signer: KeyDid) -> Signed | None:
        """Returns the live statement of one signer."""
        row = LIVE.one(self._db, "dataset = ? AND type = ? AND signer = ?", (dataset, kind, signer))
        return None if row is None else Signed(row[5], (signer,), row[4])

    def attestation(self, dataset: DatasetId, validator: KeyDid) -> Attestation | None:
        """Returns a validator's live attestation, by an index."""
        found = self.statement(dataset, ATTESTATION, validator)
        predicate = None if found is None else statement.decode(found.payload)
        return predicate if isinstance(predicate, Attestation) else None

    def attestations(self, dataset: DatasetId) -> dict[KeyDid, Attestation]:
        """Returns the live attestation of each validator on this dataset."""
        live = {}
        for signer, payload, _ in self._live(dataset, ATTESTATION):
            predicate = statement.decode(payload)
            if isinstance(predicate, Attestation):
                live[KeyDid(signer)] = predicate
        return live

    def _live(self, dataset: DatasetId, kind: str) -> Iterator[tuple[bytes, bytes, bytes]]:
        for _, _, signer, _, envelope, payload in LIVE.rows(self._db, "dataset = ? AND type = ?", (dataset, kind)):
            yield signer, payload, envelope

    def live(self, dataset: DatasetId) -> list[Multihash]:
        """Lists the ids of the live heads and attestations on a dataset."""
        rows = self._db.execute("SELECT sid FROM trust_live WHERE dataset = ?", (dataset,))
        return [Multihash(row[0]) for row in rows]

    def datasets(self, kind: str) -> list[DatasetId]:
        """Lists datasets of which a live statement of this kind is known, held or not."""
        rows = self._db.execute("SELECT DISTINCT dataset FROM trust_live WHERE type = ?", (kind,))
        return [DatasetId(row[0]) for row in rows]

    def signers(self, dataset: DatasetId, kind: str) -> list[KeyDid]:
        """Lists the signers of live statements of this kind."""
        rows = self._db.execute("SELECT signer FROM trust_live WHERE dataset = ? AND type = ?", (dataset, kind))
        return [KeyDid(row[0]) for row in rows]

    def speaks_of(self, dataset: DatasetId) -> bool:
        """Whether any live statement or authority of a dataset is known."""
        return bool(self._db.execute(_IS_SAID, (dataset,)).fetchone()[0])

    def not_held(self) -> list[DatasetId]:
        """Lists datasets with live statements of which no block is here."""
        return [DatasetId(row[0]) for row in self._db.execute(_NOT_HELD)]

    def drop_statements(self, dataset: DatasetId) -> None:
        """Deletes the live statements on a dataset that is neither held nor wanted; the log keeps its entries."""
        for table in SAID:
            self._db.execute(f"DELETE FROM {table} WHERE dataset = ?", (dataset,))  # noqa: S608

    def chain(self, dataset: DatasetId) -> CheckedChain:
        """Returns the state of the checks of the held blocks."""
        row = CHAINS.one(self._db, "dataset = ?", (dataset,))
        return CheckedChain(Frontier.from_bytes(row[1]), row[2], row[3]) if row else CheckedChain()

    def sizes(self) -> dict[DatasetId, int]:
        """Returns the size of each chain's tree; those with a damaged row are omitted."""
        rows = CHAINS.whole(self._db)
        return {DatasetId(dataset): Frontier.from_bytes(frontier).size for dataset, frontier, *_ in rows}

    def grow(self, dataset: DatasetId, before: Frontier, checked: CheckedChain, groups: Sequence[bytes]) -> None:
        """Records that blocks were added; ``groups``: the subtrees that became complete since the tree was
        ``before``."""
        self.keep_chain(dataset, checked)
        Subtrees(self._db).keep(dataset, before, groups)

    def keep_chain(self, dataset: DatasetId, checked: CheckedChain) -> None:
        CHAINS.put(self._db, dataset, checked.frontier.to_bytes(), checked.data, checked.epoch)

    def forget(self, dataset: DatasetId) -> None:
        """Deletes conclusions about a chain that is no longer here; statements of others stay in the log."""
        for table in _CONCLUDED:
            self._db.execute(f"DELETE FROM {table} WHERE dataset = ?", (dataset,))  # noqa: S608
