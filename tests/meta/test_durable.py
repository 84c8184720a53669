"""One way to the disk: nothing but ``chain.store.durable`` syncs, and files get names through it, or may be lost."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from worlds.source_tree import called, nodes

TREE: Final = Path(__file__).parents[2]
ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd", "client")
SEAM: Final = "chain.store.durable"
ALLOWED: Final = {
    "client.odfd_client.proofs": "fetched again",
    "chain.store.database": "SQLite syncs by itself, as this module tells it to",
    "chain.store.objects": "synced apart, with a step between",
    "chain.store.layout": "synced with its whole file system, before the head",
    "engines.identity": "a cache",
    "engines.image.build": "a cache",
    "engines.image.installed": "unpacked again if it is not whole",
    "engines.image.oci": "built again, and unpacked again if it is not whole",
    "engines.provision.archive": "a cache",
    "engines.query.reader": "the folder of one query",
    "engines.staging": "the folder of one request",
    "engines.spark.ingest.range_tasks": "a part that one request reads",
    "engines.spark.ingest.foreign.sqlite_file": "a file of others, read",
    "odfd.cli.new_file": "syncs what is private; a person looks at the rest",
    "odfd.ingest.clients.databases": "a file of others, read",
    "odfd.ingest.slices": "a cache",
    "odfd.ingest.raw_replay": "the folder of one replay",
    "odfd.ingest.segments": "a cache",
    "odfd.store.spool": "synced for all pushes at once; a copy of a row",
    "odfd.network.card_index": "in memory",
    "odfd.network.peer_book_file": "peers are met again",
    "odfd.network.unheld_statements": "in memory",
    "odfd.published.packs": "synced with the folder's head",
    "odfd.published.signed": "synced with the folder's head",
    "odfd.queries.folds": "a cache",
    "odfd.repositories.sftp": "the disk of a server",
    "odfd.cli.offline.sampling.inference": "a file of others, read",
    "odfd.services.maintenance.upgrade": "a copy to try on",
    "odfd.transform.driver": "a draft of one transaction",
    "odfd.transform.execute": "a draft of one transaction",
    "odfd.store.ledger.live_set": "in memory",
    "odfd.services.volumes.cache": "a cache",
}  # fmt: skip


def _is_one(node: ast.AST) -> bool:
    """Whether it syncs, names a file or opens a database; ``text.replace(old, new)`` has two arguments."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
    match called(node):
        case "connect":
            return owner == "sqlite3"
        case "link":
            return owner == "os"
        case "fsync" | "fdatasync" | "syncfs" | "hardlink_to":
            return True
        case "rename" | "replace":
            return owner == "os" or (owner != "durable" and len(node.args) == 1 and not node.keywords)
    return False


def test_what_must_last_goes_through_one_module() -> None:
    found = {
        ".".join(path.relative_to(TREE).with_suffix("").parts)
        for root in ROOTS
        for path in (TREE / root).rglob("*.py")
        if any(map(_is_one, nodes(path)))
    }
    assert SEAM in found
    beside = sorted(found - ALLOWED.keys() - {SEAM})
    assert not beside, f"these sync or name files by themselves; use {SEAM}, or say why the file may be lost: {beside}"
    assert sorted(ALLOWED.keys() - found) == [], "these do so no more"
