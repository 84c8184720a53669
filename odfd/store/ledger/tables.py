"""Defines the ledger's sealed tables, and the migrations after its first ones."""

from __future__ import annotations

from typing import Final

from chain.store.seals import Sealed

_REPAIR: Final = "odfctl pull REF --repair makes it again"
_RESTORE: Final = "restore the database from a backup: no other record has it"
LIVE: Final = Sealed("trust_live", ("dataset", "type", "signer", "sid", "envelope", "payload"), _REPAIR)
CHAINS: Final = Sealed("trust_chains", ("dataset", "frontier", "data", "epoch"), _REPAIR)
REPLAYS: Final = Sealed("trust_replays", ("dataset", "sequence", "block", "checkpoint"), _REPAIR)
RUNS: Final = Sealed(
    "trust_runs",
    (
        *("dataset", "sequence", "block", "at", "verdict", "reason"),
        *("runs", "engine", "actual", "evidence", "bundle", "first"),
    ),
    _REPAIR,
)
AUTHORITIES: Final = Sealed(
    "trust_authorities", ("dataset", "version", "sid", "signers", "payload", "envelope"), _RESTORE
)
WITNESSED: Final = Sealed("trust_witnessed", ("origin", "size", "root", "at", "head"), _RESTORE)
COSIGNATURES: Final = Sealed(
    "trust_cosignatures", ("dataset", "origin", "witness", "size", "at", "id", "body"), _REPAIR
)
PROOFS: Final = Sealed("trust_proofs", ("dataset", "id", "epoch", "kind", "place", "body"), _RESTORE)
ACCUSED: Final = Sealed("trust_accused", ("key", "kind", "proof"), _RESTORE)
RESOLVED: Final = Sealed("trust_resolved", ("dataset", "matter", "number", "place", "name", "at"), _RESTORE)
STRIKES: Final = Sealed("trust_strikes", ("grp", "dataset", "block", "since", "pardoned"), _RESTORE)
SUSPENDED: Final = Sealed("trust_suspended", ("grp", "at", "reason"), _RESTORE)
PARDONS: Final = Sealed("trust_pardons", ("key", "dataset", "epoch", "at"), _RESTORE)
AGAIN: Final = Sealed("trust_again", ("dataset", "sequence", "block", "at"), _REPAIR)
WANTED: Final = Sealed("trust_wanted", ("dataset", "size", "since"), _REPAIR)
MET: Final = Sealed("trust_met", ("dataset", "rung", "at"), _RESTORE)
OBSERVED: Final = Sealed(
    "trust_observed", ("dataset", "observer", "block", "sequence", "at", "result", "sid", "heard", "envelope"), _REPAIR
)
RULES: Final = Sealed("trust_rules", ("key", "version", "sid", "payload", "envelope"), _RESTORE)
CARDS: Final = Sealed(
    "trust_cards", ("dataset", "author", "authority", "issued", "withdrawn", "sid", "envelope"), _REPAIR
)
NODE_CARDS: Final = Sealed(
    "trust_node_cards",
    ("node", "issued", "withdrawn", "sid", "envelope"),
    "start the daemon again: it signs the card again",
)
RECHECKED: Final = Sealed(
    "trust_rechecked",
    (
        *("bundle", "dataset", "sequence", "block", "at", "grp", "result", "reason"),
        *("verdict", "runs", "engine", "actual", "evidence"),
    ),
    _REPAIR,
)
SEALED_LATE: Final = (LIVE, CHAINS, REPLAYS, RUNS, AUTHORITIES, WITNESSED, COSIGNATURES, PROOFS, ACCUSED)
"""Tables that got their seals by a later migration."""
REMADE: Final = tuple(
    each
    for each in list(globals().values())
    if isinstance(each, Sealed) and each.hint == _REPAIR and each is not CHAINS
)
"""Tables whose damaged rows may be deleted, because they are made or received again."""

LATER: Final = (
    """
    CREATE TABLE trust_resolved (
        dataset BLOB NOT NULL,
        matter TEXT NOT NULL,
        number INTEGER NOT NULL,
        place INTEGER NOT NULL,
        name BLOB NOT NULL,
        at INTEGER NOT NULL,
        seal BLOB,
        PRIMARY KEY (dataset, matter, number)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX trust_accused_proof ON trust_accused (proof);
    """,
    """
    CREATE TABLE trust_strikes (
        grp TEXT NOT NULL,
        dataset BLOB NOT NULL,
        block INTEGER NOT NULL,
        since INTEGER NOT NULL,
        pardoned INTEGER NOT NULL,
        seal BLOB,
        PRIMARY KEY (grp, dataset, block)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE trust_suspended (
        grp TEXT PRIMARY KEY,
        at INTEGER NOT NULL,
        reason TEXT NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE trust_pardons (
        key BLOB NOT NULL,
        dataset BLOB NOT NULL,
        epoch INTEGER NOT NULL,
        at INTEGER NOT NULL,
        seal BLOB,
        PRIMARY KEY (key, dataset, epoch)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE trust_again (
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        block BLOB NOT NULL,
        at INTEGER NOT NULL,
        seal BLOB,
        PRIMARY KEY (dataset, sequence)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE trust_wanted (
        dataset BLOB PRIMARY KEY,
        size INTEGER NOT NULL,
        since INTEGER NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE INDEX trust_ledger_dataset ON trust_ledger (dataset, type);
    CREATE TABLE trust_met (
        dataset BLOB PRIMARY KEY,
        rung TEXT NOT NULL,
        at INTEGER NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE trust_observed (
        dataset BLOB NOT NULL,
        observer BLOB NOT NULL,
        block BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        at INTEGER NOT NULL,
        result TEXT NOT NULL,
        sid BLOB NOT NULL UNIQUE,
        heard INTEGER NOT NULL,
        envelope BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (dataset, observer, block)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX trust_observed_block ON trust_observed (dataset, sequence);
    CREATE INDEX trust_observed_heard ON trust_observed (dataset, heard);
    """,
    """
    CREATE TABLE trust_rules (
        key BLOB NOT NULL,
        version INTEGER NOT NULL,
        sid BLOB NOT NULL UNIQUE,
        payload BLOB NOT NULL,
        envelope BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (key, version, sid)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE trust_rechecked (
        bundle BLOB PRIMARY KEY,
        dataset BLOB NOT NULL,
        sequence INTEGER NOT NULL,
        block BLOB NOT NULL,
        at INTEGER NOT NULL,
        grp TEXT NOT NULL,
        result TEXT NOT NULL,
        reason TEXT NOT NULL,
        verdict TEXT NOT NULL,
        runs INTEGER NOT NULL,
        engine BLOB NOT NULL,
        actual BLOB,
        evidence BLOB,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX trust_rechecked_dataset ON trust_rechecked (dataset);
    """,
    """
    CREATE TABLE trust_subtrees (
        dataset BLOB NOT NULL,
        place INTEGER NOT NULL,
        root BLOB NOT NULL,
        PRIMARY KEY (dataset, place)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE trust_cards (
        dataset BLOB PRIMARY KEY,
        author BLOB NOT NULL,
        authority INTEGER NOT NULL,
        issued INTEGER NOT NULL,
        withdrawn INTEGER NOT NULL,
        sid BLOB NOT NULL UNIQUE,
        envelope BLOB NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX trust_cards_withdrawn ON trust_cards (dataset) WHERE withdrawn;
    """,
    """
    CREATE TABLE trust_node_cards (
        node BLOB PRIMARY KEY,
        issued INTEGER NOT NULL,
        withdrawn INTEGER NOT NULL,
        sid BLOB NOT NULL UNIQUE,
        envelope BLOB NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    """,
)
"""Migrations after the ledger's first ones; new ones are added at the end and never changed."""
