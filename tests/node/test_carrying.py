"""Datasets in and out as folders, and whole nodes as backups: what is cut off, can be followed, comes back."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chain.errors import Conflict, Environment, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.layout import DirectoryChain, DirectoryObjects
from chain.store.objects import SMALL
from chain.wording import plural
from config import model
from odfd.access.relations import Role
from odfd.cli.commands.node import backup_text
from odfd.cli.offline.restore import what_is_wrong
from odfd.control import wire
from odfd.runtime.tasks import Report
from odfd.services.maintenance import backup
from odfd.services.maintenance.backup import DESCRIPTION, FOLDERS, LAST, last_backup, listing, snapshots_in
from odfd.services.maintenance.restore import choose, restore
from odfd.store.access_tokens import TokenStore
from odfd.store.damage import Damage, DamagedBlock
from odfd.store.directory import DATABASE, open_state_directory
from odfd.store.ledger.log import Ledger
from odfd.transfer.folders import import_dataset
from odfd.transfer.odf018 import FormerChain, compare
from worlds.depth import share
from worlds.former import small
from worlds.manifests import ROOT
from worlds.node_world import Node, World, run_apart

# Datasets in and out as folders: names, what is cut off, what is there already.


GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"


async def brought(node: Node, name: str, as_name: str | None = None) -> Any:
    request = wire.ImportRequest(source=str(GOLDEN / name), as_name=as_name)
    return await node.done(node.api.flow.import_(request))


async def test_in_and_out_again(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice:
        assert (await brought(alice, "flights", "f")).ref == "f"
        view = await alice.dataset_view("f")
        assert (view.state, view.rely_on.fact) == ("unsigned", "data")
        out = tmp_path / "out"
        await alice.done(alice.api.flow.export("f", wire.ExportRequest(to=str(out))))
        for folder in ("blocks", "data"):
            ours, theirs = (
                {file.name: file.read_bytes() for file in (place / folder).iterdir()}
                for place in (out, GOLDEN / "flights")
            )
            assert ours == theirs
        assert (await brought(alice, "flights")).blocks == 0


async def test_a_dataset_of_odf_0_18_becomes_one_of_this_node(world: World, tmp_path: Path) -> None:
    """Converted, compared, verified; exported again, the former chain is still in it."""
    former = small(tmp_path / "old")
    async with world.running("alice") as alice:
        request = wire.ImportRequest(source=str(former.folder), as_name="readings")
        done = await alice.done(alice.api.flow.import_(request))
        assert (done.ref, done.blocks, done.objects) == ("readings", 7, 2)
        assert done.compared == (
            "4 blocks of ODF 0.18 and 5 rows say the same; the former digest of rows is equal for 2 slices"
        )
        dataset = alice.home.resolve("readings").id
        assert alice.home.keys.has_dataset_key(dataset)
        assert alice.home.keys.unborn() == []
        await alice.done(alice.api.flow.export("readings", wire.ExportRequest(to=str(tmp_path / "out"))))
        out = tmp_path / "out"
        assert compare(DirectoryChain(out), DirectoryObjects(out)).head == former.head


async def test_nothing_is_kept_of_one_that_does_not_hold(world: World, tmp_path: Path) -> None:
    former = small(tmp_path / "old")
    (former.folder / "data" / FormerChain(former.folder).names[2]).unlink()
    async with world.running("alice") as alice:
        request = wire.ImportRequest(source=str(former.folder), as_name="readings")
        with pytest.raises(NotFound) as caught:
            await alice.done(alice.api.flow.import_(request))
        assert caught.value.rule == "former-data"
        assert list(alice.home.entries()) == []
        assert alice.home.keys.unborn() == []
        assert list(alice.home.folder("staging").iterdir()) == []


async def test_what_came_back_is_polled_again_once_its_manifest_is_applied(world: World, tmp_path: Path) -> None:
    """A folder tells nothing of where relative paths of a source begin; nothing else has to change for it."""
    async with world.running("alice") as alice:
        world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.apply(ROOT)
        await alice.pull("cities")
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(tmp_path / "out"))))
        await alice.api.declarations.delete("Dataset", "cities", purge=True)
        request = wire.ImportRequest(source=str(tmp_path / "out"), as_name="cities")
        await alice.done(alice.api.flow.import_(request))
        world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Wien,2")
        (item,) = await alice.pull("cities")
        assert (item.fault.rule, "apply the manifest" in item.fault.hint) == ("files-base", True)
        (applied,) = (await alice.apply(ROOT)).items
        assert applied.action == "unchanged"
        (item,) = await alice.pull("cities")
        assert (item.outcome, item.records) == ("updated", 1)
        await alice.apply(ROOT, base=tmp_path)
        world.write("alice", "3.csv", "2024-01-03T00:00:00Z,Linz,3")
        (item,) = await alice.pull("cities")
        assert item.outcome == "updated", "a folder that is known is not moved by a manifest that changes nothing"


async def test_names_are_checked_before_anything_is_copied(world: World) -> None:
    async with world.running("alice") as alice:
        await brought(alice, "airlines", "taken")
        for name, message in (("taken", "already the name"), ("no/name", "name")):
            with pytest.raises(Invalid, match=message):
                await brought(alice, "flights", name)
        with pytest.raises(Invalid, match="is here already"):
            await brought(alice, "airlines", "other")
        assert len(alice.home.chains.datasets()) == 1
        with pytest.raises(NotFound, match="no folder"):
            await brought(alice, "nothing", "n")


async def test_an_import_that_was_cut_off_is_settled_at_the_next_start(world: World) -> None:
    """Killed after the blocks were kept, before they were named."""
    async with world.running("alice") as alice:
        done = import_dataset(GOLDEN / "airlines", alice.home.chains, alice.home.objects)
        assert await alice.dataset_views() == []
    async with world.running("alice") as alice:
        (view,) = await alice.dataset_views()
        assert (view.id, view.blocks) == (str(done.dataset), 7)
        assert view.name.startswith("odf-")
        assert (await alice.done(alice.api.verification.verify(view.name, wire.VerifyRequest()))).ok
        await alice.api.declarations.delete("Dataset", view.name, purge=True)
        assert list(alice.home.objects.names()) == []


# Datasets whose history was rewritten, carried in and out: what is taken in can be written to and followed.


COMMANDS = ("append", "reset", "compact", "export", "delete", "import", "import first", "import there", "delete there",
            "mirror there")  # fmt: skip
BEHIND = ("trust.behind", "trust.epoch")
"""Rules by which writing is refused to a history that is older than the newest head, or than the newest epoch."""


class Two:
    """Alice, who publishes, and Bob; the folders that she wrote, the newest last."""

    def __init__(self, world: World, alice: Node, bob: Node) -> None:
        self.world, self.alice, self.bob = world, alice, bob
        self.folders: list[Path] = []
        self.numbers = itertools.count()
        self.refused: list[str] = []
        """Rules by which imports were refused."""

    async def begin(self) -> DatasetId:
        self.write(4)
        await self.alice.apply(ROOT)
        await self.alice.pull()
        self.cities: DatasetId = self.alice.dataset("cities")
        return self.cities

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            number = next(self.numbers)
            self.world.write("alice", f"{number:04}.csv", f"2024-01-01T00:00:{number:02}Z,town {number},{number}")

    def has(self, node: Node) -> bool:
        return self.cities in node.home.chains.datasets()

    def size(self, node: Node) -> int:
        head = node.home.chains.chain(self.cities).head()
        return head.size if head else 0

    async def do(self, command: str) -> None:
        await getattr(self, command.replace(" ", "_"))()

    async def append(self) -> None:
        if self.has(self.alice):
            (item,) = (await self.alice.apply(described(next(self.numbers)))).items
            if item.action == "failed":
                # What was signed and is not here must not be contradicted: whoever has it gives it back.
                assert item.fault.rule in BEHIND, item.fault
                assert self.is_behind()

    async def rewrite(self, **request: Any) -> None:
        if not self.has(self.alice):
            return
        try:
            await self.alice.done(self.alice.api.rewriting.rewrite("cities", wire.RewriteRequest(**request)))
        except Refused as fault:
            rule = fault.rule
        else:
            return
        # As with an append: what was taken in is older than the newest head, and whoever has the rest gives it back.
        assert rule in BEHIND
        assert self.is_behind()

    async def reset(self) -> None:
        if self.size(self.alice) > 3:
            await self.rewrite(action="reset", to=f"#{self.size(self.alice) - 2}")

    async def compact(self) -> None:
        await self.rewrite(action="compact")

    async def export(self) -> None:
        if self.has(self.alice):
            folder = self.world.folder / f"out-{next(self.numbers)}"
            await self.alice.done(self.alice.api.flow.export("cities", wire.ExportRequest(to=str(folder))))
            self.folders.append(folder)

    async def delete(self) -> None:
        if self.has(self.alice):
            await self.alice.api.declarations.delete("Dataset", "cities", purge=True)

    async def delete_there(self) -> None:
        if self.has(self.bob):
            await self.bob.api.declarations.delete("Dataset", "theirs", purge=True)

    async def take(self, node: Node, folder: Path, name: str) -> None:
        before = self.size(node)
        try:
            await node.done(node.api.flow.import_(wire.ImportRequest(source=str(folder), as_name=name)))
        except (Conflict, Invalid) as fault:
            self.refused.append(fault.rule)
            assert self.size(node) == before

    async def import_(self) -> None:
        for folder in self.folders[-1:]:
            await self.take(self.alice, folder, "cities")

    async def import_first(self) -> None:
        for folder in self.folders[:1]:
            await self.take(self.alice, folder, "cities")

    async def import_there(self) -> None:
        for folder in self.folders[-1:]:
            await self.take(self.bob, folder, "theirs")

    async def mirror_there(self) -> None:
        """Bob holds what Alice gives, if he can hear of it at all."""
        if self.has(self.alice) and self.has(self.bob):
            await self.bob.member.pull_statements(self.alice.member.peer_id)
            await self.bob.mirror(self.cities, "theirs")

    async def check(self) -> None:
        for node, name in ((self.alice, "cities"), (self.bob, "theirs")):
            if not self.has(node):
                continue
            report = await node.done(node.api.verification.verify(name, wire.VerifyRequest()))
            assert report.ok, report.failures
            with node.home.database.read() as connection:
                checked = Ledger(connection).chain(self.cities)
            assert (checked.frontier.size, checked.data) == (self.size(node), self.size(node))
        await self.append()

    def is_behind(self) -> bool:
        with self.alice.home.database.read() as connection:
            newest = Ledger(connection).newest_head(self.cities)
        return newest is not None and newest[0].size > self.size(self.alice)


setattr(Two, "import", Two.import_)


def described(number: int) -> str:
    return f"""kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetInfo
      description: number {number}
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: '*.csv', order: ByName}}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {{kind: Append}}
"""


async def lives(world: World, commands: list[str]) -> Two:
    follow = model.Policy(rewrite=model.Rewrite(follow="follow"))
    async with world.running("alice") as alice, world.running("bob", follow) as bob:
        two = Two(world, alice, bob)
        await two.begin()
        for command in commands:
            await two.do(command)
            await two.check()
        return two


@pytest.mark.slow
@settings(max_examples=share(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(COMMANDS), min_size=2, max_size=9))
@example(["reset", "export", "delete", "import"])
@example(["export", "delete", "import", "reset"])
@example(["compact", "export", "delete", "import"])
@example(["export", "reset", "delete", "import"])
@example(["export", "compact", "reset", "export", "import there", "delete there", "import first", "delete", "import"])
@example(["export", "append", "reset", "delete", "import"])
@example(["reset", "export", "import there", "append", "mirror there", "delete", "import"])
def test_whatever_is_taken_in_can_be_written_to(tmp_path: Path, commands: list[str]) -> None:
    run_apart(tmp_path, lives, commands)


@pytest.mark.slow
async def test_a_reset_dataset_comes_back_as_what_it_was(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        two = Two(world, alice, bob)
        cities = await two.begin()
        for command in ("export", "reset", "append", "export"):
            await two.do(command)
        size, first = two.size(alice), two.folders[0]
        with alice.home.database.write() as connection:
            Damage(connection).note(cities, [DamagedBlock(3, "slice-missing", "once")], alice.clock.now())
        await two.delete()
        await two.import_()
        assert (two.refused, two.size(alice)) == ([], size)
        with alice.home.database.read() as connection:
            assert Ledger(connection).chain(cities).epoch == 1
            assert Damage(connection).of(cities) == []
        await two.check()
        # Bob learns the epoch from the folder, and follows what comes after it.
        await two.import_there()
        with bob.home.database.read() as connection:
            assert Ledger(connection).chain(cities).epoch == 1
        await two.mirror_there()
        assert two.size(bob) == two.size(alice) == size + 1
        # What was given up is not taken back: nobody could write to it.
        await two.delete()
        await two.take(alice, first, "cities")
        assert (two.refused, two.has(alice)) == (["import-given-up"], False)
        # A copy without statements is taken where its blocks tell, or where nobody knows of an epoch.
        shutil.rmtree(two.folders[-1] / "trust")
        await two.import_()
        assert two.refused == ["import-given-up", "import-epoch"] or two.has(alice)


async def test_statements_of_a_folder_are_not_believed(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        two = Two(world, alice, bob)
        await two.begin()
        for command in ("reset", "append", "export"):
            await two.do(command)
        trust = two.folders[0] / "trust"
        head, authority = (trust / "head").read_bytes(), (trust / "authority-1").read_bytes()
        for file, raw in (("head", authority), ("authority-1", None), ("head", head.replace(b"sig", b"gis")),
                          ("authority-1", authority[:-40] + b"A" * 30 + authority[-10:])):  # fmt: skip
            (trust / "head").write_bytes(head)
            (trust / "authority-1").write_bytes(authority)
            if raw is None:
                (trust / file).unlink()
            else:
                (trust / file).write_bytes(raw)
            await two.import_there()
            assert not two.has(bob), file
        assert len(two.refused) == 4


# A running node is backed up, and comes back from it: whole, checked, and signing nothing that it signed before.


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
