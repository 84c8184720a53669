"""Evidence that listed validators name is fetched and run again unasked, and what comes out is this node's own word."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from chain import instant
from chain.errors import Invalid
from config import model
from odfd.control import wire
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.runs import BACKOFF, Rechecks
from odfd.trust.validation import evidence_rechecker
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, add_to_first

ROWS = "2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000"
ATTESTS = model.Policy(profile="validator", publish=model.Publish(attest=True))


def listens_to(*keys: str, f: int = 0, recheck: bool = True) -> model.Policy:
    groups = tuple(model.Group(name=f"g{number}", keys=(key,)) for number, key in enumerate(keys))
    return model.Policy(serve="data", validators=model.Validators(f=f, groups=groups, recheck=recheck))


@asynccontextmanager
async def accusing(world: World, *, lies: bool) -> AsyncIterator[tuple[Any, Any]]:
    """Bob says that Alice's derivation is wrong: so it is, or his machine is."""
    async with world.running("alice") as alice, world.running("bob", ATTESTS) as bob:
        (alice if lies else bob).engine.wrong = partial(add_to_first, "population", 1000)
        world.write("alice", "a.csv", *ROWS)
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        await world.spread(alice, "cities", "towns")
        for name in ("cities", "towns"):
            await bob.mirror(alice.dataset(name), name)
        await bob.heard("attestation.signed")
        yield alice, bob


async def mirrored(node: Node, source: Any) -> None:
    for name in ("cities", "towns"):
        await node.mirror(source.dataset(name), name)
    await node.heard("attestation.heard")


async def at_rest(node: Node) -> float:
    """Until a round found nothing to do; how many seconds that is so."""
    with trio.fail_after(PATIENCE):
        while True:
            await trio.testing.wait_all_tasks_blocked(0.05)
            if node.parts.rechecker.loop.is_idle and node.parts.rechecker.rests:
                return float(node.parts.rechecker.rests)


async def put_off(node: Node, count: int) -> float:
    """Until so many attempts were put off; how long until the next."""
    with trio.fail_after(PATIENCE):
        while [event for event, _ in node.logger.said].count("evidence put off") < count:
            await trio.testing.wait_all_tasks_blocked(0.05)
    return await at_rest(node)


def kept(node: Node) -> list[str]:
    return [path.name for path in (node.home.directory / "evidence").iterdir()]


@pytest.mark.slow
async def test_a_lie_is_confirmed_here_and_no_word_of_others_is_needed(world: World) -> None:
    async with accusing(world, lies=True) as (alice, bob):
        async with world.running("carol", listens_to(bob.key)) as carol:
            await mirrored(carol, alice)
            (event,) = await carol.heard("evidence.rechecked")
            assert (event.data["result"], event.data["block"]) == ("confirmed", 3)
            assert (carol.engine.transforms, carol.engine.generations) == (4, 3), "three in fresh processes"
            trust = await carol.api.trust.show("towns")
            assert (trust.why.rule, trust.why.block, trust.reach.use) == ("own-mismatch", 3, 3)
            assert (await carol.dataset_view("towns")).state == "refuted", "two machines, one value"
            (found,) = trust.evidence
            assert (found.kind, found.kept, found.bundle) == ("mismatch", True, event.data["bundle"])
            assert found.recheck == "confirmed"
            assert [(cell.published, cell.computed) for cell in found.cells] == [(301000, 300000)]
            with carol.home.database.read() as connection:
                assert Ledger(connection).check() > 0
                decided = connection.execute("SELECT body FROM trust_ledger WHERE type = 'decision'").fetchall()
            assert b'"decision":"recheck"' in decided[-1][0]
            assert b'"result":"confirmed"' in decided[-1][0]
            assert await at_rest(carol) > 1e9
        alice.engine.wrong = None
        async with world.running("carol", listens_to(bob.key)) as carol:
            assert (await carol.api.trust.show("towns")).why.rule == "own-mismatch", "kept over a restart"
            assert await at_rest(carol) > 1e9
            assert carol.engine.transforms == 0, "and not done twice"
            carol.assembly.reload(model.Settings(policy=listens_to()))
            assert (await carol.api.trust.show("towns")).why.rule == "own-mismatch", "whoever accused"


@pytest.mark.slow
async def test_a_broken_machine_among_validators_harms_nobody(world: World) -> None:
    async with (
        accusing(world, lies=False) as (alice, bob),
        world.running("carol", listens_to(bob.key, alice.key, f=1)) as carol,
    ):
        await mirrored(carol, alice)
        (event,) = await carol.heard("evidence.rechecked")
        assert (event.data["result"], carol.engine.transforms, carol.engine.generations) == ("refuted", 1, 0)
        view = await carol.dataset_view("towns")
        assert (view.rely_on.blocks, view.rely_on.fact) == (4, "reproduced")
        with carol.home.database.read() as connection:
            now = carol.clock.now()
            assert Rechecks(connection).resting(now) == {"g0"}
            assert Rechecks(connection).resting(instant.Instant(now + BACKOFF)) == frozenset()
        (name,) = kept(carol)
        assert carol.features.peers._list_untrue(list(carol.parts.bundles._paths)) == frozenset(
            carol.parts.bundles._paths
        )
        assert name.startswith(str(event.data["bundle"]))
        (shown,) = (await carol.api.trust.show("towns")).evidence
        assert (shown.recheck, shown.kept) == ("refuted", True)


@pytest.mark.slow
async def test_where_nobody_may_err_a_false_accusation_splits(world: World) -> None:
    async with (
        accusing(world, lies=False) as (alice, bob),
        world.running("carol", listens_to(bob.key)) as carol,
    ):
        await mirrored(carol, alice)
        await carol.heard("evidence.rechecked")
        assert (await carol.api.trust.show("towns")).why.rule == "split"


@pytest.mark.slow
async def test_runs_that_differ_here_accuse_nobody(world: World) -> None:
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", listens_to(bob.key)) as carol,
    ):
        numbers = itertools.count()
        carol.engine.wrong = lambda request: add_to_first("population", next(numbers), request)
        await mirrored(carol, alice)
        (event,) = await carol.heard("evidence.rechecked")
        assert event.data["result"] == "unable"
        trust = await carol.api.trust.show("towns")
        assert trust.why is None
        assert trust.facts.reproduced is False


@pytest.mark.slow
async def test_without_an_engine_one_bundle_is_kept(world: World) -> None:
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", listens_to(bob.key, recheck=False)) as carol,
    ):
        carol.engine.why_not = Invalid("no Java here")
        await mirrored(carol, alice)
        assert kept(carol) == []
        carol.assembly.reload(model.Settings(policy=listens_to(bob.key)))
        await at_rest(carol)
        assert await at_rest(carol) > 1e9
        assert (len(kept(carol)), carol.engine.transforms) == (1, 0)
        assert (await carol.api.trust.show("towns")).why.rule == "accused"


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["nobody", "switched off"])
async def test_nothing_is_fetched_on_the_word_of_strangers_or_unasked(world: World, whom: str) -> None:
    async with accusing(world, lies=True) as (alice, bob):
        policy = listens_to() if whom == "nobody" else listens_to(bob.key, recheck=False)
        async with world.running("carol", policy) as carol:
            await mirrored(carol, alice)
            assert await at_rest(carol) > 1e9
            assert (kept(carol), carol.engine.transforms) == ([], 0)


async def test_who_publishes_does_not_check_himself(world: World) -> None:
    async with accusing(world, lies=True) as (alice, bob):
        alice.assembly.reload(model.Settings(policy=listens_to(bob.key)))
        assert await at_rest(alice) > 1e9
        assert kept(alice) == []


@pytest.mark.slow
async def test_what_cannot_be_had_is_tried_again_after_growing_pauses(world: World) -> None:
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", listens_to(bob.key, recheck=False)) as carol,
    ):
        await mirrored(carol, alice)
        (bundle,) = bob.parts.bundles._paths
        path = bob.parts.bundles.path(bundle)
        away = path.rename(path.with_suffix(".away"))
        carol.assembly.reload(model.Settings(policy=listens_to(bob.key)))
        assert 500 < await put_off(carol, 1) <= 600
        carol.clock.instant += evidence_rechecker.RETRY
        carol.parts.rechecker.loop.poke()
        assert 1100 < await put_off(carol, 2) <= 1200
        away.rename(path)
        carol.clock.instant += 2 * evidence_rechecker.RETRY
        carol.parts.rechecker.loop.poke()
        (event,) = await carol.heard("evidence.rechecked")
        assert event.data["result"] == "confirmed"


@pytest.mark.slow
async def test_evidence_of_something_else_is_dropped_and_its_reporter_rests(world: World) -> None:
    """What lies on the shelf under the name is a bundle about a block that does not stand here."""
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", listens_to(bob.key, recheck=False)) as carol,
    ):
        await mirrored(carol, alice)
        carol.parts.rechecker._hash_at = lambda _: None
        carol.assembly.reload(model.Settings(policy=listens_to(bob.key)))
        (event,) = await carol.heard("evidence.rechecked")
        assert (event.data["result"], kept(carol), carol.engine.transforms) == ("unfit", [], 0)
        assert await at_rest(carol) > 1e9
        assert (await carol.api.trust.show("towns")).why.rule == "accused", "words are counted as before"


@pytest.mark.slow
async def test_a_refuted_dataset_feeds_no_derivation(world: World) -> None:
    """Carol derives from what Alice derived, as far as it may be relied on, and goes on when a person lifts it."""
    async with (
        accusing(world, lies=True) as (alice, bob),
        world.running("carol", listens_to(bob.key, recheck=False)) as carol,
    ):
        await mirrored(carol, alice)
        mine = DERIVED.replace("name: towns", "name: mine").replace("cities", "towns")
        await carol.apply(mine)
        (item,) = await carol.pull("mine")
        assert (item.outcome, item.records) == ("blocked", 0)
        assert "of input towns only blocks up to #2 may be relied on, by policy" in item.message
        block = carol.home.chains.chain(alice.dataset("towns")).block_at(3).hash
        await carol.api.resolving.resolve("towns", wire.ResolveRequest(follow=str(block)))
        (item,) = await carol.pull("mine")
        assert (item.outcome, item.records) == ("updated", 2)
