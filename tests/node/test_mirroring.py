"""Mirrors among nodes: what arrives, in which steps, what is refused, what is survived."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from chain import instant
from chain.data import object_links
from chain.errors import Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.model.events import AddData, SetDataSchema, SetInfo, SetTransform, TransformInput
from chain.model.source import TransformSql
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.objects import SMALL, DiskObjects
from config import model
from odfd.cli.dataset_text import state_text
from odfd.control import wire
from odfd.mirrors import object_fetcher, sinks, sync
from odfd.mirrors.mirror_state import MirrorProgress, SchedulerState
from odfd.mirrors.object_fetcher import ObjectLimits, together
from odfd.services.network.mirrors import slices_of
from odfd.services.resources.views import manifest_of
from odfd.store.ledger.log import Ledger
from odfd.store.references import references_to
from odfd.trust.signing import owner_commit
from p2p.driver.replication import ReplicationDriver
from p2p.pace import PeerTraffic
from p2p.ports import PeerId
from p2p.wire import trust
from p2p.wire.limits import MAX_PACKED
from worlds.commits import commit_events
from worlds.eventually import PATIENCE
from worlds.linked_world import FILES, schema, slice_at
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, until

# Mirrors among nodes: what arrives, what is refused, what is survived.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
HOUR = 3600 * instant.SECOND
BIG = tuple(f"2024-01-01T00:00:{number % 60:02}Z,{number * 7919 % 10**9:x}-{number},{number}" for number in range(8000))


async def published(world: World, node: Node, *rows: str) -> Any:
    world.write("alice", "a.csv", *(rows or ROWS))
    await node.apply(ROOT, DERIVED)
    await node.pull()
    await world.spread(node, "cities", "towns")
    return node.dataset("cities")


async def mirrored(node: Node, name: str, size: int) -> None:
    """Until the mirror has so many blocks."""
    with trio.fail_after(PATIENCE):
        while node.size(name) < size:
            mirror = node.parts.scheduler.get(node.dataset(name))
            await mirror.turned.wait()


async def test_what_is_mirrored_is_the_same_and_follows(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        view = await bob.mirror(cities, "theirs")
        assert (view.state, view.blocks.have, view.peers, view.serving) == ("current", alice.size("cities"), 1, True)
        ((peer_id, peer),) = (await bob.api.peers.states()).items()
        assert await bob.api.peers.holders() == [wire.PeerHoldings(peer_id=peer_id, names=("theirs",))]
        line = PeerTraffic(received=9_000, sent=70, down=1_125.04, up=8.75)
        bob.member.peer_traffic = lambda: {peer_id: line}
        (told,) = (await bob.api.peers.states()).values()
        assert (told.received, told.sent, told.received_rate, told.sent_rate) == (9_000, 70, 1_125.0, 8.8)
        (shown,) = await bob.api.declarations.stated([await bob.api.declarations.get("Peer", peer_id)])
        assert manifest_of(shown).state(wire.PeerState) == told
        network = await bob.api.networks.state("wires")
        assert (network.received_rate, network.sent_rate) == (1_125.0, 8.8)
        assert (peer.received, peer.received_rate) == (None, None)
        (newest, *_) = told = (await bob.api.trust.show("theirs")).heads
        assert (newest.blocks, newest.hash) == (alice.size("cities"), str(alice.home.chains.chain(cities).head().hash))
        assert [one.blocks for one in told] == sorted((one.blocks for one in told), reverse=True)
        mine, theirs = (list(node.home.chains.chain(cities).raw_blocks(0, 99)) for node in (alice, bob))
        assert mine == theirs
        assert (await bob.api.datasets.tail("theirs", 5)).rows == (await alice.api.datasets.tail("cities", 5)).rows
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await mirrored(bob, "theirs", alice.size("cities"))
        assert [item.outcome for item in await bob.pull("theirs")] == ["up-to-date"]
        pulled = next(task for task in bob.board.list() if task.kind == "pull").report
        assert pulled.unit == "bytes"
        assert pulled.done == bob.parts.scheduler.get(cities).tally.bytes > 0
        (listed,) = await bob.mirrors()
        assert listed.slices == wire.Share(have=2, want=2), "those of earlier passes too"
        report = await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))
        assert report.ok


def test_slices_are_those_counted_and_those_that_just_came() -> None:
    """Of five held before, three of nine came, none of which is counted yet; later two of them are."""
    came = MirrorProgress(slices=3, slices_wanted=9, slices_uncounted=3)
    assert slices_of(came, held=5) == wire.Share(have=8, want=14)
    assert slices_of(msgspec.structs.replace(came, slices_uncounted=1), held=7) == wire.Share(have=8, want=14)
    assert slices_of(MirrorProgress(), held=5) == wire.Share(have=5, want=5)


async def test_a_task_tells_in_the_end_how_much_came(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago its progress was told last."""
    monkeypatch.setattr("odfd.services.network.mirror_wait.SHOW_SECONDS", 3600.0)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        (task,) = bob.board.list()
        blocks = alice.size("cities")
        assert task.report.message.startswith(f"blocks {blocks}/{blocks}  slices 1/1")
        assert task.report.done == task.report.total


async def test_who_is_gone_is_not_counted(world: World) -> None:
    """Also before anybody looks for more: a mirror of which this is the last copy must not seem to have another."""
    async with world.running("bob") as bob:
        async with world.running("alice") as alice:
            cities = await published(world, alice)
            assert (await bob.mirror(cities, "theirs")).peers == 1
            assert [view.peers for view in await bob.mirrors()] == [1]
            network = await bob.api.networks.state("wires")
            assert {each.id: each.peers for each in network.datasets}[str(cities)] == 1
        assert [view.peers for view in await bob.mirrors()] == [0]
        assert [view.peers for view in await bob.dataset_views()] == [0]
        network = await bob.api.networks.state("wires")
        assert {each.id: each.peers for each in network.datasets}[str(cities)] == 0


async def test_a_pull_asks_for_what_gossip_did_not_bring(world: World, monkeypatch: Any) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")

        async def lost(_topic: Any, _envelope: bytes) -> None:
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(alice.member, "announce", lost)
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        assert bob.size("theirs") < alice.size("cities")
        assert [item.outcome for item in await bob.pull("theirs")] == ["updated"]
        assert bob.size("theirs") == alice.size("cities")


async def test_with_nobody_to_ask_it_is_not_called_up_to_date(world: World) -> None:
    """What is pulled by the way says so too; what came is told even if its giver is gone by then."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        world.wires.cut(alice.member.peer_id)
        newest = f"the newest block here is #{alice.size('cities') - 1}, of 2026-"
        for items in (await bob.pull("theirs"), await bob.pull()):
            assert [item.outcome for item in items] == ["blocked"]
            assert items[0].message.startswith(f"no peer is connected that could be asked for more; {newest}")
        async with world.running("carol"):
            (item,) = await bob.pull("theirs")
            assert item.outcome == "blocked"
            assert "no connected peer serves it this far (there are 1)" in item.message
        world.wires.heal()
        assert [item.outcome for item in await bob.pull("theirs")] == ["up-to-date"]


async def test_with_no_answer_it_is_not_called_up_to_date(world: World, monkeypatch: Any) -> None:
    """Its peer is connected and says nothing, as a machine that sleeps; another one that answers never had it."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        ask = bob.member.pull_statements

        async def silent(peer: PeerId, *args: Any, **kwargs: Any) -> int:
            if peer == alice.member.peer_id:
                raise Remote("no answer in 20 s")
            return await ask(peer, *args, **kwargs)

        async with world.running("carol"):
            monkeypatch.setattr(bob.member, "pull_statements", silent)
            (item,) = await bob.pull("theirs")
            assert item.outcome == "blocked"
            newest = f"the newest block here is #{alice.size('cities') - 1}, of 2026-"
            assert item.message.startswith(f"no answer from 1 connected peer that served it; {newest}")
            monkeypatch.setattr(bob.member, "pull_statements", ask)
            assert [item.outcome for item in await bob.pull("theirs")] == ["up-to-date"]


async def test_blocks_that_nobody_gives_for_a_day_are_withheld(world: World) -> None:
    """Attack T-HEAD-01: heads whose blocks no peer serves.

    Defence: after a day without a new block the condition `Withheld` is set and shown.

    Each block that comes begins the day anew; when all is here nothing is left of it.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        alice.member.lies.blocks = lambda _: []
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await bob.heard_head(alice.size("cities"))

        async def conditions() -> tuple[str, ...]:
            await bob.parts.scheduler.pass_now(cities)
            return (await bob.dataset_view("theirs")).conditions

        assert await conditions() == ()
        world.clock.instant += 23 * HOUR
        assert await conditions() == ()
        world.clock.instant += 2 * HOUR
        assert await conditions() == ("Withheld",)
        (event,) = await bob.heard("head.withheld")
        assert (event.data["blocks"], event.data["signed"]) == (alice.size("cities") - 1, alice.size("cities"))
        assert await conditions() == ("Withheld",)
        assert bob.kinds().count("head.withheld") == 1
        alice.member.lies.blocks = list
        bob.member.forgive()  # as in two days
        assert await conditions() == ()
        assert bob.size("theirs") == alice.size("cities")


async def test_a_mirror_is_a_source_for_the_next(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs")
            world.wires.cut(alice.member.peer_id)
            async with world.running("carol") as carol:
                assert (await carol.mirror(cities, "theirs")).state == "current"


async def test_blocks_of_a_liar_are_not_taken(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        alice.member.lies.blocks = lambda blocks: [raw[:-1] + bytes([raw[-1] ^ 1]) for raw in blocks]
        await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 0
        alice.member.lies.blocks = list
        bob.parts.scheduler.poke(cities)
        await mirrored(bob, "theirs", alice.size("cities"))


async def test_flipped_bytes_on_the_way_are_fetched_again(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, *BIG)
        flips = iter([1])

        def flip(data: bytes) -> bytes:
            return data[:-1] + bytes([data[-1] ^ next(flips, 0)])

        alice.member.lies.object = flip
        assert (await bob.mirror(cities, "theirs")).state == "current"
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))).ok


@pytest.mark.slow
async def test_a_damaged_file_is_never_served_and_is_mended(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await published(world, alice, *BIG)
        await bob.mirror(cities, "theirs")
        (path,) = [each for each in (bob.home.directory / "objects").rglob("f1620*") if each.stat().st_size > 65536]
        name = Multihash.parse(path.name)
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        world.wires.cut(alice.member.peer_id)  # or it is whole again as soon as somebody has noticed
        path.write_bytes(data)
        assert bob.parts.library.object_size(name) is None
        with pytest.raises(NotFound):
            bob.parts.library.read_object(name, 0, 10)
        path.write_bytes(data[:1000])
        with pytest.raises(Environment, match="damaged"):
            await bob.api.datasets.tail("theirs", 3)
        path.write_bytes(data)
        report = await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))
        assert report.failures[0].rule == "slice-physical-hash"
        assert (await bob.dataset_view("theirs")).rely_on.blocks == 3
        world.wires.heal()
        (item,) = await bob.pull("theirs")
        assert item.outcome in ("updated", "up-to-date")
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))).ok
        assert (await bob.dataset_view("theirs")).rely_on.blocks == alice.size("cities")
        world.wires.cut(alice.member.peer_id)
        assert (await carol.mirror(cities, "theirs")).state == "current"


@pytest.mark.slow
async def test_pull_repair_mends_what_nobody_noticed(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, *BIG)
        await bob.mirror(cities, "theirs")
        (path,) = [each for each in (bob.home.directory / "objects").rglob("f1620*") if each.stat().st_size > 65536]
        path.chmod(0o644)
        path.write_bytes(b"gone")
        world.wires.cut(alice.member.peer_id)
        (item,) = await bob.pull("theirs", repair=True)
        assert item.fault is not None
        assert "nothing was removed" in item.fault.detail
        assert path.read_bytes() == b"gone", "nobody could give it, so what is left of it stays"
        world.wires.heal()
        (item,) = await bob.pull("theirs", repair=True)
        assert (item.outcome, item.message) == ("updated", "1 damaged object made whole")
        (item,) = await bob.pull("theirs", repair=True)
        assert item.outcome == "up-to-date"


async def test_chain_first_then_data(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs", want="chain")
        assert (await bob.dataset_view("theirs")).rely_on.fact.startswith("data at #")
        with pytest.raises(NotFound, match="without its data"):
            await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="data")))
        with pytest.raises(NotFound, match="without its data"):
            await bob.api.datasets.tail("theirs", 5)
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="chain")))).ok
        await bob.mirror(cities, "theirs", want="data")
        with trio.fail_after(PATIENCE):
            turned = bob.parts.scheduler.get(cities).turned
            while (await bob.dataset_view("theirs")).rely_on.blocks < alice.size("cities"):
                await turned.wait()
                turned = bob.parts.scheduler.get(cities).turned
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="data")))).ok


async def test_what_was_fetched_before_a_cut_is_not_fetched_again(world: World, short_parts: int) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice, *BIG)
        whole = alice.home.objects.size(next(iter(alice.home.objects.names())))
        async with world.running("bob") as bob:
            given = 0

            def cut(data: bytes) -> bytes:
                nonlocal given
                given += 1
                if given == 10:
                    world.wires.cut(alice.member.peer_id)
                return data

            alice.member.lies.object = cut
            await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.passes > 0 and given >= 10)
            assert bob.size("theirs") == 0
            (partial,) = (bob.home.directory / "partial").iterdir()
            first = partial.stat().st_size
            assert 0 < first < whole
        world.wires.heal()
        alice.member.lies.object = bytes
        async with world.running("bob") as bob:
            await mirrored(bob, "theirs", alice.size("cities"))
            assert bob.member.received <= whole - first + short_parts


async def test_a_signed_tree_that_breaks_a_rule_is_refused_and_not_looked_at_again(world: World) -> None:
    """The owner signs a chain whose slice is not what its block says: the rows differ from their logical hash."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        lie(alice, cities)
        await world.spread(alice, "cities")
        with pytest.raises(Invalid, match="slice"):
            await bob.mirror(cities, "theirs")
        mirror = bob.parts.scheduler.get(cities)
        assert (mirror.state, bob.size("theirs")) == (SchedulerState.REFUSED, 0)
        bob.member.forget_questions()
        await bob.parts.scheduler.pass_now(cities)
        assert mirror.state is SchedulerState.REFUSED
        news = (alice.member.peer_id, trust.PROTOCOL)
        assert bob.member.named_to(cities) == {news}, "news were asked for, and no block"


async def test_a_publisher_that_signs_on_over_a_wrong_block_is_fetched_ever_later(world: World) -> None:
    """Attack T-HEAD-02: a mirrored publisher that signs new heads over a block that breaks a rule, so that it is
    fetched for each.

    Defence: the first such head is fetched, others of the epoch after pauses that double up to a day.

    Each head has another tree, and the same wrong block in it: the first is looked at, the others wait.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        lie(alice, cities)
        await world.spread(alice, "cities")
        with pytest.raises(Invalid, match="slice"):
            await bob.mirror(cities, "theirs")
        given: list[int] = []

        def counted(blocks: list[bytes]) -> list[bytes]:
            given.append(sum(map(len, blocks)))
            return blocks

        alice.member.lies.blocks = counted
        for _ in range(6):
            lie(alice, cities)
            await world.spread(alice, "cities")
            await bob.parts.scheduler.pass_now(cities)
        assert bob.parts.scheduler.get(cities).state is SchedulerState.REFUSED
        assert len(given) <= 1, "blocks were fetched once more, and not for each head"


async def test_a_signed_block_that_breaks_a_rule_is_its_owners_fault(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of who gives it. The mirror keeps what it has, and says everywhere which rule it was."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        before = bob.size("theirs")
        with monkeypatch.context() as lawless:
            lawless.setattr(owner_commit, "check_block", lambda *_, **__: [])
            for _ in range(2):
                chain = alice.home.chains.chain(cities)
                inputs = tuple(TransformInput(dataset_ref=str(cities), alias="a") for _ in range(2))
                event = SetTransform(inputs=inputs, transform=TransformSql(engine="spark"))
                commit_events(alice.parts.committer, cities, chain.head(), [event], load_state(chain).system_time)
        blamed: list[str] = []
        monkeypatch.setattr(bob.member, "penalise", lambda _peer, reason, _weight: blamed.append(reason))
        await world.spread(alice, "cities")
        await bob.parts.scheduler.pass_now(cities)
        mirror = bob.parts.scheduler.get(cities)
        assert (mirror.state, blamed, bob.size("theirs")) == (SchedulerState.REFUSED, [], before)
        view = await bob.dataset_view("theirs")
        assert (view.state, view.refused_by) == ("refused", "event-of-kind")
        assert state_text(view) == "refused by event-of-kind"
        (listed,) = await bob.mirrors()
        assert listed.state == "refused"
        assert f"block #{before}" in listed.message


def lie(node: Node, dataset: Any) -> None:
    """Add a block whose slice has the bytes it names but other rows than it says."""
    chain = node.home.chains.chain(dataset)
    state = load_state(chain)
    data = state.last_data.new_data
    wrong = msgspec.structs.replace(
        data,
        logical_hash=Multihash.from_bytes(bytes(data.logical_hash[:-1]) + bytes([data.logical_hash[-1] ^ 1])),
        offset_interval=type(data.offset_interval)(start=state.next_offset, end=state.next_offset + 1),
    )
    event = AddData(prev_offset=state.last_offset, new_data=wrong, new_watermark=state.watermark)
    commit_events(node.parts.committer, dataset, chain.head(), [event], state.system_time, [wrong.physical_hash])


async def test_a_hash_learned_elsewhere_must_be_there(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        with pytest.raises(Invalid, match="does not hold the block"):
            await bob.mirror(cities, "theirs", expect=str(Multihash.sha3_256(b"another")))
        assert bob.size("theirs") == 0
        known = str(alice.home.chains.chain(cities).block_at(1).hash)
        await bob.api.declarations.delete("Mirror", "theirs")
        assert (await bob.mirror(cities, "theirs", expect=known)).state == "current"


async def test_limits_are_obeyed_before_a_byte_is_asked_for(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        bob.parts.object_fetcher._limits = lambda: ObjectLimits(object_bytes=10)
        with pytest.raises(Refused, match="bytes"):
            await bob.mirror(cities, "theirs")
        bob.parts.object_fetcher._limits = lambda: ObjectLimits(disk_reserve=1 << 60)
        await bob.api.declarations.delete("Mirror", "theirs")
        with pytest.raises(Fault) as caught:
            await bob.mirror(cities, "theirs", want="data", serve="data")
        assert caught.value.rule == "disk-reserve"
        assert bob.member.received == 0


async def test_own_datasets_and_names_taken_are_refused(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        with pytest.raises(Refused, match="own"):
            await alice.mirror(cities, "again")
        await bob.mirror(cities, "theirs")
        with pytest.raises(Invalid, match="already the name"):
            await bob.mirror(alice.dataset("towns"), "theirs")
        with pytest.raises(Invalid, match="is here already"):
            await bob.mirror(cities, "other")
        with pytest.raises(Invalid):
            await bob.mirror(cities, "theirs", use="sometimes")


async def test_deleting_a_mirror_ends_it(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.heard_head(alice.size("cities"))
        await bob.mirror(cities, "theirs")
        await bob.api.declarations.delete("Dataset", "theirs")
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        await alice.pull("cities")
        await bob.heard_head(alice.size("cities"))
        assert bob.home.chains.datasets() == []
        assert await bob.mirrors() == []
        await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == alice.size("cities")


async def test_a_mirror_that_waits_holds_no_place_and_can_be_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odfd.services.network.mirror_wait.PATIENCE_SECONDS", 0.2)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        world.wires.cut(alice.member.peer_id)
        async with world.running("carol") as carol:
            view = await carol.mirror(cities, "theirs")
            assert view.state == "waiting"
            waits = carol.parts.scheduler.get(cities)
            await until(lambda: waits.message == "no connected peer serves it that far")
            monkeypatch.setattr("odfd.services.network.mirror_wait.PATIENCE_SECONDS", 60)
            task = carol.board.get(
                (await carol.api.mirrors.add(wire.MirrorRequest(source=view.id, as_name="theirs"))).id
            )
            await carol.api.declarations.delete("Mirror", "theirs")
            with trio.fail_after(PATIENCE):
                await task.finished.wait()
            assert isinstance(task.fault, NotFound)
        assert bob.member.peer_id


async def test_a_mirror_that_nobody_has_says_whom_it_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that waits for it names the dataset, what was tried, and what to do next."""
    monkeypatch.setattr("odfd.services.network.mirror_wait.PATIENCE_SECONDS", 0.0)
    nowhere = DatasetId.parse("did:odf:fed0103a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
    async with world.running("alice") as alice, world.running("bob") as bob:
        lack = (await bob.mirror(nowhere, "nowhere")).lack
        assert lack.detail.startswith(
            "no peer served nowhere (did:odf:fed0103…b8): asked 1 peer in 0 s, and received no signed head"
        )
        assert "odfctl mirror remove nowhere" in lack.hint
        (task,) = bob.board.list()
        assert task.report.message.startswith("asked 1 peer, waiting: ")
        assert alice.member.peer_id
        with pytest.raises(NotFound, match="nowhere has no blocks here") as refused:
            await bob.done(bob.api.verification.verify("nowhere", wire.VerifyRequest()))
        assert refused.value.hint == "odfctl pull nowhere"
    async with world.running("carol") as carol:
        lack = (await carol.mirror(nowhere, "nowhere")).lack
        assert "s no peer was connected" in lack.detail
        await carol.member.take_part()
        monkeypatch.setattr("odfd.services.network.mirror_wait.PATIENCE_SECONDS", 3600.0)
        with trio.fail_after(PATIENCE):
            lack = (await carol.mirror(nowhere, "nowhere")).lack
            kept = (await carol.mirror(nowhere, "nowhere", keep="30d")).lack
        assert lack.detail.endswith("this node is in no network, so no peer was asked")
        assert kept == lack, "a part of the data is not waited for either"


async def test_whoever_hears_a_head_may_ask_for_all_that_it_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered between a commit and its signature is not repeated after it."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        library, commit, answers = alice.parts.library, alice.home.chains.commit, []

        def asked_meanwhile(*given: Any) -> None:
            commit(*given)
            answers.append(library.size(cities))

        monkeypatch.setattr(alice.home.chains, "commit", asked_meanwhile)
        monkeypatch.setattr(alice.parts.outbox, "put_head", lambda *_: answers.append(library.size(cities)))
        before = alice.size("cities")
        world.write("alice", "b.csv", "2024-02-01T00:00:00Z,D,4")
        await alice.pull("cities")
        assert answers == [before, before + 1] == [before, alice.size("cities")]


async def test_serving_stays_within_reach(world: World) -> None:
    """Bob serves only what Dave attested, and nobody did."""
    group = model.Group(name="dave", keys=("did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9",))
    policy = model.Policy(serve="data & attested:1", validators=model.Validators(f=0, groups=(group,)))
    async with world.running("alice") as alice, world.running("bob", policy) as bob:
        await published(world, alice)
        towns = alice.dataset("towns")
        view = await bob.mirror(towns, "towns")
        assert (view.state, view.serving) == ("current", False)
        assert bob.parts.library.size(towns) == 3
        assert len(bob.parts.library.blocks(towns, 0, 1 << 20)) == 3
        names = list(bob.home.objects.names())
        assert names
        assert all(bob.parts.library.object_size(name) is None for name in names)


# A long way is gone in steps, each proven to be the beginning of what was signed before it is kept.


DAYS = 9


async def settled(node: Node, name: str, size: int) -> None:
    with trio.fail_after(PATIENCE):
        while node.size(name) < size:
            await node.parts.scheduler.get(node.dataset(name)).turned.wait()


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "STEP", 3)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks of each commit."""
    commits: list[int] = []
    commit = sync.MirrorSync._commit

    def count(self: Any, spec: Any, *more: Any) -> Any:
        commits.append(len(more[0].blocks))
        return commit(self, spec, *more)

    monkeypatch.setattr(sync.MirrorSync, "_commit", count)
    return commits


async def test_each_step_is_kept(world: World, short_steps: None, counted: list[int]) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        view = await bob.mirror(cities, "theirs")
        size = alice.size("cities")
        assert size > 9
        assert (view.state, view.blocks.have) == ("current", size)
        assert counted == [3] * (size // 3) + ([size % 3] if size % 3 else [])
        mine, theirs = (list(node.home.chains.chain(cities).raw_blocks(0, 99)) for node in (alice, bob))
        assert mine == theirs
        assert (await bob.api.datasets.tail("theirs", 5)).rows == (await alice.api.datasets.tail("cities", 5)).rows


async def test_the_next_step_is_fetched_while_one_is_kept(
    world: World, short_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    commit = sync.MirrorSync._commit

    def wait(self: Any, spec: Any, *more: Any) -> Any:
        assert asked.wait(PATIENCE), "nothing was asked for meanwhile"
        return commit(self, spec, *more)

    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        blocks = alice.parts.library.blocks

        def watched(dataset: Any, start: int, *more: Any) -> Any:
            if start == 3:
                asked.set()
            return blocks(dataset, start, *more)

        alice.parts.library.blocks = watched
        monkeypatch.setattr(sync.MirrorSync, "_commit", wait)
        assert (await bob.mirror(cities, "theirs")).state == "current"


@pytest.mark.slow
async def test_large_blocks_make_short_steps(world: World, monkeypatch: pytest.MonkeyPatch, counted: list[int]) -> None:
    """Attack T-PEER-08: unproven blocks of maximal size.

    Defence: at most 256 MiB of them wait; then the received part is proven and stored, or refused.

    As soon as more bytes wait than may, what is here is proven and kept; unless the whole is to show something.
    """
    monkeypatch.setattr(sinks, "MAX_PENDING_BYTES", 1000)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        alice.member.lies.blocks = lambda blocks: blocks[:2]
        known = str(alice.home.chains.chain(cities).block_at(1).hash)
        with pytest.raises(Refused, match="not yet proven"):
            await bob.mirror(cities, "theirs", expect=known)
        assert bob.size("theirs") == 0
        await bob.api.declarations.delete("Mirror", "theirs")
        view = await bob.mirror(cities, "theirs")
        assert (view.state, view.blocks.have) == ("current", alice.size("cities"))
        assert sum(counted) == alice.size("cities")
        assert len(counted) > 2


@pytest.mark.slow
async def test_what_nobody_proves_is_not_kept(world: World, short_steps: None) -> None:
    """Attack T-PEER-07: wrong blocks at the start of a long chain.

    Defence: each step is proven to be a prefix of the signed tree before it is stored.

    Alice gives good blocks and proofs that prove nothing, then none, then she mends her ways.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        library, prove = alice.parts.library, alice.parts.library.prove
        library.prove = lambda *args, **more: [bytes(32)] * 3
        await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 0
        library.prove = prove
        bob.parts.scheduler.poke(cities)
        await settled(bob, "theirs", alice.size("cities"))


@pytest.mark.slow
async def test_a_way_that_ends_in_the_middle_is_gone_on(world: World, short_steps: None) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        library, prove = alice.parts.library, alice.parts.library.prove

        def tired(dataset: Any, size: int, *, old: int | None = None, index: int | None = None) -> list[bytes]:
            if old is not None and old > 6:
                raise NotFound("not now")
            return prove(dataset, size, old=old, index=index)  # type: ignore[no-any-return]

        library.prove = tired
        await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 6
        library.prove = prove
        bob.parts.scheduler.poke(cities)
        await settled(bob, "theirs", alice.size("cities"))


async def test_others_are_fetched_while_slices_are_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were begun together are checked together; the line goes on with others, and with no more at once."""
    fetch, check = object_fetcher.ObjectFetcher._have, object_fetcher.check_event
    fetching = most = begun = 0
    more = threading.Event()

    async def counted(self: Any, *given: Any) -> Any:
        nonlocal fetching, most, begun
        fetching, begun = fetching + 1, begun + 1
        most = max(most, fetching)
        if begun > object_fetcher.AT_ONCE:
            more.set()
        try:
            return await fetch(self, *given)
        finally:
            fetching -= 1

    def checked(*given: Any) -> Any:
        assert more.wait(PATIENCE), "nothing is fetched until a check is done"
        return check(*given)

    monkeypatch.setattr(object_fetcher, "MAX_PACKED", 0)
    monkeypatch.setattr(object_fetcher.ObjectFetcher, "_have", counted)
    monkeypatch.setattr(object_fetcher, "check_event", checked)
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        assert (await bob.mirror(cities, "theirs", want="data", serve="data")).state == "current"
    assert begun == DAYS
    assert most <= object_fetcher.AT_ONCE


# What rows link to comes to mirrors with the rows, is passed on by them, and is believed as little as all else.


NAMES = [Multihash.sha3_256(each) for each in FILES]


async def publish_links(world: World, node: Node, folder: Path, *more: bytes) -> Any:
    """Two slices: the second links to one more file beside the first one's."""
    await node.apply(ROOT)
    cities = node.dataset("cities")
    commit(node, cities, [SetDataSchema(schema=schema())], [])
    append(node, cities, folder / "a", FILES)
    append(node, cities, folder / "b", [FILES[0], *more, b"a song"])
    await world.spread(node, "cities")
    return cities


def append(node: Node, dataset: Any, file: Path, files: list[bytes]) -> None:
    state = load_state(node.home.chains.chain(dataset))
    data = slice_at(file, [str(Multihash.sha3_256(each)) for each in files], state.next_offset)
    staged = node.home.objects.stage()
    staged.write_bytes(file.read_bytes())
    names = [node.home.objects.add_file(staged), *(node.home.objects.add_bytes(each) for each in files)]
    commit(node, dataset, [AddData(prev_offset=state.last_offset, new_data=data)], names)


def commit(node: Node, dataset: Any, events: list[Any], names: list[Multihash]) -> None:
    commit_events(
        node.parts.committer, dataset, node.home.chains.chain(dataset).head(), events, node.clock.now(), names
    )


def whole(node: Node, name: str = "theirs") -> bool:
    with node.home.database.read() as connection:
        checked = Ledger(connection).chain(node.dataset(name))
    return bool(checked.data == checked.frontier.size == node.size(name) > 0)


async def turn_until(node: Node, name: str, done: Any) -> None:
    with trio.fail_after(PATIENCE):
        while not done():
            mirror = node.parts.scheduler.get(node.dataset(name))
            mirror.poked.set()
            await mirror.turned.wait()


@pytest.mark.slow
async def test_it_comes_along_and_is_passed_on(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await publish_links(world, alice, tmp_path)
        assert (await bob.mirror(cities, "theirs")).state == "current"
        assert whole(bob)
        world.wires.cut(alice.member.peer_id)
        assert (await carol.mirror(cities, "theirs")).state == "current"
        assert (await carol.done(carol.api.verification.verify("theirs", wire.VerifyRequest(level="data")))).ok
        assert all(carol.home.objects.read(name) == each for name, each in zip(NAMES, FILES, strict=True))


async def test_it_is_on_offer_after_a_compaction_and_not_after_its_rows_went(world: World, tmp_path: Path) -> None:
    song = Multihash.sha3_256(b"a song")
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_links(world, alice, tmp_path)
        append(alice, cities, tmp_path / "c", [b"a play"])
        commit(alice, cities, [SetInfo(description="later")], [])
        append(alice, cities, tmp_path / "d", [b"a poem"])
        poem, before = Multihash.sha3_256(b"a poem"), alice.size("cities")
        request = wire.RewriteRequest(action="compact")
        done = await alice.done(alice.api.rewriting.rewrite("cities", request))
        assert (done.merged, done.into, alice.size("cities")) == (3, 1, before - 2)
        merged = alice.home.chains.chain(cities).block_at(done.kept).event.new_data.physical_hash
        with alice.home.database.read() as connection:
            for name, number in ((merged, done.kept), (song, done.kept), (NAMES[0], done.kept), (poem, done.kept + 2)):
                assert references_to(connection, name) == [(cities, number)]
            named, linked = (
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                for table in ("object_references", "object_links")
            )
        assert (named, linked) == ((2,), (len(FILES) + 3,)), "two slices, and what rows link to"
        await world.spread(alice, "cities")
        assert (await bob.mirror(cities, "theirs")).state == "current"
        assert whole(bob)
        assert bob.home.objects.read(song) == b"a song"
        for _ in range(2):
            await alice.done(alice.api.collection.collect(wire.CollectRequest()))
        assert alice.home.objects.read(song) == b"a song"
        await alice.done(alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="keep-metadata")))
        with alice.home.database.read() as connection:
            assert references_to(connection, song) == references_to(connection, poem) == []


async def test_without_it_nothing_counts_and_what_came_stays(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_links(world, alice, tmp_path)
        alice.home.objects.remove(NAMES[1])
        mirror = await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert NAMES[1].short in mirror.message
        assert bob.size("theirs") == 0
        before = bob.member.received
        alice.home.objects.add_bytes(FILES[1])
        await turn_until(bob, "theirs", lambda: mirror.state is SchedulerState.CURRENT)
        assert whole(bob)
        assert bob.member.received - before <= len(FILES[1]) + len(b"a song") + 8192


@pytest.mark.slow
@pytest.mark.parametrize("lie", [lambda _: 1 << 50, lambda size: size - 1, lambda size: size + 1])
async def test_a_size_that_is_a_lie_spoils_nothing(world: World, tmp_path: Path, lie: Any) -> None:
    """Attack T-PEER-07: a false size for an object that rows link to.

    Defence: it counts for that peer alone: the next one is asked, and the hash decides.
    """
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await publish_links(world, alice, tmp_path)
        assert (await carol.mirror(cities, "theirs")).state == "current"
        alice.member.lies.size = lie
        assert (await bob.mirror(cities, "theirs")).state == "current"
        assert whole(bob)


async def test_one_that_is_too_large_is_not_asked_for(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_links(world, alice, tmp_path)
        bob.parts.object_fetcher._limits = lambda: ObjectLimits(object_bytes=len(FILES[1]) - 1)
        mirror = await bob.mirror_in_vain(cities, "theirs", lambda mirror: bool(mirror.message))
        assert "object-bytes allows" in mirror.message
        assert not bob.home.objects.has(NAMES[1])
        bob.parts.object_fetcher._limits = lambda: ObjectLimits(disk_reserve=1 << 60)
        await turn_until(bob, "theirs", lambda: mirror.state is SchedulerState.FAILED)
        assert mirror.fault.rule == "disk-reserve"
        bob.parts.object_fetcher._limits = lambda: ObjectLimits()
        await turn_until(bob, "theirs", lambda: whole(bob))


@pytest.mark.slow
async def test_a_slice_that_links_to_too_much_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-PEER-08: rows that link to a flood of objects.

    Defence: at most 250,000 of one slice, read a page at a time; each within the limits for objects.

    Many links are read a page at a time; more than may be are refused, and nothing is kept.
    """
    monkeypatch.setattr(object_fetcher, "PAGE", 2)
    async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
        cities = await publish_links(world, alice, tmp_path, *(f"file {n}".encode() for n in range(9)))
        assert (await carol.mirror(cities, "theirs")).state == "current"
        assert whole(carol)
        monkeypatch.setattr(object_links, "MAX_LINKS", 10)
        with pytest.raises(Invalid, match="more than 10 objects linked from one slice"):
            await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == 0


async def test_chain_first_then_data_with_what_it_links_to(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_links(world, alice, tmp_path)
        await bob.mirror(cities, "theirs", want="chain")
        assert not any(bob.home.objects.has(name) for name in NAMES)
        await bob.mirror(cities, "theirs", want="data")
        await turn_until(bob, "theirs", lambda: whole(bob))
        assert all(bob.parts.library.object_size(name) == len(each) for name, each in zip(NAMES, FILES, strict=True))


async def test_a_cut_before_links_are_noted_is_mended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise Environment("the power went")

    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_links(world, alice, tmp_path)
        monkeypatch.setattr(sync, "note_links", cut)
        with pytest.raises(Environment, match="the power went"):
            await bob.mirror(cities, "theirs")
        assert bob.size("theirs") == alice.size("cities")
        assert not whole(bob)
        assert bob.parts.library.object_size(NAMES[0]) is None
        monkeypatch.undo()
        await turn_until(bob, "theirs", lambda: whole(bob))
        assert bob.parts.library.object_size(NAMES[0]) == len(FILES[0])


async def test_what_our_disk_spoilt_is_fetched_anew(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_links(world, alice, tmp_path)
        await bob.mirror(cities, "theirs")
        path = bob.home.objects.path(NAMES[1])
        path.chmod(0o644)
        path.write_bytes(b"another film")
        (item,) = await bob.pull("theirs", repair=True)
        assert (item.outcome, item.message) == ("updated", "1 damaged object made whole")
        assert bob.home.objects.read(NAMES[1]) == FILES[1]


async def test_an_import_passes_it_on_too(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        await publish_links(world, alice, tmp_path)
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(tmp_path / "out"))))
        await bob.done(bob.api.flow.import_(wire.ImportRequest(source=str(tmp_path / "out"), as_name="theirs")))
        with bob.home.database.read() as connection:
            assert all(references_to(connection, name) for name in NAMES)


# Slices of a few kilobytes, one in each block: few questions, no files, and nothing less is looked at.


async def publish_daily(world: World, node: Node) -> Any:
    """A dozen blocks, most of them with a slice."""
    await node.apply(ROOT)
    for day in range(1, DAYS + 1):
        world.write("alice", f"a{day}.csv", f"2024-01-{day:02}T00:00:00Z,Graz,{day}")
        await node.pull("cities")
    await world.spread(node, "cities")
    return node.dataset("cities")


def slices(node: Node, name: str) -> list[Any]:
    chain = node.home.chains.chain(node.dataset(name))
    events = [chain.block_at(number).event for number in range(node.size(name))]
    return [event.new_data.physical_hash for event in events if isinstance(event, AddData) and event.new_data]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects each question of any node was for."""
    asked: list[int] = []
    small, one = ReplicationDriver.fetch_small, ReplicationDriver.fetch_object

    async def some(self: Any, peers: Any, names: Any, *more: Any) -> None:
        asked.append(len(names))
        await small(self, peers, names, *more)

    async def alone(self: Any, *more: Any) -> None:
        asked.append(1)
        await one(self, *more)

    monkeypatch.setattr(ReplicationDriver, "fetch_small", some)
    monkeypatch.setattr(ReplicationDriver, "fetch_object", alone)
    return asked


def test_what_is_packed_is_what_lies_in_the_database() -> None:
    assert MAX_PACKED == SMALL


async def test_they_come_together_and_no_file_is_made(
    world: World, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        files: list[Any] = []
        path = DiskObjects.path

        def noted(self: DiskObjects, name: Any) -> Any:
            if self is bob.home.objects:  # those of others are at work too
                files.append(name)
            return path(self, name)

        monkeypatch.setattr(DiskObjects, "path", noted)
        view = await bob.mirror(cities, "theirs")
        names = slices(alice, "cities")
        assert len(names) > 4
        assert (view.state, asked, files) == ("current", [len(names)], [])
        assert all(map(bob.home.objects.has, names))
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))).ok


async def test_one_that_nobody_has_is_named_and_the_others_stay(world: World, asked: list[int]) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        names = slices(alice, "cities")
        data = alice.home.objects.read(names[4])
        alice.home.objects.remove(names[4])
        mirror = await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 0
        assert [bob.home.objects.has(name) for name in names[:5]] == [True] * 4 + [False]
        alice.home.objects.add_bytes(data)
        asked.clear()
        bob.parts.scheduler.poke(cities)
        with trio.fail_after(PATIENCE):
            while bob.size("theirs") < alice.size("cities"):
                await mirror.turned.wait()
        assert sum(asked) <= len(names) - 4, "what came is not asked for again"


async def test_a_flipped_byte_is_never_kept(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await publish_daily(world, alice)
        alice.member.lies.object = lambda data: bytes([data[0] ^ 1]) + data[1:]
        await bob.mirror_in_vain(cities, "theirs", lambda mirror: mirror.state is SchedulerState.STALLED)
        assert bob.size("theirs") == 0
        assert not any(bob.home.objects.has(name) for name in slices(alice, "cities"))


def test_large_ones_go_alone() -> None:
    sizes = [1, 1, MAX_PACKED + 1, 1, MAX_PACKED, *[2] * 200]
    groups = list(together(iter([(None, brings(size)) for size in sizes])))  # type: ignore[misc]
    assert [len(group) for group in groups] == [2, 1, 128, 74]


def brings(size: int) -> Any:
    from chain.model.block import SealedBlock
    from chain.multihash import Multihash

    name = Multihash.sha3_256(b"")
    return SealedBlock(b"", name, None, 1, 1, ((name, size),))
