"""An owner whose state was copied signs two histories: whoever meets both proves it and stops where they part."""

from __future__ import annotations

import pytest
import trio

from chain.statements import proof
from odfd.store.ledger.log import Ledger
from odfd.store.mirror_specs import MirrorSpec
from p2p.identity import peer_of_seed
from p2p.ports import Topic
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
SEED = b"\x2a" * 32


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "more"), [(1, 0), (2, 0), (1, 1), (2, -1)])
async def test_both_branches_end_where_they_part(world: World, steps: int, more: int) -> None:
    """One block apart the proof needs nobody; more apart, who showed the other head is asked for its branch.

    ``more`` is by how much the other branch is longer: no size makes it less of a fork.
    """
    world.write("alice", "a.csv", *ROWS)
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        await alice.pull()
        cities, common = alice.dataset("cities"), alice.size("cities")
    world.steal("alice", "mallory", SEED)
    mallory_peer = peer_of_seed(SEED)
    world.wires.cut.add(mallory_peer)
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("mallory") as mallory:
        await mallory.sign_again(alone=True)
        for step in range(max(steps, steps + more)):
            world.write("alice", f"b{step}.csv", f"2024-01-0{3 + step}T00:00:00Z,Wels,{step}")
            if step < steps:
                await alice.pull("cities")
            if step < steps + more:
                await mallory.pull("cities")
        assert (alice.size("cities"), mallory.size("cities")) == (common + steps, common + steps + more)
        await bob.heard_head(common + steps)
        await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == common + steps
        world.wires.cut.discard(mallory_peer)
        with mallory.home.database.read() as connection:
            newest = Ledger(connection).newest_head(cities)
        assert newest is not None
        await mallory.member.announce(Topic.HEADS, newest[1].envelope)

        for node, name in ((bob, "theirs"), (alice, "cities")):
            await node.heard("dataset.forked")
            views = {view.name: view for view in await node.dataset_views()}
            assert views[name].state == "forked"
            shown = await node.api.trust.show(name)
            assert shown.why is not None
            assert (shown.why.rule, shown.why.block, shown.facts.forked) == ("fork", common, True)
            assert shown.why.sids == (shown.evidence[0].id,)
            (evidence,) = [each for each in shown.evidence if each.kind == "fork"]
            assert len({side.block for side in evidence.sides}) == len(evidence.sides) == 2
            assert len({side.head.signer for side in evidence.sides}) == 1, "one key signed both"
            assert {side.head.hash for side in evidence.sides} >= {shown.head}
            here = node.home.chains.chain(node.dataset(shown.ref)).block_at(evidence.block).hash
            assert [side.block for side in evidence.sides if side.held] == [str(here)]
            found = proof.decode(await node.api.trust.evidence(evidence.id))
            assert (found.dataset, found.index) == (cities, common)
            assert node.size(name) == common + steps
        assert await trio.to_thread.run_sync(bob.parts.library.size, cities) <= common


@pytest.mark.slow
async def test_who_comes_later_learns_of_the_fork(world: World) -> None:
    """A proof is among the statements that peers compare: a newcomer stops there before it has a block."""
    await test_both_branches_end_where_they_part(world, 1, 0)
    async with world.running("bob"), world.running("carol") as carol:
        with trio.fail_after(PATIENCE):
            while not (found := carol.parts.board.unheld.datasets()):
                await carol.member.shown.wait()
        await carol.parts.scheduler.add(MirrorSpec(dataset=str(found[0]), name="theirs"))
        (event,) = await carol.heard("dataset.forked")
        assert "two histories" in event.message
