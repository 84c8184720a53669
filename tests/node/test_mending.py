"""Damage to what a node holds: found whatever bit flips and whoever writes, told, not given away, mended."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.errors import Conflict, Environment, Fault, NotFound
from chain.ids import DatasetId
from chain.model.events import SetInfo
from chain.multihash import Multihash
from chain.state import load_state
from chain.store import sqlite
from chain.store.sqlite import SqliteChain
from config import model
from odfd.control import wire
from odfd.datasets.commit import Commit, CommitPart
from odfd.services.datasets import damage as registry
from odfd.services.maintenance.doctor import Doctor
from odfd.store.damage import Damage, DamagedBlock
from odfd.store.ledger.log import Ledger
from odfd.store.references import objects_of, references_to
from odfd.verify.verify import VerificationRequest, verify_chain
from p2p.driver import serve
from p2p.wire import chains, objects
from p2p.wire.frames import PREFIX
from p2p.wire.refusal import PeerRefusal, RefusalReason
from worlds.depth import share
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, run_apart

# Damage to what a node holds: told, never given to others, and mended from whoever has it whole.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
BIG = tuple(f"2024-01-01T00:00:{number % 60:02}Z,{number * 7919 % 10**9:x}-{number},{number}" for number in range(8000))
THIS = "dataset = (SELECT number FROM datasets WHERE id = :id)"


async def published(world: World, node: Node, *rows: str) -> DatasetId:
    await node.apply(ROOT)
    for number, some in enumerate((rows or ROWS, ("2024-02-03T00:00:00Z,Wels,60000",))):
        world.write("alice", f"{number}.csv", *some)
        await node.pull()
    await world.spread(node, "cities")
    found: DatasetId = node.dataset("cities")
    return found


def harm(node: Node, dataset: DatasetId, *statements: str) -> None:
    with node.home.database.write() as connection:
        for statement in statements:
            assert connection.execute(statement, {"id": dataset} if ":id" in statement else {}).rowcount > 0


def flip_bytes(node: Node, table: str, column: str, where: str, values: tuple[Any, ...], at: int = 20) -> None:
    with node.home.database.write() as connection:
        (raw,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}", values).fetchone()
        spoilt = raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (spoilt, *values))


def flip_block(node: Node, dataset: DatasetId, number: int, column: str = "raw") -> None:
    flip_bytes(node, "blocks", column, "dataset = (SELECT number FROM datasets WHERE id = ?) AND sequence = ?",
               (dataset, number))  # fmt: skip


async def verified(node: Node, name: str) -> Any:
    return await node.done(node.api.verification.verify(name, wire.VerifyRequest()))


def blocks(node: Node, dataset: DatasetId) -> list[bytes]:
    return list(node.home.chains.chain(dataset).raw_blocks(0, 99))


async def repaired(node: Node, name: str) -> Any:
    (item,) = await node.pull(name, repair=True)
    return item


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
async def test_a_damaged_block_of_a_mirror_is_fetched_anew(world: World, number: int) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        flip_block(bob, cities, number)
        report = await verified(bob, "theirs")
        assert report.failures[0].block.sequence_number == number
        assert report.failures[0].rule == "block-hash"
        item = await repaired(bob, "theirs")
        assert (item.outcome, item.message) == ("updated", "1 damaged block made whole")
        assert blocks(bob, cities) == blocks(alice, cities)
        assert (await verified(bob, "theirs")).ok
        assert (await repaired(bob, "theirs")).outcome == "up-to-date"


async def test_an_owner_is_mended_by_its_mirror(world: World) -> None:
    """Attack T-DISK-01: blocks lost by a mirror, or by their owner.

    Defence: bytes of the right hash from any holder, if the tree then equals the checked one.
    """
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        whole = blocks(alice, cities)
        for number in (1, 4):
            flip_block(alice, cities, number)
        item = await repaired(alice, "cities")
        assert item.message == "2 damaged blocks made whole"
        assert blocks(alice, cities) == whole
        world.write("alice", "9.csv", "2024-03-03T00:00:00Z,Enns,12000")
        assert [each.outcome for each in await alice.pull("cities")] == ["updated"]
        assert (await verified(alice, "cities")).ok


HARMS: dict[str, tuple[str, ...]] = {
    "name": (f"UPDATE blocks SET hash = zeroblob(34) WHERE {THIS} AND sequence = 2",),
    "kind": (f"UPDATE blocks SET kind = 3 WHERE {THIS} AND sequence = 2",),
    "place": (f"UPDATE blocks SET sequence = 66 WHERE {THIS} AND sequence = 2",),
    "place before all": (f"UPDATE blocks SET sequence = -126 WHERE {THIS} AND sequence = 2",),
    "last place": (f"UPDATE blocks SET sequence = 35 WHERE {THIS} AND sequence = 4",),
    "head": ("UPDATE datasets SET head_hash = zeroblob(34) WHERE id = :id",),
    "size more": ("UPDATE datasets SET head_sequence = 67 WHERE id = :id",),
    "size less": ("UPDATE datasets SET head_sequence = 1 WHERE id = :id",),
    "tree": ("UPDATE trust_chains SET frontier = zeroblob(length(frontier)) WHERE dataset = :id",),
    "checked": ("UPDATE trust_chains SET data = 9 WHERE dataset = :id",),
    "epoch": ("UPDATE trust_chains SET epoch = 1 WHERE dataset = :id",),
    "statement": ("UPDATE trust_live SET payload = zeroblob(100) WHERE dataset = :id",),
    "envelope": ("UPDATE trust_live SET envelope = zeroblob(100) WHERE dataset = :id",),
    "reference": ("UPDATE object_references SET object = zeroblob(34) WHERE dataset = :id AND sequence = 4",),
    "reference's place": ("UPDATE object_references SET sequence = 3 WHERE dataset = :id AND sequence = 4",),
}


@pytest.mark.parametrize("what", HARMS)
async def test_what_is_spoilt_around_blocks_is_mended_alone(world: World, what: str) -> None:
    """Without any peer: the bytes of the blocks are all there."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        whole, size = blocks(alice, cities), alice.size("cities")
        with alice.home.database.read() as connection:
            checked = connection.execute("SELECT * FROM trust_chains").fetchall()
        assert size == 5
        harm(alice, cities, *HARMS[what])
        item = await repaired(alice, "cities")
        assert item.outcome == "updated", item
        assert blocks(alice, cities) == whole
        assert alice.size("cities") == size
        with alice.home.database.read() as connection:
            assert connection.execute("SELECT * FROM trust_chains").fetchall() == checked
        assert (await verified(alice, "cities")).ok
        await trio.to_thread.run_sync(alice.parts.committer.sign_unsigned, cities)
        view = await alice.dataset_view("cities")
        assert (view.state, view.rely_on.blocks) == ("fresh", size)


async def test_what_nobody_has_is_said(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        flip_block(alice, cities, 2)
        item = await repaired(alice, "cities")
        assert item.outcome == "failed"
        assert "no connected peer has 1 block" in item.message
        assert "#2" in item.message


async def test_a_liar_mends_nothing(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await bob.mirror(cities, "theirs")
        flip_block(bob, cities, 2)
        alice.member.lies.blocks = lambda given: [raw[:-1] + bytes([raw[-1] ^ 1]) for raw in given]
        assert (await repaired(bob, "theirs")).outcome == "failed"
        alice.member.lies.blocks = lambda given: list(reversed(given))
        assert (await repaired(bob, "theirs")).outcome == "failed"
        alice.member.lies.blocks = list
        assert (await repaired(bob, "theirs")).outcome == "updated"


async def heard_damage(node: Node) -> str:
    (event,) = await node.heard("damage.found")
    return str(event.message)


async def test_a_damaged_block_never_leaves(world: World) -> None:
    """Attack T-DISK-01: a damaged block, sent to a peer.

    Defence: each block is hashed when it is sent; a damaged one is not sent, the blocks before it are.
    """
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        flip_block(alice, cities, 2)
        library = alice.parts.library
        assert len(library.blocks(cities, 0, 10**6)) == 2
        with pytest.raises(Environment, match="block #2 is damaged"):
            library.blocks(cities, 2, 10**6)
        assert "block #2" in await heard_damage(alice)
        (view,) = await alice.dataset_views()
        assert (view.state, view.rely_on.blocks, view.rely_on.fact[:19]) == ("damaged", 0, "block #2 is damaged")
        with alice.home.database.read() as connection:
            assert [spot.sequence for spot in Damage(connection).of(cities)] == [2]


async def test_blocks_out_of_place_and_hashes_that_are_not_theirs_never_leave(world: World) -> None:
    """Attack T-DISK-01: a proof over a damaged hash.

    Defence: the tree must equal the one that was checked.
    """
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        library = alice.parts.library
        assert library.prove(cities, 5, old=2)
        flip_block(alice, cities, 1, "hash")
        with pytest.raises(Environment, match="not those that were checked"):
            library.prove(cities, 5, old=2)
        harm(alice, cities, HARMS["place"][0], "DELETE FROM trust_chains WHERE dataset = :id")
        with pytest.raises(Environment, match="not all blocks from"):
            library._prover.prove(cities, 5, old=2)
        with pytest.raises(Environment, match="not at its position"):
            list(alice.home.chains.chain(cities).raw_blocks(2, 5))


def large_file(node: Node) -> Path:
    (path,) = [each for each in (node.home.directory / "objects").rglob("f1620*") if each.stat().st_size > 65536]
    return path


def rot(path: Path, at: int) -> None:
    """A bit turns on the disk; nothing that the system keeps of the file tells."""
    stat = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 8]))
    path.chmod(0o444)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


async def test_rot_below_a_file_that_was_given_before_never_leaves(world: World) -> None:
    """Attack T-DISK-01: a damaged object, sent to a peer.

    Defence: each byte is hashed when it is sent; a damaged object counts as missing for others, and is recorded.
    """
    async with world.running("alice") as alice:
        await published(world, alice, *BIG)
        path = large_file(alice)
        name, size = Multihash.parse(path.name), path.stat().st_size
        library = alice.parts.library
        assert library.object_size(name) == size
        assert library.read_object(name, 1000, 70000) == path.read_bytes()[1000:71000]
        rot(path, 60_000)
        with pytest.raises(NotFound, match="not served"):
            library.read_object(name, 1000, 10)
        assert "is damaged" in await heard_damage(alice)
        assert library.object_size(name) is None
        report = await verified(alice, "cities")
        assert report.failures[0].rule == "slice-physical-hash"
        assert (await alice.dataset_view("cities")).rely_on.blocks == 3
        rot(path, 60_000)
        assert (await verified(alice, "cities")).ok
        assert (await alice.dataset_view("cities")).rely_on.blocks == 5
        assert library.read_object(name, 0, size) == path.read_bytes()


async def test_what_is_given_part_by_part_is_looked_up_again_when_something_was_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as alice:
        await published(world, alice, *BIG)
        name = Multihash.parse(large_file(alice).name)
        library, looked = alice.parts.library, []

        def counted(*given: Any) -> Any:
            looked.append(given)
            return references_to(*given)

        monkeypatch.setattr("odfd.network.library.references_to", counted)
        now = library._clock()  # the world's clock goes on at each look at it
        monkeypatch.setattr(library, "_clock", lambda: now)
        part = memoryview(bytearray(1000))
        for offset in range(0, 50_000, 1000):
            assert library.object_part(name, offset, part)[1] == 1000
        assert len(looked) == 1
        await alice.api.declarations.delete("Dataset", "cities")
        with pytest.raises(NotFound):
            library.object_part(name, 0, part)


async def test_a_mirror_mends_by_itself_what_it_finds_when_asked(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice, *BIG)
        await bob.mirror(cities, "theirs")
        path = large_file(bob)
        data = path.read_bytes()
        rot(path, 60_000)
        assert bob.parts.library.object_size(Multihash.parse(path.name)) is None
        with trio.fail_after(PATIENCE):
            while not path.exists() or path.read_bytes() != data:
                await bob.parts.scheduler.get(cities).turned.wait()
        assert bob.parts.library.object_size(Multihash.parse(path.name)) == len(data)


async def test_nothing_is_derived_from_a_damaged_slice(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice, *BIG)
        await alice.apply(DERIVED)
        path = large_file(alice)
        rot(path, 60_000)
        (item,) = await alice.pull("towns")
        assert item.outcome == "failed"
        assert "is damaged on disk" in item.message
        rot(path, 60_000)
        assert [each.outcome for each in await alice.pull("towns")] == ["updated"]


async def test_who_asks_for_what_is_damaged_gets_an_honest_no(world: World) -> None:
    """The very bytes that would go to the wire."""
    async with world.running("alice") as alice:
        cities = await published(world, alice, *BIG)
        path = large_file(alice)
        name = Multihash.parse(path.name)
        wanted = objects.ObjectRange(request=7, name=name, offset=0, length=1000)
        chain = chains.BlockRange(request=8, dataset=cities, start=3, max_blocks=10)
        library = alice.parts.library
        whole = objects.decode_object_reply(bytes(serve.answer(library, wanted, deque())[PREFIX:]))
        assert isinstance(whole, objects.ObjectBytes)
        assert whole.data == path.read_bytes()[:1000]
        rot(path, 200)
        refused = objects.decode_object_reply(bytes(serve.answer(library, wanted, deque())[PREFIX:]))
        assert isinstance(refused, PeerRefusal)
        assert refused.reason is RefusalReason.UNKNOWN
        flip_block(alice, cities, 3)
        refused = chains.decode_chain_reply(bytes(serve.answer(library, chain, deque())[PREFIX:]))
        assert isinstance(refused, PeerRefusal)
        assert refused.reason in (RefusalReason.BROKEN, RefusalReason.UNKNOWN)
        with alice.home.database.read() as connection:
            assert {spot.sequence for spot in Damage(connection).of(cities)} == {3}


# Verification while others write: it finds what is damaged, and nothing that is not; and so does mending.


NUMBERS = itertools.count()
SOAKS = "ODF_SOAK" in os.environ
ROUNDS = 1000 if SOAKS else 34
"""Changes of a dataset that is verified all the while, at least half as often."""


def write(world: World, count: int = 1) -> None:
    for _ in range(count):
        number = next(NUMBERS)
        seconds = f"2024-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        world.write("alice", f"{number:06}.csv", f"{seconds},town {number},{number}")


async def pull_files(world: World, node: Node, files: int = 6) -> DatasetId:
    write(world, files)
    await node.apply(ROOT)
    await node.pull()
    found: DatasetId = node.dataset("cities")
    return found


async def verify_whole(node: Node, ref: str, level: str = "data") -> Any:
    return await node.done(node.api.verification.verify(ref, wire.VerifyRequest(level=level, full=True)))


async def append(world: World, node: Node) -> None:
    write(world)
    await node.pull("cities")


async def describe(node: Node, dataset: DatasetId, number: int) -> None:
    """The cheapest append there is."""
    head = node.home.chains.chain(dataset).head()
    events = [SetInfo(description=f"{number}")]
    part = CommitPart(dataset=dataset, expected=head, events=events, time=node.clock.now())
    await node.parts.committer.commit(Commit(parts=(part,)))


async def reset(world: World, node: Node) -> None:
    """To where it was a block ago, and another one in its place."""
    size = node.size("cities")
    if size > 4:
        await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to=f"#{size - 2}")))
        await append(world, node)


async def compact(world: World, node: Node) -> None:
    await node.done(node.api.rewriting.rewrite("cities", wire.RewriteRequest(action="compact")))
    await node.done(node.api.collection.collect(wire.CollectRequest()))
    await node.done(node.api.collection.collect(wire.CollectRequest()))


ACTIONS = {"append": append, "reset": reset, "compact": compact}


def believed(node: Node, dataset: DatasetId) -> tuple[list[DamagedBlock], int, int]:
    """Damage that is noted; how many blocks are there, and how many are relied on."""
    with node.home.database.read() as connection:
        checked = Ledger(connection).chain(dataset)
        return Damage(connection).of(dataset), checked.frontier.size, checked.data


class Between:
    """Does something on the event loop before pages of blocks are read, while the reader's thread waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
        self.waiting: list[Callable[[], Any]] = []
        self._is_busy = False
        page = SqliteChain._page
        monkeypatch.setattr(sqlite, "PAGE_BLOCKS", blocks)
        monkeypatch.setattr(sqlite, "_HANDFUL", blocks)
        monkeypatch.setattr(sqlite, "PAGE_BYTES", 1)

        def look(chain: SqliteChain, start: int, stop: int) -> Any:
            if self.waiting and not self._is_busy:
                self._is_busy = True
                try:
                    trio.from_thread.run(self.waiting.pop(0))
                finally:
                    self._is_busy = False
            return page(chain, start, stop)

        monkeypatch.setattr(SqliteChain, "_page", look)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("level", ["chain", "data"])
async def test_a_verification_ends_where_it_began(
    world: World, monkeypatch: pytest.MonkeyPatch, action: str, level: str
) -> None:
    async with world.running("alice") as alice:
        cities = await pull_files(world, alice)
        between = Between(monkeypatch, 2)
        for place in range(4):
            between.waiting = [trio.lowlevel.checkpoint] * place + [lambda: ACTIONS[action](world, alice)]
            report = await verify_whole(alice, "cities", level)
            between.waiting = []
            assert report.ok, report.failures
            damage, size, relied = believed(alice, cities)
            assert (damage, relied) == ([], size)
        assert "damage.found" not in alice.kinds()


@pytest.mark.slow
@settings(max_examples=share(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(["", *ACTIONS]), max_size=5), min_size=1, max_size=4))
def test_whatever_happens_between_two_pages(tmp_path: Path, lots: list[list[str]]) -> None:
    async def lives(world: World) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            async with world.running("alice") as alice:
                cities = await pull_files(world, alice)
                between = Between(monkeypatch, 2)
                for lot in lots:
                    between.waiting = [
                        (lambda name=name: ACTIONS[name](world, alice)) if name else trio.lowlevel.checkpoint
                        for name in lot
                    ]
                    report = await verify_whole(alice, "cities")
                    between.waiting = []
                    assert report.ok, report.failures
                    damage, size, relied = believed(alice, cities)
                    assert (damage, relied) == ([], size)

    run_apart(tmp_path, lives)


@pytest.mark.slow
async def test_what_is_damaged_is_found_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        cities = await pull_files(world, alice)
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM small_objects WHERE name IN (SELECT object FROM object_references"
                               " WHERE dataset = ? AND sequence = 4)", (cities,))  # fmt: skip
        between = Between(monkeypatch, 2)
        between.waiting = [lambda: append(world, alice)] * 3
        report = await verify_whole(alice, "cities")
        assert [failure.rule for failure in report.failures] == ["slice-missing"]
        damage, size, relied = believed(alice, cities)
        assert ([spot.sequence for spot in damage], relied) == ([4], 4)
        assert size > 9
        await append(world, alice)
        assert believed(alice, cities)[2] == 4
        between.waiting = [lambda: ACTIONS["reset"](world, alice)]
        report = await verify_whole(alice, "cities")
        assert [failure.rule for failure in report.failures] == ["slice-missing"]


async def test_damage_of_a_history_that_is_gone_is_not_noted(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await pull_files(world, alice)
        with alice.home.database.read() as connection:
            seen = registry.conditions(connection, cities)
        spots = [DamagedBlock(7, "slice-missing", "it is not here")]
        await reset(world, alice)
        assert not alice.parts.damage.record(cities, spots, seen)
        assert believed(alice, cities)[0] == []
        with alice.home.database.read() as connection:
            seen = registry.conditions(connection, cities)
        await append(world, alice)
        assert alice.parts.damage.record(cities, spots, seen)
        alice.parts.damage.whole(cities, 7, seen)
        assert believed(alice, cities)[0] == spots
        await reset(world, alice)
        alice.parts.damage.whole(cities, 99, seen)
        assert believed(alice, cities)[0] == spots
        # What is given away is found damaged by its bytes; but it may have been given up since they were read.
        assert not alice.parts.damage.record(cities, [DamagedBlock(99, "stored-block-damaged", "its bytes")])


async def test_a_dataset_that_never_rests_is_looked_at_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is overtaken by another history and finds blocks of both, until those who write it have to wait."""
    async with world.running("alice") as alice:
        cities = await pull_files(world, alice)
        looked, look = [], registry.verify_chain

        def torn(*args: Any) -> Any:
            found = look(*args)
            looked.append(1)
            if len(looked) <= registry.ATTEMPTS:
                trio.from_thread.run(reset, world, alice)
                failure = [wire.Failure(block=wire.FailedBlock(hash="", sequence_number=3), rule="r", message="m")]
                return type(found)(**{**{f: getattr(found, f) for f in found.__struct_fields__}, "ok": False,
                                      "failures": tuple(failure)})  # fmt: skip
            return found

        monkeypatch.setattr(registry, "verify_chain", torn)
        assert (await verify_whole(alice, "cities")).ok
        assert len(looked) == registry.ATTEMPTS + 1
        assert believed(alice, cities)[0] == []


async def test_a_mirror_is_not_damaged_while_its_data_is_on_its_way(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await pull_files(world, alice)
        async with world.running("bob") as bob:
            await bob.mirror(cities, "theirs", want="chain")
            size = bob.size("theirs")
            world.wires.cut(alice.member.peer_id)
            await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="theirs", want="data"))
            report = await verify_whole(bob, "theirs")
            assert (report.ok, report.checked.slices, report.checked.to_come) == (True, 0, 6)
            assert believed(bob, cities) == ([], size, 0)
            world.wires.heal()
            await bob.pull("theirs")
            report = await verify_whole(bob, "theirs")
            assert (report.ok, report.checked.slices, report.checked.to_come) == (True, 6, 0)
            with bob.home.database.write() as connection:
                connection.execute("DELETE FROM small_objects")
            report = await verify_whole(bob, "theirs")
            assert (report.ok, len(report.failures)) == (False, 6)


async def test_mending_takes_nothing_back(world: World) -> None:
    """A chain that grew while it was looked at keeps what came."""
    async with world.running("alice") as alice:
        cities = await pull_files(world, alice)
        chains = alice.home.chains
        mark, head = chains.mark(cities), chains.chain(cities).head()
        await append(world, alice)
        with pytest.raises(Conflict):
            chains.mend(cities, mark, head, [])
        assert chains.chain(cities).head().size == head.size + 1


async def test_the_doctor_and_proofs_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await pull_files(world, alice)
        between = Between(monkeypatch, 2)
        for action in (append, reset, compact):
            between.waiting = [lambda action=action: action(world, alice)]
            found = {probe.name: probe async for probe in alice.api.about.examine()}
            assert found["chains"].result == "ok", found["chains"]


@pytest.mark.slow
async def test_many_verifications_during_many_changes(world: World) -> None:
    follow = model.Policy(rewrite=model.Rewrite(follow="follow"))
    async with world.running("alice") as alice, world.running("bob", follow) as bob:
        cities = await pull_files(world, alice)
        await bob.mirror(cities, "theirs")
        done = trio.Event()
        looks = {"cities": 0, "theirs": 0}
        wrong: list[Any] = []

        async def change() -> None:
            for number in itertools.count():
                if number >= ROUNDS and min(looks.values()) >= ROUNDS // 2:
                    break
                if number % 50 == 49:
                    await compact(world, alice)
                elif number % 25 == 24:
                    await reset(world, alice)
                elif number % 20 == 19:
                    await append(world, alice)
                else:
                    await describe(alice, cities, number)
            done.set()

        async def look(node: Node, name: str) -> None:
            while not done.is_set():
                report = await verify_whole(node, name, "data" if looks[name] % 2 else "chain")
                wrong.extend(report.failures)
                looks[name] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            nursery.start_soon(look, alice, "cities")
            nursery.start_soon(look, bob, "theirs")
        assert wrong == []
        for node in (alice, bob):
            damage, size, relied = believed(node, cities)
            assert (damage, relied) == ([], size)
            assert "damage.found" not in node.kinds()


# One bit flips somewhere in a node's state directory: it is found and named, or it changed nothing anyone can ask
# for. Whichever it is, nothing wrong is given to others, and nothing ends in a traceback. ODF_FLIPS=5000 makes it a
# long run.


FLIPS = int(os.environ.get("ODF_FLIPS", "40"))
GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
KILLED = "killed"
"""Alice, at the end of a life that has not ended in order: what she did last is in the database's log alone."""
IDLE = ("lock", "control.token", "reserve")
"""Files that a life writes anew, or of which nothing is read."""
MISSED = "a fault"
"""In place of an answer that a fault was given for."""
Answers: TypeAlias = dict[str, Any]


class Truth:
    """What two nodes said before anything was spoilt: an owner with datasets of all kinds, and a mirror of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.datasets: dict[str, list[DatasetId]] = {}
        self.objects: dict[str, list[Multihash]] = {}
        self.answers: dict[str, Answers] = {}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    made = Truth(tmp_path_factory.mktemp("truth"))

    async def live() -> None:
        world = World(made.folder)
        async with world.running("alice") as alice, world.running("bob") as bob:
            await alice.apply(ROOT, DERIVED)
            for name, rows in (("a.csv", BIG), ("b.csv", ("2024-01-03T00:00:00Z,Wels,60000",))):
                world.write("alice", name, *rows)
                await alice.pull()
            await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / "airlines"))))
            await world.spread(alice, "cities", "towns")
            for name in ("cities", "towns"):
                await bob.mirror(alice.dataset(name), name)
            for node in (alice, bob):
                for name in ("cities", "towns"):
                    assert (await node.done(node.api.verification.verify(name, wire.VerifyRequest()))).ok
            shutil.copytree(made.folder / "alice" / "state", made.folder / KILLED / "state")

    trio.run(live)
    # Being opened, it would be put in order.
    shutil.copytree(made.folder / KILLED, made.folder / "kept" / KILLED)
    for name in ("alice", "bob", KILLED):
        with opened(made.folder, name) as node:
            chains = node.home.chains
            made.datasets[name] = list(chains.datasets())
            made.objects[name] = [
                named
                for dataset in made.datasets[name]
                for number in range(chains.chain(dataset).snapshot().head.size)
                for named, _ in objects_of(chains.chain(dataset).block_at(number))
            ]
            made.answers[name] = answers(node, made, name)
            assert findings(node, made, name) == []
            assert node.home.recovery.was_killed is (name == KILLED)
    shutil.rmtree(made.folder / KILLED)
    shutil.move(made.folder / "kept" / KILLED, made.folder / KILLED)
    return made


class opened:
    """A node on a state directory, not running."""

    def __init__(self, folder: Path, name: str) -> None:
        self._world = World(folder)
        self._name = name

    def __enter__(self) -> Any:
        try:
            return self._world.node(self._name)
        except BaseException:
            self._world.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._world.close()


def answers(node: Node, truth: Truth, name: str) -> Answers:
    """Everything that others, and the parts of the node itself, can ask; MISSED where a fault is the answer."""
    found: Answers = {}

    def ask(what: str, question: Callable[[], Any]) -> None:
        try:
            found[what] = question()
        except Fault:
            found[what] = MISSED

    library, board = node.parts.library, node.parts.board
    told = truth.answers.get(name)
    for dataset in truth.datasets[name]:
        chain = node.home.chains.chain(dataset)
        ask(f"blocks {dataset}", lambda d=dataset: library.blocks(d, 0, 10**9))
        served = len((told or found)[f"blocks {dataset}"])
        if served:
            ask(f"proof {dataset}", lambda d=dataset, s=served: library.prove(d, s, old=2))
        ask(f"view {dataset}", lambda d=dataset: node.parts.views.dataset(entry(node, d)))
        ask(f"state {dataset}", lambda c=chain: load_state(c))
        ask(f"owned {dataset}", lambda d=dataset: node.home.keys.has_dataset_key(d))
    for each in truth.objects[name]:
        ask(f"object {each}", lambda o=each: (library.object_size(o), library.read_object(o, 0, 10**9)))
    ask("refs", lambda: sorted((bytes(ref.sid), bytes(ref.dataset)) for ref in board.refs()))
    for sid, _ in (told or found)["refs"]:
        ask(f"envelope {sid.hex()}", lambda s=sid: board.envelope(Multihash(s)))
    ask("names", lambda: [(each.name, each.id) for each in catalog(node)])
    ask("key", lambda: node.home.keys.node_seed())
    return found


def catalog(node: Node) -> list[Any]:
    with node.home.catalog() as catalog:
        return list(catalog.entries())


def entry(node: Node, dataset: DatasetId) -> Any:
    with node.home.catalog() as catalog:
        return catalog.resolve(str(dataset))


def findings(node: Node, truth: Truth, name: str) -> list[str]:
    """What verification and the doctor say."""
    found: list[str] = []
    for dataset in truth.datasets[name]:
        try:
            report = verify_chain(
                node.home.chains.chain(dataset), node.home.objects, VerificationRequest(ref="x", workers=1)
            )
            found += [f"verify: {failure.rule}: {failure.message}" for failure in report.failures]
        except Fault as fault:
            found.append(f"verify: {fault.rule}: {fault}")
    clock = wire.Probe(name="clock", result="ok", message="")
    for probe in Doctor(node.home, node.parts.visibility, dict, {"clock": lambda: clock}).deep():
        if probe.result == "failed":
            assert probe.hint, probe
            found.append(f"{probe.name}: {probe.message}")
    return found


def check_given(got: Answers, truth: Answers, story: str) -> None:
    """What leaves is true, or does not leave."""
    for what, answer in got.items():
        kind = what.split(" ", maxsplit=1)[0]
        if answer == MISSED or kind not in ("blocks", "proof", "object", "envelope"):
            continue
        if kind == "blocks":
            assert answer == truth[what][: len(answer)], f"{story}: {what} is wrong"
        else:
            assert answer in (truth[what], None), f"{story}: {what} is wrong"


def victims(folder: Path, only: str) -> Iterator[tuple[Path, int]]:
    """Files, with their weights: much of what could be wrong is in few bytes."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size]
    for file in files:
        if ".small" not in file.parts and file.name not in IDLE and file.name.startswith(only):
            yield file, {"keys": 400, "objects": 1500}.get(file.relative_to(folder).parts[0], 12_000)


def flip(lot: random.Random, folder: Path, home: Path, only: str) -> str:
    files = list(victims(home, only))
    chosen = lot.choices([file for file, _ in files], [weight for _, weight in files])[0]
    victim = folder / chosen.relative_to(home)
    victim.chmod(0o644)
    raw, bit = victim.read_bytes(), lot.randrange(8)
    # Most of a small database is room for more.
    used = np.flatnonzero(np.frombuffer(raw, np.uint8))
    at = int(used[lot.randrange(len(used))]) if lot.random() < 0.8 else lot.randrange(len(raw))
    with victim.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return f"{chosen.relative_to(home)}, byte {at}, bit {bit}"


def outcomes(seeds: range, name: str, only: str, truth: Truth, folder: Path) -> Counter[str]:
    """One flip a seed in a file of a copy of this node's state, whose name begins so; how each ended."""
    ends: Counter[str] = Counter()
    for seed in seeds:
        lot = random.Random(f"flip/{seed}")
        copy = folder / name / "state"
        shutil.copytree(truth.folder / name / "state", copy)
        story = f"seed {seed}: {name}: {flip(lot, copy, truth.folder / name / 'state', only)}"
        try:
            with opened(folder, name) as node:
                got = answers(node, truth, name)
                check_given(got, truth.answers[name], story)
                found = findings(node, truth, name)
                if not found:
                    wrong = [what for what, answer in got.items() if answer != truth.answers[name][what]]
                    assert not wrong, f"{story}: nothing is found, and {wrong[:3]} changed"
                ends["found" if found else "harmless"] += 1
        except Fault as fault:
            unclear = not ((fault.rule and fault.hint and "odfd.sqlite" in str(fault)) or ".key" in str(fault))
            ends[f"at start: {story}: {fault!r}" if unclear else "at start"] += 1
        finally:
            shutil.rmtree(folder / name)
    unclear = [end for end in ends if end.startswith("at start:")]
    assert not unclear, unclear
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_every_flip_is_found_or_harmless(batch: int, truth: Truth, tmp_path: Path) -> None:
    """Attack T-DISK-01: a flipped bit anywhere in the state directory.

    Defence: data is hashed, linked or sealed, or SQLite's own checks detect it.
    """
    ends: Counter[str] = Counter()
    for half, name in enumerate(("alice", "bob")):
        ends += outcomes(range(batch + 4 * half, FLIPS, 8), name, "", truth, tmp_path)
    assert ends["found"] > sum(ends.values()) / 3, "most flips hit nothing: the nodes are too empty to prove anything"


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(2))
def test_a_flip_in_the_log_of_a_killed_node_is_told(batch: int, truth: Truth, tmp_path: Path) -> None:
    """Attack T-DISK-01: a flipped bit in the write-ahead log of a killed node, after which SQLite silently ignores the
    rest.

    Defence: headers of the log's pages state how many pages were committed; if fewer were recovered, the start and
    `odfctl doctor` report it; the journal prevents signatures over the older state.

    SQLite believes its log up to there and is silent about the rest: an older state is not taken for the newest.
    """
    ends = outcomes(range(batch, max(2, FLIPS // 4), 2), KILLED, "odfd.sqlite-wal", truth, tmp_path)
    assert ends["found"] > sum(ends.values()) / 3, ends
