"""Creates the tables of declared resources, step by step; steps are added and never changed."""

from __future__ import annotations

from typing import Final

STEP: Final = """
    CREATE TABLE res_events (
        rv INTEGER PRIMARY KEY AUTOINCREMENT,
        at INTEGER NOT NULL,
        op TEXT NOT NULL,
        id TEXT NOT NULL,
        type TEXT NOT NULL,
        body BLOB NOT NULL,
        seal BLOB
    ) STRICT;
    CREATE TABLE res_current (
        id TEXT NOT NULL,
        type TEXT NOT NULL,
        key TEXT NOT NULL,
        did TEXT,
        rv INTEGER NOT NULL,
        body BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX res_current_name ON res_current (type, key);
    CREATE UNIQUE INDEX res_current_did ON res_current (did) WHERE did IS NOT NULL;
    CREATE TABLE res_labels (
        type TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        id TEXT NOT NULL,
        PRIMARY KEY (type, key, value, id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX res_labels_id ON res_labels (id);
    CREATE TABLE res_touched (kind TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (kind, key)) STRICT, WITHOUT ROWID;
    CREATE TRIGGER res_came AFTER INSERT ON resources WHEN NEW.kind IN ('dataset', 'flow') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (NEW.kind, NEW.key);
    END;
    CREATE TRIGGER res_went AFTER DELETE ON resources WHEN OLD.kind IN ('dataset', 'flow') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (OLD.kind, OLD.key);
    END;
    INSERT INTO res_touched SELECT kind, key FROM resources WHERE kind IN ('dataset', 'flow');
    CREATE TABLE res_log (epoch TEXT NOT NULL) STRICT;
    INSERT INTO res_log SELECT lower(hex(randomblob(4)));
"""
"""A step of the tables of ``odfd.resources.store``."""
INTENTS_STEP: Final = """
    -- Wishes that are resources of their own types.
    CREATE TRIGGER res_wish_came AFTER INSERT ON resources
    WHEN NEW.kind IN ('mirror', 'network', 'blocked-peer', 'validator') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (NEW.kind, NEW.key);
    END;
    CREATE TRIGGER res_wish_went AFTER DELETE ON resources
    WHEN OLD.kind IN ('mirror', 'network', 'blocked-peer', 'validator') BEGIN
        INSERT OR IGNORE INTO res_touched VALUES (OLD.kind, OLD.key);
    END;
    INSERT INTO res_touched SELECT kind, key FROM resources
        WHERE kind IN ('mirror', 'network', 'blocked-peer', 'validator');
"""
"""A later one."""
