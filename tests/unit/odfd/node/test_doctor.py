"""The doctor over state directories that are really damaged: what is found, and what is said to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain.codec.blocks import decode_block
from chain.errors import Environment
from chain.ids import DatasetId
from odfd.api.maintenance import doctor as doctor_module
from odfd.control import wire
from odfd.transfer.folders import import_dataset

GOLDEN = Path(__file__).parents[3] / "golden" / "kamu"
OTHER = DatasetId.from_public_key(bytes(32))


async def imported(node: Any, name: str = "flights") -> Any:
    await node.done(node.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / name))))
    return node.dataset(name)


async def quick(node: Any) -> dict[str, wire.Probe]:
    return {probe.name: probe for probe in await node.api.about.doctor()}


async def deep(node: Any) -> dict[str, wire.Probe]:
    return {probe.name: probe async for probe in node.api.about.examine()}


async def test_all_is_well(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice:
        await imported(alice)
        await alice.apply(worlds.ROOT)
        for probes in (await quick(alice), await deep(alice)):
            told = {name: probe.result for name, probe in probes.items() if name not in ("engine", "sandbox", "roots")}
            assert set(told.values()) <= {"ok"}, probes
        assert probes["last end"].message == "the node was stopped in order"
        assert set(probes) - set(await quick(alice)) == {"rows", "chains"}


async def test_what_a_kill_left_is_told(world: Any) -> None:
    async with world.running("alice") as alice:
        import_dataset(GOLDEN / "airlines", alice.home.chains, alice.home.objects)
        alice.home.objects.stage().write_bytes(bytes(5000))
        (alice.home.directory / "uploads" / "half").write_bytes(bytes(2000))
        log = alice.home.directory / "odfd.sqlite-wal"
        left = log.read_bytes()
    log.write_bytes(left)
    async with world.running("alice") as alice:
        found = (await quick(alice))["last end"]
        assert found.result == "ok"
        (name,) = [view.name for view in await alice.api.datasets.list()]
        assert found.message == (
            "the node was killed; 2 unfinished files (7.0 kB) were removed; "
            f"an import that was cut off is settled: {name}"
        )
        assert list(alice.home.objects.stage().parent.iterdir()) == []
        assert list((alice.home.directory / "uploads").iterdir()) == []


async def test_a_chain_that_cannot_be_settled_keeps_nothing_else_from_starting(world: Any) -> None:
    async with world.running("alice") as alice:
        done = import_dataset(GOLDEN / "airlines", alice.home.chains, alice.home.objects)
        await imported(alice)
        with alice.home.database.write() as connection:
            connection.execute("UPDATE datasets SET id = ? WHERE id = ?", (OTHER, done.dataset))
    async with world.running("alice") as alice:
        assert [view.name for view in await alice.api.datasets.list()] == ["flights"]
        found = (await quick(alice))["last end"]
        assert (found.result, "under an id that its Seed does not name" in found.message) == ("failed", True)
        assert (await deep(alice))["chains"].result == "failed"


async def test_an_unsigned_head(world: Any, worlds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT)
        cities = alice.dataset("cities")
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM trust_live")
        found = (await quick(alice))["heads"]
        assert (found.result, found.message) == ("warning", "not signed yet: cities")
        monkeypatch.setattr(alice.parts.heads, "_troubles", {cities: "this key has signed 9 already"})
        found = (await quick(alice))["heads"]
        assert (found.result, found.message) == ("failed", "not signed: cities: this key has signed 9 already")
        assert "--repair" in found.hint


def spoil(node: Any, sql: str) -> Callable[[Any], None]:
    with node.home.database.write() as connection:
        assert connection.execute(sql).rowcount > 0
    return lambda _: None


ROWS = {
    "UPDATE resource_events SET spec = x'7b7d'": ("resource_events", "restore the database"),
    "UPDATE resources SET generation = 7": ("resources", "restore the database"),
    "UPDATE trust_chains SET data = data + 1": ("trust_chains", "--repair"),
    "UPDATE verified SET size = size - 1": ("verified", "--full"),
}


@pytest.mark.slow
@pytest.mark.parametrize("sql", ROWS)
async def test_a_damaged_row_is_named(world: Any, sql: str) -> None:
    async with world.running("alice") as alice:
        await imported(alice)
        assert (await alice.done(alice.api.verification.verify("flights", wire.VerifyRequest()))).ok
        assert (await deep(alice))["rows"].result == "ok"
        with alice.home.database.write() as connection:
            assert connection.execute(sql).rowcount > 0
        found = (await deep(alice))["rows"]
        table, hint = ROWS[sql]
        assert (found.result, table in found.message, hint in found.hint) == ("failed", True, True)


async def test_a_broken_link_of_the_ledger(world: Any, worlds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT, worlds.DERIVED)
        found = (await quick(alice))["trust ledger"]
        assert re.fullmatch(r"the links of the last [2-4] entries hold", found.message), "two heads, and two cards soon"
        monkeypatch.setattr(doctor_module, "LAST_ENTRIES", 0)
        with alice.home.database.write() as connection:
            connection.execute("UPDATE trust_ledger SET outcome = 'forged' WHERE seq = 1")
        assert (await quick(alice))["trust ledger"].result == "ok"
        found = (await deep(alice))["trust ledger"]
        assert (found.result, found.message) == ("failed", "entry 1 of the trust ledger was altered")


async def test_damage_is_told_until_it_is_mended(world: Any) -> None:
    async with world.running("alice") as alice:
        flights = await imported(alice)
        blocks = map(decode_block, alice.home.chains.chain(flights).raw_blocks(0, 99))
        (event, *_) = [block.event for block in blocks if getattr(block.event, "new_data", None)]
        name = event.new_data.physical_hash
        data = alice.home.objects.read(name)
        alice.home.objects.remove(name)
        assert not (await alice.done(alice.api.verification.verify("flights", wire.VerifyRequest()))).ok
        found = (await quick(alice))["damage"]
        assert found.result == "failed"
        assert "flights: #" in found.message
        assert "is not here" in found.message
        assert found.hint == "odfctl pull flights --repair mends what it can, from peers too"
        alice.home.objects.add_bytes(data)
        assert (await alice.done(alice.api.verification.verify("flights", wire.VerifyRequest()))).ok
        assert (await quick(alice))["damage"].result == "ok"


def flipped(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


async def test_a_damaged_page_and_a_damaged_index(world: Any) -> None:
    async with world.running("alice") as alice:
        await imported(alice)
        with alice.home.database.read() as connection:
            (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'blocks_by_kind'").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
    path = alice.home.directory / "odfd.sqlite"
    flipped(path, page * size - 3)
    async with world.running("alice") as alice:
        found = (await deep(alice))["database"]
        assert (found.result, "index" in found.message, "--repair" in found.hint) == ("failed", True, True)
        assert (await quick(alice))["database"].result == "ok"
        (item,) = await alice.pull("flights", repair=True)
        assert item.outcome in ("updated", "up-to-date")
        assert (await deep(alice))["database"].result == "ok"


def test_a_database_that_is_none_any_more_names_the_way_out(world: Any) -> None:
    (world.folder / "alice" / "state").mkdir(parents=True)
    (world.folder / "alice" / "state" / "odfd.sqlite").write_bytes(os.urandom(20_000))
    with pytest.raises(Environment) as caught:
        world.node("alice")
    assert caught.value.rule == "database-corrupt"
    assert "odfd.sqlite" in str(caught.value)


async def test_a_key_that_is_another_one(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT)
        assert (await quick(alice))["keys"].message == "2 keys and their journals can be read"
        keys = alice.home.directory / "keys"
        for path in sorted(keys.glob("*.key")):
            whole = path.read_bytes()
            flipped(path, 10)
            found = (await quick(alice))["keys"]
            assert (found.result, path.name in found.message) == ("failed", True)
            assert "restore" in found.hint
            path.write_bytes(whole)


@pytest.mark.slow
async def test_a_journal_with_a_flipped_bit_signs_nothing(world: Any, worlds: Any) -> None:
    async with world.running("alice") as alice:
        await alice.apply(worlds.ROOT)
        path = alice.home.directory / "keys" / f"{alice.dataset('cities').multibase}.journal"
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        path.write_bytes(whole)
        flipped(path, at)
        async with world.running("alice") as alice:
            found = (await quick(alice))["keys"]
            assert (found.result, path.name in found.message) == ("failed", True), at


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_directory_that_cannot_be_written(world: Any) -> None:
    async with world.running("alice") as alice:
        alice.home.directory.chmod(0o500)
        found = (await quick(alice))["disk"]
        alice.home.directory.chmod(0o700)
        assert (found.result, "give" in found.hint) == ("failed", True)


@pytest.mark.parametrize(
    ("number", "words"), [(28, "free some space"), (30, "mount it writable"), (5, "may be failing")]
)
async def test_a_disk_that_refuses(world: Any, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    async with world.running("alice") as alice:
        write = Path.write_bytes

        def refuse(path: Path, data: bytes) -> int:
            if path.name == ".doctor":
                raise OSError(number, os.strerror(number), str(path))
            return write(path, data)

        monkeypatch.setattr(Path, "write_bytes", refuse)
        found = (await quick(alice))["disk"]
        assert (found.result, words in found.hint) == ("failed", True)
