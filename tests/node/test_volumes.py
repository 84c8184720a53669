"""Volumes of a node: declared, looked at, told of, and what refers to them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Environment, Fault, NotFound
from chain.store.volumes import VolumeUsage
from odfd.resources.store import ResourceStore
from odfd.services.resources import reconciler
from odfd.services.resources.reconciler import Reconciler
from odfd.services.volumes.volume_paths import MARK, VolumeFolder
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World, until

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")


def volume(path: Path, datasets: str = "[]", name: str = "cellar") -> str:
    return f"""
$schema: PersistentVolume
headers:
  name: {name}
  annotations: {{volumePolicy: {{datasets: {datasets}}}}}
spec: {{kind: HostPath, path: {path}, capacity: {{storage: 1Gi}}}}
"""


async def status(alice: Node, name: str = "cellar") -> dict[str, Any]:
    """Once all is done."""
    with trio.fail_after(PATIENCE):
        await alice.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await alice.api.declarations.get("volume", name)).status
    return found


def usage(alice: Node, name: str = "cellar") -> VolumeUsage:
    (found,) = [each for each in alice.parts.volumes.volumes.all() if each.name == name]
    told: VolumeUsage = alice.home.objects.volumes.usage(found.id)
    return told


async def lies(alice: Node, slices: int, name: str = "cellar") -> dict[str, Any]:
    """The status, once so many slices lie in the volume and it says so."""

    def told() -> bool:
        with alice.home.database.read() as connection:
            held = ResourceStore(connection).find_named("PersistentVolume", name, None)
        conditions = held.status.conditions if held is not None else {}
        return usage(alice, name).objects == slices == conditions["Usage"].value["slices"] if conditions else False

    await until(told)
    return await status(alice, name)


async def test_slices_follow_what_volumes_and_datasets_say(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain.store.objects.SMALL", 0)
    cellar, attic = tmp_path / "cellar", tmp_path / "attic"
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, volume(cellar, "['cit%']"), volume(attic, name="attic"))
        await alice.pull()
        said = await lies(alice, 1)
        assert said["phase"] == "Ready"
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wien,2000000")
        await alice.pull()
        await lies(alice, 2)
        probes = {each.name: each.result for each in await alice.api.about.doctor()}
        assert probes["volumes"] == "ok"
        with pytest.raises(Fault) as fixed:
            await alice.apply(volume(tmp_path / "elsewhere", "['cit%']"))
        assert fixed.value.rule == "volume-in-use"
        with pytest.raises(Fault) as used:
            await alice.api.declarations.delete("volume", "cellar")
        assert used.value.rule == "volume-in-use"
    async with world.running("alice") as alice:
        await lies(alice, 2)
        cellar.rename(tmp_path / "unplugged")
        alice.parts.volumes.loop.touch_all()
        await until(lambda: any(each.fault for each in alice.parts.volumes.states.values()))
        said = await status(alice)
        assert (said["phase"], said["code"]) == ("Failed", "volume-away")
        assert {each.name: each.result for each in await alice.api.about.doctor()}["volumes"] == "failed"
        (tmp_path / "unplugged").rename(cellar)
        await alice.apply(volume(cellar))
        said = await lies(alice, 0)
        assert said["phase"] == "Ready"
        await until(lambda: usage(alice).remains == 0)
        await alice.api.declarations.delete("volume", "cellar")
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        assert [each.name for each in cellar.rglob("*") if each.is_file()] == []
        assert [each.name for each in attic.iterdir()] == [MARK]


async def test_a_dataset_names_its_volume_and_that_goes_before_selectors(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain.store.objects.SMALL", 0)
    dataset = """
$schema: Dataset
headers: {name: named}
spec:
  kind: Root
  volume: attic
  metadata:
  - kind: AddPushSource
    sourceName: default
    read: {kind: NdJson, schema: {fields: [{name: n, type: Int64}]}}
    merge: {kind: Append}
"""
    async with world.running("alice") as alice:
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, volume(tmp_path / "cellar", "['%']"))
        (item,) = (await alice.apply(dataset)).items
        assert item.action == "created"
        await alice.pull("cities")
        await lies(alice, 1)
        (item,) = (await alice.apply(dataset)).items
        assert item.action == "unchanged"


@pytest.mark.parametrize("is_killed", [True, False])
async def test_r54_a_deleted_volume_gives_its_place_back_whatever_comes_between(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Killed before it is tried, or with its disk away: the next start goes on, and another volume begins there."""
    cellar, tries = tmp_path / "cellar", []

    def away(_: VolumeFolder, volume: str) -> None:
        tries.append(volume)
        raise Environment("volume cellar is away", rule="volume-away", hint="plug it in")

    async def never(*_: Any) -> None:
        await trio.sleep_forever()

    async def probe(node: Node) -> Any:
        (found,) = [each for each in await node.api.about.doctor() if each.name == "deletions"]
        return found

    async with world.running("alice") as alice:
        await alice.apply(volume(cellar))
        await status(alice)
        await until((cellar / MARK).exists)
        with monkeypatch.context() as patched:
            patched.setattr(VolumeFolder, "release", away)
            if is_killed:
                patched.setattr(Reconciler, "_finalize", never)
                patched.setattr(reconciler, "ATTEMPT_SECONDS", 0.0)  # of nobody's time
            await alice.api.declarations.delete("volume", "cellar")
            if not is_killed:
                await until(lambda: tries)
                with trio.fail_after(PATIENCE):
                    await alice.parts.reconciler.wait_settled()
                held = await alice.api.declarations.get("volume", "cellar")
                (told,) = [
                    each
                    for key, each in held.status["conditions"].items()
                    if key.endswith("/resource/v1alpha1/Deleting")
                ]
                assert (told["value"], told["code"], held.headers["deletedAt"]) == (
                    True,
                    "volume-away",
                    told["updatedAt"],
                )
                for again in ("cellar", held.id):  # it is there to be read, and for nothing else
                    with pytest.raises(NotFound):
                        await alice.api.declarations.delete("volume", again)
                said = await probe(alice)
                assert said.result == "failed"
                assert "PersistentVolume cellar: volume cellar is away" in said.message
                assert "plug it in" in said.hint
    assert (cellar / MARK).exists()
    async with world.running("alice") as alice:
        await alice.apply(volume(cellar, name="attic"))
        await until(lambda: marked(cellar) == found_id(alice, "attic"))
        await until(lambda: not any(each.fault for each in alice.parts.volumes.states.values()))
        assert (await status(alice, "attic"))["phase"] == "Ready"
        assert (await probe(alice)).result == "ok"


def marked(folder: Path) -> str:
    """The id that a folder is marked with; empty for one that is marked by nobody now."""
    with suppress(FileNotFoundError):
        return (folder / MARK).read_text()
    return ""


def found_id(alice: Node, name: str) -> str:
    return next(each.id for each in alice.parts.volumes.volumes.all() if each.name == name)
