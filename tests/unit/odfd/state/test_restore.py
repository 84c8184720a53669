"""A backup that somebody made to write or read outside of it is refused before anything is copied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain import instant
from chain.errors import Invalid, Refused
from chain.instant import Instant
from chain.multihash import Multihash
from odfd.access.relations import Role
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.runtime.tasks import Report
from odfd.services.maintenance.backup import (
    DESCRIPTION,
    LISTING,
    SNAPSHOTS,
    BackupFolder,
    BackupSnapshot,
    SavedFile,
    hash_of,
    snapshots_in,
)
from odfd.services.maintenance.restore import restore
from odfd.store.access_tokens import TokenStore
from odfd.store.crash_recovery import OBJECTS
from odfd.store.directory import open_state_directory

NOW = instant.parse("2026-11-20T08:00:00Z")
SECRET = b"a file of this machine"


def crafted(folder: Path, files: list[str], objects: list[str]) -> Path:
    """A snapshot whose sums all hold; its places are written as they are, and lead to ``SECRET``."""
    snapshot = folder / SNAPSHOTS / "2026-11-20T080000Z"
    (folder / OBJECTS).mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (snapshot / LISTING).write_text("".join(f"{place} {len(SECRET)}\n" for place in objects))
    listed = (snapshot / LISTING).stat().st_size
    saved = [SavedFile(path=LISTING, size=listed, hash=hash_of(snapshot / LISTING))]
    saved += [SavedFile(path=place, size=len(SECRET), hash=str(Multihash.sha3_256(SECRET))) for place in files]
    described = BackupSnapshot(
        time="2026-11-20T08:00:00Z", node="n", version="1", files=tuple(saved), objects=len(objects), bytes=0
    )
    (snapshot / DESCRIPTION).write_bytes(msgspec.json.encode(described))
    return snapshot


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "objects"])
@pytest.mark.parametrize("way", ["up", "deep", "absolute"])
def test_a_backup_that_names_a_place_outside_of_itself_is_refused(tmp_path: Path, kind: str, way: str) -> None:
    """Objects are named by their hash, files by anything; neither is read nor written elsewhere."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    name = str(Multihash.sha3_256(SECRET))
    (outside / name).write_bytes(SECRET)
    up = f"../elsewhere/{name}" if kind == "objects" else f"../../../elsewhere/{name}"
    place = {
        "up": f"../{up}" if kind == "objects" else up,
        "deep": f"keys/../../{up}",
        "absolute": str(outside / name),
    }[way]
    lists: dict[str, Any] = {"files": [], "objects": [], kind: [place]}
    snapshot = crafted(tmp_path / "backup", **lists)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Invalid, match="outside of itself") as caught:
        restore(snapshot, tmp_path / "again", lambda _: [], Report())
    assert caught.value.rule == "backup-outside"
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written anywhere"


def test_what_is_restored_admits_no_token_binds_no_number_twice_and_is_looked_through(tmp_path: Path) -> None:
    """Tokens may have been revoked since, and pushes after the backup had numbers that chains may name."""
    with open_state_directory(tmp_path / "state") as home:
        store = TokenStore(home.database, lambda: NOW, os.urandom)
        token, _ = store.make("ann", Role.READER, "", Instant(NOW + 10**18))
        assert store.admit(token)
        source = Resource(id="source", type="Source", name="a", created_at=NOW, updated_at=NOW)
        with home.database.write() as connection:
            ResourceStore(connection).put(source, NOW)
        number = home.spool.add("source", b"pushed", 1, NOW, None).number
        home.keys.node_key()
        BackupFolder(tmp_path / "backup", "node").add(home, NOW, "1", 7, Report())
    (snapshot,) = snapshots_in(tmp_path / "backup")
    with pytest.raises(Invalid, match="a head is not here") as caught:
        restore(snapshot, tmp_path / "again", lambda _: ["a head is not here"], Report())
    assert caught.value.rule == "backup-damaged"
    assert not (tmp_path / "again").exists()
    told = restore(snapshot, tmp_path / "again", lambda _: [], Report())
    assert told.keys == 1, "the node's key signs nothing until peers were asked"
    with open_state_directory(tmp_path / "again") as home:
        with pytest.raises(Refused):
            TokenStore(home.database, lambda: NOW, os.urandom).admit(token)
        assert home.spool.add("source", b"pushed after", 1, NOW, None).number > number + 1000
