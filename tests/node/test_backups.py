"""A running node is backed up, and comes back from it: whole, checked, and signing nothing that it signed before."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.instant import Instant
from chain.store.objects import SMALL
from chain.wording import plural
from odfd.access.relations import Role
from odfd.cli.commands.node import backup_text
from odfd.cli.offline.restore import what_is_wrong
from odfd.control import wire
from odfd.runtime.tasks import Report
from odfd.services.maintenance import backup
from odfd.services.maintenance.backup import DESCRIPTION, FOLDERS, LAST, last_backup, listing, snapshots_in
from odfd.services.maintenance.restore import choose, restore
from odfd.store.access_tokens import TokenStore
from odfd.store.directory import DATABASE, open_state_directory
from worlds.manifests import ROOT
from worlds.node_world import Node, World


async def backed_up(node: Node, to: Path, keep: int = 7) -> wire.BackupResult:
    done: wire.BackupResult = await node.done(node.api.backups.backup(wire.BackupRequest(to=str(to), keep=keep)))
    return done


async def filled(world: World, node: Node, day: int = 1) -> bytes:
    """A dataset, and an object large enough to be a file of its own."""
    world.write("alice", f"{day}.csv", f"2024-01-0{day}T00:00:00Z,Graz,{day}")
    await node.apply(ROOT)
    await node.pull("cities")
    large = bytes([day]) * (SMALL + day)
    node.home.objects.add_bytes(large)
    return large


def restored(backup: Path, to: Path, **more: Any) -> Any:
    return restore(choose(backup, None), to, what_is_wrong, Report(), **more)


async def test_what_was_there_comes_back_and_keys_sign_nothing(world: World, tmp_path: Path) -> None:
    backup, target = tmp_path / "backup", tmp_path / "again"
    async with world.running("alice") as alice:
        large = await filled(world, alice)
        done = await backed_up(alice, backup)
        assert (done.objects, done.copied) == (1, 1)
        with alice.home.database.read() as connection:
            small = connection.execute("SELECT count(*) FROM small_objects").fetchone()[0]
        assert done.small == small > 0, "what is in the database is in the backup too, and counted"
        assert f"with {plural(small, 'small object')}, 1 large object copied" in backup_text(done)
        head, dataset = alice.home.chains.chain(alice.dataset("cities")).head(), alice.dataset("cities")
        node_key = alice.key
        world.write("alice", "9.csv", "2024-01-09T00:00:00Z,Graz,9")
        await alice.pull("cities")  # after the backup
    told = restored(backup, target)
    assert told.damaged == ()
    with open_state_directory(target) as home:
        assert home.chains.chain(dataset).head() == head
        assert str(home.keys.node_key().did) == node_key
        (name,) = (
            home.objects.names()
            if not head
            else [each for each in home.objects.names() if home.objects.size(each) > SMALL]
        )
        assert home.objects.read(name) == large
        assert len(home.keys.list_lost()) == told.keys == 2, "the node's key and the dataset's"
    assert not list(target.rglob("*.journal"))
    assert not list(backup.rglob("*.journal"))


async def test_only_what_is_new_is_copied_and_old_snapshots_go(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice:
        await filled(world, alice)
        first = await backed_up(alice, tmp_path / "b", keep=2)
        await filled(world, alice, 2)
        second = await backed_up(alice, tmp_path / "b", keep=2)
        third = await backed_up(alice, tmp_path / "b", keep=2)
        assert [each.copied for each in (first, second, third)] == [1, 1, 0]
        assert [each.dropped for each in (first, second, third)] == [0, 0, 1]
        assert len(snapshots_in(tmp_path / "b")) == 2
        last = last_backup(alice.home.directory)
        assert last is not None
        assert last.place == str(tmp_path / "b")


async def test_objects_that_no_snapshot_lists_go_with_the_last_that_did(world: World, tmp_path: Path) -> None:
    backup = tmp_path / "b"
    async with world.running("alice") as alice:
        await filled(world, alice)
        await backed_up(alice, backup, keep=1)
        (gone,) = [place for place, _ in listing(snapshots_in(backup)[-1])]
        shutil.rmtree(alice.home.directory / "objects" / gone[:2])
        await filled(world, alice, 2)
        await backed_up(alice, backup, keep=1)
    assert not (backup / "objects" / gone).exists()
    (kept,) = [place for place, _ in listing(snapshots_in(backup)[-1])]
    assert (backup / "objects" / kept).exists()


@pytest.mark.parametrize("what", ["database", "object", "key", "listing", "gone"])
async def test_one_flipped_bit_is_found(world: World, tmp_path: Path, what: str) -> None:
    backup, target = tmp_path / "backup", tmp_path / "again"
    async with world.running("alice") as alice:
        await filled(world, alice)
        await backed_up(alice, backup)
    (snapshot,) = snapshots_in(backup)
    victims = {
        "database": snapshot / DATABASE,
        "object": next((backup / "objects").rglob("f1620*")),
        "key": next((snapshot / "keys").glob("*.key")),
        "listing": snapshot / "objects.txt",
        "gone": next((backup / "objects").rglob("f1620*")),
    }
    victim = victims[what]
    data = bytearray(victim.read_bytes())
    victim.chmod(0o600)
    if what == "gone":
        victim.unlink()
    else:
        data[len(data) // 2] ^= 4
        victim.write_bytes(data)
    with pytest.raises(Invalid) as caught:
        restored(backup, target)
    assert caught.value.rule == "backup-damaged"
    assert caught.value.hint
    assert not target.exists()
    assert not [entry.name for entry in os.scandir(tmp_path) if "again" in entry.name], "nothing half-written"
    if what in ("object", "gone"):
        assert len(restored(backup, target, skip_damaged=True).damaged) == 1


async def test_a_backup_that_was_cut_off_is_none(world: World, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with world.running("alice") as alice:
        await filled(world, alice)
        await backed_up(alice, backup)
        (whole,) = snapshots_in(backup)
        cut = backup / "snapshots" / ".2030-01-01T000000Z.partial"
        shutil.copytree(whole, cut)
        (cut / DESCRIPTION).unlink()
    assert choose(backup, None) == whole
    with pytest.raises(NotFound, match="no snapshot 2030"):
        choose(backup, "2030-01-01T000000Z")
    with pytest.raises(NotFound, match="holds no backup"):
        choose(tmp_path, None)


async def test_places_that_hold_something_else_are_refused(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "letters.txt").write_text("dear")
        with pytest.raises(Invalid, match="not empty"):
            await backed_up(alice, tmp_path / "full")
        await backed_up(alice, tmp_path / "hers")
        with pytest.raises(Invalid, match="another node"):
            await backed_up(bob, tmp_path / "hers")
        with pytest.raises(Invalid, match="inside the state directory"):
            await backed_up(alice, alice.home.directory / "backup")
        with pytest.raises(Invalid, match="not empty"):
            restored(tmp_path / "hers", tmp_path / "full")
        (tmp_path / "file").write_text("")
        with pytest.raises(Environment, match="cannot write the backup"):
            await backed_up(alice, tmp_path / "file" / "below")


async def test_others_read_no_backup(world: World, tmp_path: Path) -> None:
    """It holds keys."""
    async with world.running("alice") as alice:
        await filled(world, alice)
        await backed_up(alice, tmp_path / "backup")
    for path in [tmp_path / "backup", *(tmp_path / "backup").rglob("*")]:
        assert not path.stat().st_mode & 0o077, path


async def test_every_folder_of_the_state_is_kept_or_made_anew(world: World) -> None:
    """One that comes to be must be thought of."""
    made_anew = {
        "cache",
        "engine",
        "folds",
        "partial",
        "partial-evidence",
        "projections",
        "peers",
        "readers",
        "segments",
        "staged",
        "staging",
    }
    async with world.running("alice") as alice:
        await filled(world, alice)
        there = {entry.name for entry in os.scandir(alice.home.directory) if entry.is_dir()}
    assert not there - made_anew - {*FOLDERS, "objects", "uploads"}
    assert LAST not in there


def test_a_full_disk_is_told_apart_from_a_forbidden_one(tmp_path: Path) -> None:
    for number, word in ((errno.ENOSPC, "free space"), (errno.EACCES, "must be allowed")):
        with pytest.raises(Environment) as refused, backup._writing(tmp_path):
            raise OSError(number, os.strerror(number))
        assert refused.value.hint is not None
        assert word in refused.value.hint


async def test_a_restored_node_has_no_tokens(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-02: a revoked token, and a restored backup from before the revocation.

    Defence: tokens are not restored.

    Who restores a backup does not bring back a token that was revoked after it.
    """
    async with world.running("alice") as alice:
        await filled(world, alice)
        token, grant = alice.parts.tokens.make("id", Role.OWNER, "", Instant(2**62))
        await backed_up(alice, tmp_path / "backup")
        alice.parts.tokens.revoke(grant.id)
    restored(tmp_path / "backup", tmp_path / "again")
    with open_state_directory(tmp_path / "again") as home:
        tokens = TokenStore(home.database, lambda: Instant(0), bytes)
        assert not tokens.list()
        with pytest.raises(Refused):
            tokens.admit(token)
