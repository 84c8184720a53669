"""Datasets in and out as folders, those whose history was rewritten too: what is cut off, what can be followed."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.store.layout import DirectoryChain, DirectoryObjects
from config import model
from odfd.control import wire
from odfd.store.damage import Damage, DamagedBlock
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
