"""Datasets in and out as folders: names, what is cut off, what is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chain.errors import Invalid, NotFound
from chain.store.layout import DirectoryChain, DirectoryObjects
from odfd.control import wire
from odfd.transfer.folders import import_dataset
from odfd.transfer.odf018 import FormerChain, compare
from worlds.former import small
from worlds.manifests import ROOT
from worlds.node_world import Node, World

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
