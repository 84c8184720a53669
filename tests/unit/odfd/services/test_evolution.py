"""Another transform for a dataset that has rows, through apply and pull of a node with the small engine."""

from __future__ import annotations

from typing import Any

from odfd.control import wire

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
MORE = ("2024-01-03T00:00:00Z,Wels,60000",)


def two_sources(worlds: Any) -> tuple[str, str, str]:
    """The root, the same under another name, and one with another column."""
    other = worlds.ROOT.replace("name: cities", "name: villages")
    wider = other.replace("name: villages", "name: hamlets").replace("population BIGINT", "people BIGINT")
    return worlds.ROOT, other, wider


def derived(worlds: Any, source: str, version: str = "") -> str:
    text = worlds.DERIVED.replace("datasetRef: cities, alias: cities", f"datasetRef: {source}, alias: {source}")
    text = text.replace("from cities", f"from {source}")
    return str(text.replace("engine: spark", f"engine: spark\n        version: '{version}'") if version else text)


async def reproduced(alice: Any) -> bool:
    report = await alice.done(alice.api.verification.verify("towns", wire.VerifyRequest(level="reproduced")))
    return bool(report.ok)


async def test_another_source_of_the_same_columns_takes_over(world: Any, worlds: Any) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(*two_sources(worlds), derived(worlds, "cities"))
        await alice.pull()
        (item,) = (await alice.apply(derived(worlds, "villages"), dry_run=True)).items
        assert (item.action, item.changes) == ("updated", ("SetTransform",))
        size = alice.size("towns")
        (item,) = (await alice.apply(derived(worlds, "villages"))).items
        assert (item.action, item.changes, alice.size("towns")) == ("updated", ("SetTransform",), size + 1)
        assert (await alice.apply(derived(worlds, "villages"))).items[0].action == "unchanged"
        (item,) = await alice.pull("towns")
        assert (item.outcome, item.records) == ("updated", 2)
        world.write("alice", "b.csv", *MORE)
        await alice.pull("villages", "towns")
        assert (await alice.api.datasets.tail("towns", 10)).rows[-1][4:] == ("Wels", 60000)
        assert await reproduced(alice)


async def test_other_columns_are_refused_with_the_way_to_derive_anew(world: Any, worlds: Any) -> None:
    world.write("alice", "a.csv", *ROWS)
    sources = two_sources(worlds)
    async with world.running("alice") as alice:
        await alice.apply(*sources[:2], derived(worlds, "cities"))
        await alice.pull()
        await alice.apply(sources[2])
        size = alice.size("towns")
        (item,) = (await alice.apply(derived(worlds, "hamlets"))).items
        assert (item.action, item.fault.rule, alice.size("towns")) == ("failed", "transform-evolution", size)
        assert "people, population" in item.fault.detail
        assert "odfctl reset towns '#1', then apply it again and odfctl pull towns" in item.fault.hint


async def test_the_pin_stays_until_somebody_writes_another(world: Any, worlds: Any) -> None:
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT, derived(worlds, "cities", "sha256:" + "7" * 64))
        await alice.pull()
        assert (await alice.apply(derived(worlds, "cities"))).items[0].action == "unchanged"
        (item,) = (await alice.apply(derived(worlds, "cities", "sha256:" + "8" * 64))).items
        assert item.action == "updated"
