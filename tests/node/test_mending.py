"""Damage to what a node holds: told, never given to others, and mended from whoever has it whole."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.errors import Environment, NotFound
from chain.ids import DatasetId
from chain.multihash import Multihash
from odfd.control import wire
from odfd.store.damage import Damage
from odfd.store.references import references_to
from p2p.driver import serve
from p2p.wire import chains, objects
from p2p.wire.frames import PREFIX
from p2p.wire.refusal import PeerRefusal, RefusalReason
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

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
        with pytest.raises(Environment, match="not in its place"):
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
