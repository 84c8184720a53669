"""What the doctor finds: damage, what a node depends on beyond itself, and volumes."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.codec.blocks import decode_block
from chain.errors import Environment, Fault, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.store.database import open_database
from chain.store.seals import sealed_tables
from chain.store.volumes import VolumeUsage
from config import model, schema
from odfd.control import wire
from odfd.node.readings import Readings
from odfd.obs.metric_table import DEPENDENCIES
from odfd.resources.store import ResourceStore
from odfd.runtime.supervision import Health
from odfd.services.maintenance import dependencies
from odfd.services.maintenance import doctor as doctor_module
from odfd.services.maintenance.dependencies import TRIED_BY
from odfd.services.maintenance.restore import unfinished_folder
from odfd.services.resources import reconciler
from odfd.services.resources.reconciler import Reconciler
from odfd.services.volumes.volume_paths import MARK, VolumeFolder
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.transfer.folders import import_dataset
from worlds.asking import ask
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.memory_ipfs import MemoryIpfs
from worlds.node_world import Node, World, until

# The doctor over state directories that are really damaged: what is found, and what is said to do about it.


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


ALTERED = {
    "UPDATE res_events SET body = x'7b7d'": ("res_events", "restore the database"),
    "UPDATE declarations SET rv = 7": ("declarations", "restore the database"),
    "UPDATE trust_chains SET data = data + 1": ("trust_chains", "--repair"),
    "UPDATE verified SET size = size - 1": ("verified", "--full"),
}


@pytest.mark.slow
@pytest.mark.parametrize("sql", ALTERED)
async def test_a_damaged_row_is_named(world: World, sql: str) -> None:
    async with world.running("alice") as alice:
        await imported(alice)
        assert (await alice.done(alice.api.verification.verify("flights", wire.VerifyRequest()))).ok
        assert (await deep(alice))["rows"].result == "ok"
        with alice.home.database.write() as connection:
            assert connection.execute(sql).rowcount > 0
        found = (await deep(alice))["rows"]
        table, hint = ALTERED[sql]
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
        assert found.hint == "odfctl pull flights --repair repairs what it can, from peers too"
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
    """Attack T-KEY-01: a damaged key or journal.

    Defence: a key file names its public key, journal lines have a checksum: nothing is signed after a mismatch.
    """
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
        assert found.message.endswith("and 4612 PB are kept free: no new data is stored")


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


# What a node depends on beyond itself is tried, and told wherever people and programs look: nothing is ok unasked.


NOTHING = {
    "node.name", "node.contact", "node.about", "node.log-levels", "control.group", "p2p.announce", "p2p.inside",
    "ingest.variables", "webhooks.inside", "policy.validators.groups", "policy.validators.min-sandbox",
    "policy.witness.groups", "policy.witness.max-age", "policy.fresh.max-stale", "policy.use", "policy.serve",
    "policy.network-key", "policy.publish.witness", "node.doors",
}  # fmt: skip
"""Settings of texts that name nothing beyond the process that could be asked."""


def closed() -> str:
    """An address of this machine where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        return f"127.0.0.1:{once.getsockname()[1]}"


async def probed(node: Node) -> dict[str, Any]:
    return {probe.name: probe for probe in await node.api.about.doctor()}


def test_every_setting_that_names_something_is_tried_by_a_probe() -> None:
    """A new setting of a text says here, or in ``TRIED_BY``, what it names."""
    texts = {key.name for key in schema.every() if key.type is not bool and key.type not in (int, float)}
    chosen = {key.name for key in schema.every() if key.about.choices}
    assert texts - chosen - NOTHING == TRIED_BY.keys() - chosen
    assert not NOTHING & TRIED_BY.keys()
    assert set(TRIED_BY.values()) - {"disk", "parts", "network", "engine", "witnesses"} <= set(DEPENDENCIES)


async def test_what_is_not_set_is_not_told_of(world: World) -> None:
    async with world.running("alice") as alice:
        found = await probed(alice)
        assert found.keys() & set(DEPENDENCIES) == {"listening"}
        assert {"parts", "network", "engine", "disk"} <= found.keys()
        assert found["parts"].result == "ok"


async def test_what_does_not_answer_is_told_everywhere(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By doctor, status, /readyz and metrics, with what to do; and no longer once it answers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    folder, volume = tmp_path / "shelf", tmp_path / "volume"
    settings = {
        "traces": model.Traces(endpoint=f"http://{closed()}/v1/traces"),
        "ingest": model.Ingest(settle_seconds=0, folders=(str(tmp_path / "none"),), container="offline"),
    }
    dead = MemoryIpfs()
    dead.away = True
    async with world.running("alice", ipfs=dead, **settings) as alice:
        shelf = f"$schema: Repository\nheaders: {{name: shelf}}\nspec: {{url: 'file://{folder}'}}\n"
        web = f"---\n$schema: Repository\nheaders: {{name: web}}\nspec: {{url: 'http://{closed()}/data'}}\n"
        kept = f"{{kind: HostPath, path: {volume}, capacity: {{storage: 1Gi}}}}"
        cold = f"---\n$schema: PersistentVolume\nheaders: {{name: cold}}\nspec: {kept}\n"
        await alice.apply(shelf + web + cold)
        assert (await probed(alice))["volumes"].result == "ok"
        alice.member.answers = False
        await trio.to_thread.run_sync(volume.rename, tmp_path / "elsewhere")
        found = await probed(alice)
        wrong = {name: found[name].message for name in DEPENDENCIES if found[name].result == "failed"}
        assert wrong.keys() == set(DEPENDENCIES), found
        assert all(found[name].hint for name in ("ipfs", "traces", "folders", "containers", "repositories"))
        assert "shelf: " in wrong["repositories"]
        assert "web: " in wrong["repositories"]
        status = await alice.api.about.status()
        assert status.troubles == {name: f"does not answer: {text}" for name, text in wrong.items()}
        readings = Readings(alice.features)
        assert readings.dependencies() == wrong
        text = (await readings.scrape()).decode()
        assert all(f'odfd_dependency_up{{dependency="{name}"}} 0.0' in text for name in DEPENDENCIES)
        folder.mkdir()
        dead.away, alice.member.answers = False, True
        monkeypatch.undo()
        found = await probed(alice)
        assert found["ipfs"].result == "ok"
        assert "shelf" not in found["repositories"].message
        assert "ipfs" not in (await alice.api.about.status()).troubles


async def test_a_part_that_is_down_is_told_everywhere(world: World) -> None:
    async with world.running("alice") as alice:
        ready = alice.parts.context.readiness
        ready.started = True
        fault = Environment("/ip6/::/tcp/4150: the port is in use", rule="listen", hint="set another port")
        ready.parts["network"] = Health(fault=fault, restarts=8)
        probe = (await probed(alice))["parts"]
        assert (probe.result, probe.hint) == ("failed", "set another port")
        assert probe.message == f"network is started again and again (8 restarts): {fault}"
        assert (await alice.api.about.status()).troubles == {"network": str(ready.parts["network"])}
        readings = Readings(alice.features)
        assert (await readings.why_not_ready())["network"] == str(ready.parts["network"])
        text = (await readings.scrape()).decode()
        assert 'odfd_part_up{part="network"} 0.0' in text
        assert 'odfd_part_restarts_total{part="network"} 8.0' in text
        assert 'odfd_part_up{part="heads"} 1.0' in text


async def test_a_network_that_does_not_listen_is_not_well(world: World) -> None:
    """Whoever joins is told, with the fault itself, and doctor says no more that the network is ok."""
    async with world.running("alice") as alice:
        assert (await probed(alice))["network"].result == "ok"
        alice.member.failure = Environment("the port is in use", rule="listen", hint="set p2p.listen")
        probe = (await probed(alice))["network"]
        assert (probe.result, probe.message, probe.hint) == ("failed", "the port is in use", "set p2p.listen")
        shown = await alice.api.networks.state("wires")
        assert shown.trouble is not None
        assert (shown.trouble.detail, shown.trouble.rule) == ("the port is in use", "listen")


async def test_own_addresses_are_dialled_and_those_that_answered_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the site over HTTP, whatever it answers; of two, that which is silent is told apart."""
    async with world.running("alice", http=model.Http(listen=("127.0.0.1:0",))) as alice:
        (url,) = (await alice.api.about.status()).http
        peers = "/ip4/127.0.0.1/tcp/4150"
        probe = (await probed(alice))["listening"]
        assert (probe.result, probe.message) == (
            "ok", f"{peers}, {url}: dialled from this machine, all answer; odfctl peer netcheck shows others"
        )  # fmt: skip
        monkeypatch.setattr(alice.parts.site, "urls", (url, f"http://{closed()}"))
        probe = (await probed(alice))["listening"]
        assert (probe.result, probe.hint) == (
            "failed", "does a firewall of this machine close it, or is the node too busy? odfctl logs"
        )  # fmt: skip
        assert probe.message.startswith("dialled from this machine, nothing answers at http://127.0.0.1:")
        assert probe.message.endswith(f"; {peers}, {url} answers")


async def test_what_does_not_answer_in_time_is_told_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = MemoryIpfs()

    async def forever() -> str:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(silent, "version", forever)
    monkeypatch.setattr(dependencies, "TRY_SECONDS", 0.0)
    async with world.running("alice", ipfs=silent) as alice:
        probe = (await probed(alice))["ipfs"]
        assert (probe.result, probe.message) == ("failed", "no answer in 0 s")


# Volumes of a node: declared, looked at, told of, and what refers to them.


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
async def test_a_deleted_volume_gives_its_place_back_whatever_comes_between(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Attack T-DISK-02: a kill, or a disk that is away, after a resource was deleted and before its effects are undone:
    the mark of a volume would stay for ever.

    Defence: the transaction that deletes it writes a row, which is worked off until nothing is left, also after a
    start; `odfctl doctor` names it.

    Killed before it is tried, or with its disk away: the next start goes on, and another volume begins there.
    """
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
                volumes = "/storage/v1alpha1/persistentvolumes"
                _, (listed,) = await ask(alice, "GET", volumes)
                assert listed["items"] == [], "a list is applied again, and this is gone"
                (gone,) = listed["deleting"]
                assert (gone["headers"]["name"], gone["status"]["phase"]) == ("cellar", "Ready")
                assert any(key.endswith("/Deleting") for key in gone["status"]["conditions"])
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
