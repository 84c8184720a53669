"""A node that cosigns what it does not mirror: it asks whoever holds the blocks, and believes nobody."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.statements import envelope, statement
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.cosignature import Cosignature
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, HeadStatement, Roots, Writer
from config import model
from odfd.control import wire
from odfd.policy.policy import policy_of
from odfd.services.trust.witnessing import RETRY_SECONDS, WitnessEvents, Witnessing, WitnessRequest
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import Ledger
from odfd.store.mirror_specs import MirrorSpec
from odfd.trust.witness.witness import CosignRequest, KnownTree
from p2p.ports import Topic, TreeRoot
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Lines, Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
MORE = "2024-01-03T00:00:00Z,Wels,60000"


def attends(*datasets: DatasetId) -> model.Policy:
    return model.Policy(publish=model.Publish(witness=tuple(map(str, datasets))))


def asks(key: str) -> model.Policy:
    return model.Policy(witness=model.Witness(quorum=1, groups=(model.Group(name="w", keys=(key,)),)))


def cosigned(node: Node, dataset: DatasetId) -> list[Cosignature]:
    with node.home.database.read() as connection:
        return Cosignatures(connection).of(dataset)


def newest(node: Node, dataset: DatasetId) -> HeadStatement | None:
    with node.home.database.read() as connection:
        found = Ledger(connection).newest_head(dataset)
    return found[0] if found else None


async def published(world: World, node: Node) -> DatasetId:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT)
    await node.pull()
    dataset: DatasetId = node.dataset("cities")
    return dataset


def told(node: Node) -> list[str]:
    """Rules by which it did not cosign."""
    return [str(values["rule"]) for said, values in node.logger.said if said == "not cosigned"]


async def test_a_witness_that_mirrors_nothing_lets_a_newcomer_in(world: World) -> None:
    """The second rung of the ladder, by a node without a block of the dataset."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("witness", attends(cities)) as witness, world.running(
            "carol", asks(witness.key)
        ) as carol:  # fmt: skip
            await witness.heard("cosignature.signed")
            world.write("alice", "b.csv", MORE)
            await alice.pull("cities")
            first, second = await witness.heard("cosignature.signed", 2)
            assert second.data["size"] == alice.size("cities") > first.data["size"]
            (made,) = cosigned(witness, cities)
            head = newest(alice, cities)
            assert head is not None
            assert (made.checkpoint.size, made.checkpoint.root_hash) == (head.size, head.root_hash)
            assert witness.home.chains.datasets() == []
            await carol.parts.scheduler.add(MirrorSpec(dataset=str(cities), name="theirs"))
            with trio.fail_after(PATIENCE):
                while carol.size("theirs") < alice.size("cities"):
                    await carol.parts.scheduler.get(cities).turned.wait()
            assert (await carol.api.trust.show("theirs")).facts.met == "witnessed"


async def look(witnessing: Witnessing) -> float:
    """A round of ours, beside those of the node."""
    witnessing.loop.touch_all()
    return await witnessing._round()


async def test_what_nobody_can_prove_waits(world: World) -> None:
    """Silent, gone or refusing: nothing is cosigned, and it is asked again."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("witness", attends(cities)) as witness:
            (first,) = await witness.heard("cosignature.signed")
            prove = witness.member.prove_prefix

            async def nobody(*_: Any) -> bool:
                raise Remote("nobody proves it", rule="prove")

            witness.member.prove_prefix = nobody
            world.write("alice", "b.csv", MORE)
            await alice.pull("cities")
            await witness.heard_head(alice.size("cities"))
            witnessing = witness.parts.witnessing
            assert await look(witnessing) == RETRY_SECONDS
            assert set(told(witness)) == {"prove"}
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [first.data["size"]]
            witness.member.prove_prefix = prove
            await look(witnessing)
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [alice.size("cities")]


async def test_a_false_proof_moves_no_witness_and_both_heads_are_told(world: World) -> None:
    """A provider that lies is no offender by that alone, for it may hold another history; but nothing is cosigned."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("witness", attends(cities)) as witness:
            (first,) = await witness.heard("cosignature.signed")
            before = newest(witness, cities)
            alice.member.library.prove = lambda *_, **__: [b"?" * 32] * 3
            world.write("alice", "b.csv", MORE)
            await alice.pull("cities")
            (refused,) = await witness.heard("cosignature.refused")
            assert refused.data["size"] == alice.size("cities")
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [first.data["size"]]
            assert "trust.unproven" in told(witness)
            again = [kind for kind in witness.kinds() if kind == "cosignature.refused"]
            await look(witness.parts.witnessing)
            assert [kind for kind in witness.kinds() if kind == "cosignature.refused"] == again, "told once"
            assert before is not None
            assert before.size == first.data["size"]
            del alice.member.library.prove
            await look(witness.parts.witnessing)
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [alice.size("cities")]


@pytest.mark.slow
async def test_a_split_that_a_witness_sees_is_proven_by_those_who_hold_it(world: World) -> None:
    """The thief shows his branch to the witness, which had cosigned the owner's: both heads meet where blocks are."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
    world.steal("alice", "mallory", b"m" * 32)
    async with world.running("alice") as alice, world.running("witness", attends(cities)) as witness:
        await witness.heard("cosignature.signed")
        world.write("alice", "b.csv", MORE)
        await alice.pull("cities")
        await witness.heard("cosignature.signed", 2)
        world.wires.cut.update((alice.member.peer_id, witness.member.peer_id))
        async with world.running("mallory") as mallory:
            await mallory.sign_again(alone=True)
            for number, day in enumerate((4, 5)):
                world.write("alice", f"c{number}.csv", f"2024-01-0{day}T00:00:00Z,Steyr,38000")
                await mallory.pull("cities")
            world.wires.cut.discard(witness.member.peer_id)
            await witness.member.pull_statements(mallory.member.peer_id, [cities])
            await witness.heard("cosignature.refused")
            world.wires.cut.clear()
            await alice.member.pull_statements(witness.member.peer_id, [cities])
            await alice.heard("dataset.forked")
            await witness.heard("dataset.forked")
            await look(witness.parts.witnessing)
            assert "trust.forked" in told(witness)
            assert [each.checkpoint.size for each in cosigned(witness, cities)] == [alice.size("cities")]


async def test_each_epoch_is_an_origin_that_begins_with_what_is_kept(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        world.write("alice", "b.csv", MORE)
        await alice.pull("cities")
        async with world.running("witness", attends(cities)) as witness:
            await witness.heard("cosignature.signed")
            asked: list[tuple[int, int]] = []
            prove = witness.member.prove_prefix

            async def proving(peers: Any, dataset: DatasetId, old: TreeRoot, signed: TreeRoot) -> bool:
                asked.append((old.size, signed.size))
                return bool(await prove(peers, dataset, old, signed))

            witness.member.prove_prefix = proving
            await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))
            with trio.fail_after(PATIENCE):
                count = 1
                while f"{cities}/1" not in {each.checkpoint.origin for each in cosigned(witness, cities)}:
                    count += 1
                    await witness.heard("cosignature.signed", count)
            with alice.home.database.read() as connection:
                opened = Authorities(connection).rights(cities).opened(1)
            assert opened is not None
            assert asked == [(opened.base.size, alice.size("cities"))]


async def test_the_log_of_who_may_write_is_cosigned_without_asking(world: World) -> None:
    """All its versions come as statements, so there is nothing to prove."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("witness", attends(cities)) as witness:
            await witness.heard("cosignature.signed")
            key = alice.home.keys.dataset_key(cities)
            said = Authority(
                dataset=cities,
                version=1,
                issued_at=statement.when(world.clock.now()),
                roots=Roots(threshold=1, keys=(key.did,)),
                writers=(Writer(key=key.did, expires_at="2026-06-01T00:00:00Z"),),
                head=alice.home.chains.chain(cities).block_at(0).hash,
            )
            witness.parts.board.judge(Topic.HEADS, envelope.seal(statement.encode(said), key), alice.member.peer_id)
            await witness.heard("cosignature.signed", 2)
            origins = {each.checkpoint.origin: each.checkpoint.size for each in cosigned(witness, cities)}
            assert origins == {f"{cities}/0": alice.size("cities"), f"{cities}/authority": 1}


def test_a_policy_names_what_it_attends() -> None:
    with pytest.raises(Invalid, match=r"publish\.witness"):
        policy_of(model.Policy(publish=model.Publish(witness=("nyc.flights",))))


class Patient:
    """A witness of two datasets whose heads need a proof."""

    def __init__(self) -> None:
        self.settled: list[DatasetId] = []

    def consider(self, _dataset: DatasetId) -> None: ...

    consider_authority = consider

    def question(self, dataset: DatasetId) -> CosignRequest:
        return CosignRequest(
            tree=TreeCheckpoint(dataset, 0, 9, b"n" * 32), old=KnownTree(5, b"o" * 32), head=b"{}", kept=None
        )

    def settle(self, asked: CosignRequest) -> None:
        self.settled.append(asked.tree.dataset)


async def test_silent_peers_of_one_dataset_keep_no_other_waiting(autojump_clock: MockClock) -> None:
    silent, other = SigningKey(b"s" * 32).dataset_id, SigningKey(b"o" * 32).dataset_id
    witness, journal = Patient(), Lines()
    proven = trio.Event()

    class Network:
        async def of(self, *_: Any) -> list[str]:
            return ["peer"]

        async def prove_prefix(self, _peers: Any, dataset: DatasetId, *_: Any) -> bool:
            if dataset == silent:
                await trio.sleep_forever()
            proven.set()
            return True

    network: Any = Network()
    made = Witnessing(
        Nothing(), witness, lambda: WitnessRequest(True, [silent, other]), network, network,  # type: ignore[arg-type]
        WitnessEvents(lambda _: None, lambda _: None), journal,
    )  # fmt: skip
    assert await made._round() == RETRY_SECONDS
    assert (proven.is_set(), witness.settled) == (True, [other])
    assert [(said, values["rule"]) for said, values in journal.said] == [("not cosigned", "prove")]


class Nothing:
    def datasets(self) -> list[DatasetId]:
        return []
