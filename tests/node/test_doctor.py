"""The doctor over state directories that are really damaged: what is found, and what is said to do about it."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chain.codec.blocks import decode_block
from chain.errors import Environment
from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.database import open_database
from chain.store.seals import sealed_tables
from config import model
from odfd.control import wire
from odfd.services.maintenance import doctor as doctor_module
from odfd.services.maintenance.restore import unfinished_folder
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.transfer.folders import import_dataset
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
OTHER = DatasetId.from_public_key(bytes(32))


async def imported(node: Node, name: str = "flights") -> Any:
    await node.done(node.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / name))))
    return node.dataset(name)


async def quick(node: Node) -> dict[str, wire.Probe]:
    return {probe.name: probe for probe in await node.api.about.doctor()}


async def deep(node: Node) -> dict[str, wire.Probe]:
    return {probe.name: probe async for probe in node.api.about.examine()}


async def test_all_is_well(world: World) -> None:
    async with world.running("alice") as alice:
        await imported(alice)
        await alice.apply(ROOT)
        for probes in (await quick(alice), await deep(alice)):
            told = {name: probe.result for name, probe in probes.items() if name not in ("engine", "sandbox", "roots")}
            assert set(told.values()) <= {"ok"}, probes
        assert probes["last end"].message == "the node was stopped in order"
        assert set(probes) - set(await quick(alice)) == {"rows", "chains"}


async def test_what_a_kill_left_is_told(world: World) -> None:
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
        (name,) = [view.name for view in await alice.dataset_views()]
        assert found.message == (
            "the node was killed; 2 unfinished files (7.0 kB) were removed; "
            f"an import that was cut off is settled: {name}"
        )
        assert list(alice.home.objects.stage().parent.iterdir()) == []
        assert list((alice.home.directory / "uploads").iterdir()) == []


async def test_what_a_killed_restore_left_beside_a_new_node_is_told(world: World) -> None:
    async with world.running("alice") as alice:
        left = unfinished_folder(alice.home.directory)
        left.mkdir()
        found = (await quick(alice))["last end"]
        assert found.result == "warning"
        assert f"this node is a new one: {left} is left of it" in found.message
        left.rmdir()
        assert (await quick(alice))["last end"].result == "ok"


async def test_a_chain_that_cannot_be_settled_keeps_nothing_else_from_starting(world: World) -> None:
    async with world.running("alice") as alice:
        done = import_dataset(GOLDEN / "airlines", alice.home.chains, alice.home.objects)
        await imported(alice)
        with alice.home.database.write() as connection:
            connection.execute("UPDATE datasets SET id = ? WHERE id = ?", (OTHER, done.dataset))
    async with world.running("alice") as alice:
        assert [view.name for view in await alice.dataset_views()] == ["flights"]
        found = (await quick(alice))["last end"]
        assert (found.result, "under an id that its Seed does not name" in found.message) == ("failed", True)
        assert (await deep(alice))["chains"].result == "failed"


async def test_an_unsigned_head(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        cities = alice.dataset("cities")
        with alice.home.database.write() as connection:
            connection.execute("DELETE FROM trust_live")
        found = (await quick(alice))["heads"]
        assert (found.result, found.message) == ("warning", "not signed yet: cities")
        monkeypatch.setattr(alice.parts.heads, "_troubles", {cities: "this key has signed 9 already"})
        found = (await quick(alice))["heads"]
        assert (found.result, found.message) == ("failed", "not signed: cities: this key has signed 9 already")
        assert "--repair" in found.hint


def spoil(node: Node, sql: str) -> Callable[[Any], None]:
    with node.home.database.write() as connection:
        assert connection.execute(sql).rowcount > 0
    return lambda _: None


ROWS = {
    "UPDATE res_events SET body = x'7b7d'": ("res_events", "restore the database"),
    "UPDATE declarations SET rv = 7": ("declarations", "restore the database"),
    "UPDATE trust_chains SET data = data + 1": ("trust_chains", "--repair"),
    "UPDATE verified SET size = size - 1": ("verified", "--full"),
}


@pytest.mark.slow
@pytest.mark.parametrize("sql", ROWS)
async def test_a_damaged_row_is_named(world: World, sql: str) -> None:
    async with world.running("alice") as alice:
        await imported(alice)
        assert (await alice.done(alice.api.verification.verify("flights", wire.VerifyRequest()))).ok
        assert (await deep(alice))["rows"].result == "ok"
        with alice.home.database.write() as connection:
            assert connection.execute(sql).rowcount > 0
        found = (await deep(alice))["rows"]
        table, hint = ROWS[sql]
        assert (found.result, table in found.message, hint in found.hint) == ("failed", True, True)


UNSEALED = {
    "blocks": "named by their hash; the chains are looked at, and odfctl verify",
    "small_objects": "named by their hash; odfctl verify",
    "datasets": "heads of chains, which the chains are compared with",
    "object_references": "compared with the blocks",
    "trust_ledger": "linked by hashes",
    "trust_subtrees": "compared with the checked root when they are used",
    "spool_bodies": "compared with the content of their push",
    "spooled": "pushes that wait: their content names the body, and an index has which are here",
    **dict.fromkeys(
        ("spool_readers", "spool_numbers", "spool_drops"), "numbers of pushes; the chains have what was taken"
    ),
    **dict.fromkeys(("res_labels", "res_refs", "res_owners", "res_log"), "made of declarations"),
    **dict.fromkeys(("held_blocks", "held_bytes", "held_objects"), "counts, made anew of blocks and objects"),
    **dict.fromkeys(("object_links", "collection_members", "saved_view_inputs"), "indexes of what is elsewhere"),
    "damage": "what odfctl verify found, and finds again",
    "purged": "times alone",
    **dict.fromkeys(("volume_claims", "volume_objects", "volume_remains"), "names of what lies on a volume, by hash"),
    "versions": "a false one is refused at the start",
    "sqlite_sequence": "SQLite's own",
}
"""The tables whose rows have no seal, and what finds damage of them instead."""


VALUES: dict[str, Any] = {"TEXT": "a", "INTEGER": 1, "BLOB": b"a"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateDirectory]:
    with open_state_directory(tmp_path / "state") as opened:
        yield opened


def test_every_table_has_seals_or_a_reason_to_have_none(home: StateDirectory) -> None:
    with home.database.read() as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        sealed = {each.table for each in sealed_tables(connection)}
    assert sealed | UNSEALED.keys() == tables
    assert not sealed & UNSEALED.keys()


def test_damage_of_any_table_is_named(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row under a false seal in each that has seals, and a pushed body that is another: the doctor reads them all."""
    monkeypatch.setattr(doctor_module, "SHOWN", 1000)
    doctor: Any = doctor_module.Doctor(home, home.visibility, dict, {})
    assert doctor._rows().result == "ok"
    home.spool.add("source", b"as it was pushed", 1, Instant(0), None)
    with home.database.write() as connection:
        connection.execute("UPDATE spool_bodies SET body = ?", (b"as it was puShed",))
        tables = [each.table for each in sealed_tables(connection)]
    for table in sorted(tables, key=lambda name: name == "saved_views"):  # a change of what it saved drops a view
        with home.database.write() as connection:
            kinds = connection.execute(f"PRAGMA table_info({table})").fetchall()
            row = {name: VALUES[kind] for _, name, kind, *_ in kinds} | {"seal": b"another"}
            connection.execute(
                f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", [*row.values()]
            )
    found = doctor._rows()
    assert found.result == "failed"
    assert {name.rpartition(" of ")[2] for name in found.message.split("; ")} == {*tables, "spool_bodies"}
    with pytest.raises(Environment) as caught:
        home.spool.after("source", 0, 10, 1000)
    assert caught.value.rule == "stored-row-damaged", "nor is such a body taken in"


def test_a_damaged_page_of_any_table_or_index_is_named_with_its_table(tmp_path: Path) -> None:
    """The header of its first page, while a reader has that page in its cache."""
    with open_state_directory(tmp_path / "state") as home:
        with home.database.read() as connection:
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            pages = connection.execute("SELECT tbl_name, rootpage FROM sqlite_master WHERE rootpage > 1").fetchall()
        home.database.close()
        path, missed = home.directory / "odfd.sqlite", []
        whole = path.read_bytes()
        with closing(open_database(path)) as database:
            assert database.damage() == []
            for table, page in pages:
                at = (page - 1) * size
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([255]) * 8)
                    file.flush()
                    if not any(each.startswith(f"{table}: ") for each in database.damage()):
                        missed.append(table)
                    file.seek(at)
                    file.write(whole[at : at + 8])
            assert database.damage() == []
    assert (missed, len(pages) > 100) == ([], True)


async def test_a_broken_link_of_the_ledger(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT, DERIVED)
        found = (await quick(alice))["trust ledger"]
        assert re.fullmatch(r"the links of the last [2-4] entries hold", found.message), "two heads, and two cards soon"
        monkeypatch.setattr(doctor_module, "LAST_ENTRIES", 0)
        with alice.home.database.write() as connection:
            connection.execute("UPDATE trust_ledger SET outcome = 'forged' WHERE seq = 1")
        assert (await quick(alice))["trust ledger"].result == "ok"
        found = (await deep(alice))["trust ledger"]
        assert (found.result, found.message) == ("failed", "entry 1 of the trust ledger was altered")


async def test_damage_is_told_until_it_is_mended(world: World) -> None:
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


async def test_a_damaged_page_and_a_damaged_index(world: World) -> None:
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


def test_a_database_that_is_none_any_more_names_the_way_out(world: World) -> None:
    (world.folder / "alice" / "state").mkdir(parents=True)
    (world.folder / "alice" / "state" / "odfd.sqlite").write_bytes(os.urandom(20_000))
    with pytest.raises(Environment) as caught:
        world.node("alice")
    assert caught.value.rule == "database-corrupt"
    assert "odfd.sqlite" in str(caught.value)


async def test_a_key_that_is_another_one(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
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
async def test_a_journal_with_a_flipped_bit_signs_nothing(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        path = alice.home.directory / "keys" / f"{alice.dataset('cities').multibase}.journal"
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        path.write_bytes(whole)
        flipped(path, at)
        async with world.running("alice") as alice:
            found = (await quick(alice))["keys"]
            assert (found.result, path.name in found.message) == ("failed", True), at


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_directory_that_cannot_be_written(world: World) -> None:
    async with world.running("alice") as alice:
        alice.home.directory.chmod(0o500)
        found = (await quick(alice))["disk"]
        alice.home.directory.chmod(0o700)
        assert (found.result, "give" in found.hint) == ("failed", True)


async def test_a_disk_with_less_than_is_kept_free_is_told_of(world: World) -> None:
    """With what follows from it, as every ingest is refused then; by what the settings say now."""
    async with world.running("alice") as alice:
        assert (await quick(alice))["disk"].result == "ok"
        limits = model.Limits(disk_reserve_bytes=1 << 62)
        alice.parts.in_force.settings.put(dataclasses.replace(alice.parts.settings, limits=limits))
        found = (await quick(alice))["disk"]
        assert (found.result, found.hint) == ("warning", "free some space, or lower limits.disk-reserve-bytes")
        assert found.message.endswith("and 4612 PB are kept free: nothing new is taken in")


@pytest.mark.parametrize(
    ("number", "words"), [(28, "free some space"), (30, "mount it writable"), (5, "may be failing")]
)
async def test_a_disk_that_refuses(world: World, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    async with world.running("alice") as alice:
        write = Path.write_bytes

        def refuse(path: Path, data: bytes) -> int:
            if path.name == ".doctor":
                raise OSError(number, os.strerror(number), str(path))
            return write(path, data)

        monkeypatch.setattr(Path, "write_bytes", refuse)
        found = (await quick(alice))["disk"]
        assert (found.result, words in found.hint) == ("failed", True)
