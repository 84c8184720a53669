"""Endpoints of Sources: pushes that wait, are taken in once each by every dataset, and make flows run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Conflict, Fault, Invalid, NotFound, Refused
from chain.instant import SECOND, Instant
from chain.model.source import ReadCsv, ReadJson, ReadNdJson, ReadParquet, ReadStep
from config import model
from odfd.cli.offline.restore import what_is_wrong
from odfd.control import wire
from odfd.ingest.endpoint import records_in
from odfd.resources.store import ResourceStore
from odfd.runtime.tasks import Report
from odfd.services.maintenance.restore import choose, restore
from odfd.store.directory import open_state_directory
from worlds.eventually import PATIENCE
from worlds.flow_world import flows
from worlds.node_world import Node, World

SOURCE = """$schema: Source
headers: {{name: sensors}}
spec:
  {ingress}
  read: {{kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, temp DOUBLE']}}
"""
ROOT = "$schema: Dataset\nheaders: {{name: {name}}}\nspec: {{kind: Root, metadata: []}}\n"
FLOW = """$schema: Flow
headers: {{name: taking}}
spec:
  target: Dataset:temp
  triggers: [{{kind: SourceUpdated, source: sensors, {terms}}}]
  tasks: [{{kind: Ingest, source: sensors}}]
"""
MEMORY = "ingress: {{kind: RestEndpoint, buffer: {{kind: Memory, bufferSize: 3{more}}}}}"


def source(ingress: str = "ingress: {kind: RestEndpoint}") -> str:
    return SOURCE.format(ingress=ingress)


def rows(*temps: float) -> bytes:
    lines = [f"2024-01-01T00:{at // 60:02}:{at % 60:02}Z,{temp}" for at, temp in enumerate(temps)]
    return "\n".join(["event_time,temp", *lines, ""]).encode()


async def push(node: Node, data: bytes, push_id: str | None = None) -> wire.PushReceipt:
    receipt: wire.PushReceipt = await node.api.endpoints.push("sensors", data, push_id)
    return receipt


async def taken(node: Node, name: str) -> list[float]:
    (item,) = await node.pull(name, source="sensors")
    assert item.fault is None, item.message
    return await temps(node, name)


async def temps(node: Node, name: str) -> list[float]:
    found = await node.api.datasets.tail(name, 100)
    return [dict(zip((column.name for column in found.columns), each, strict=True))["temp"] for each in found.rows]


async def test_what_is_pushed_waits_and_every_dataset_takes_it_once(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(source(), ROOT.format(name="temp"), ROOT.format(name="copy"))
        first = await push(alice, rows(1.0, 2.0))
        assert first == wire.PushReceipt(source="sensors", number=1, records=2, bytes=len(rows(1.0, 2.0)))
        await push(alice, rows(3.0))
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0]
        before = alice.size("temp")
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0]
        assert alice.size("temp") == before
        assert (await alice.api.endpoints.show("sensors")).pushes == 0, "all datasets that read it have it"
        await push(alice, rows(4.0))
        assert await taken(alice, "copy") == [4.0], "what was there when it began"
        assert (await alice.api.endpoints.show("sensors")).pushes == 1, "the other has not taken it"
    async with world.running("alice") as alice:
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0, 4.0]
        assert (await push(alice, rows(5.0))).number == 4
        assert (await alice.api.endpoints.show("sensors")).oldest_at is not None
        await alice.api.declarations.delete("Dataset", "copy")
        assert await taken(alice, "temp") == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert (await alice.api.endpoints.show("sensors")).pushes == 0, "what is deleted holds nothing back"
        assert not files_of(alice.home.directory)


async def test_a_push_counts_once_for_each_id(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(source(), ROOT.format(name="temp"))
        first = await push(alice, rows(1.0), "a")
        assert (first.number, first.repeated) == (1, False)
        assert await taken(alice, "temp") == [1.0]
        again = await push(alice, rows(1.0), "a")
        assert (again.number, again.repeated) == (1, True)
        with pytest.raises(Conflict, match="came before with other content"):
            await push(alice, rows(2.0), "a")
        assert (await push(alice, rows(1.0), "b")).number == 2
        assert await taken(alice, "temp") == [1.0, 1.0]
        for bad in ("", "x" * 201):
            with pytest.raises(Invalid):
                await push(alice, rows(1.0), bad)


@pytest.mark.parametrize(
    ("read", "data", "said"),
    [
        (ReadCsv(header=True), b"", "nothing was pushed"),
        (ReadCsv(header=True), b" \n", "nothing was pushed"),
        (ReadCsv(header=True), b"a\n\xff\n", "this is no Csv"),
        (ReadNdJson(), b'{"a": 1}\n{"a"', "this is no NdJson"),
        (ReadNdJson(), b"[1]\n", "this is no NdJson"),
        (ReadNdJson(), b'{"a": "\xff"}', "this is no NdJson"),
        (ReadJson(), b'{"a": 1', "this is no Json"),
        (ReadParquet(), b"PAR0", "this is no Parquet"),
        (ReadCsv(header=True), b" " * (8 << 20) + b"a", "8.4 MB were pushed"),
    ],
)
def test_what_is_not_of_the_format_is_refused_at_once(read: ReadStep, data: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        records_in(data, read)


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3)), min_size=1, max_size=9))
def test_records_are_counted_as_they_are_read(written: list[dict[str, Any]]) -> None:
    lines = b"\n".join(map(msgspec.json.encode, written))
    assert records_in(lines, ReadNdJson()) == records_in(lines + b"\n", ReadNdJson()) == len(written)
    assert records_in(b"a,b\n" + b"1,2\n" * len(written), ReadCsv(header=True)) == len(written)
    assert records_in(b"1,2\n" * len(written), ReadCsv()) == len(written)


async def test_a_push_that_no_dataset_can_take_is_told_and_dropped_by_a_person(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(source(), ROOT.format(name="temp"))
        await push(alice, b"event_time,temp\nyesterday,1\n")
        await push(alice, rows(2.0))
        (item,) = await alice.pull("temp", source="sensors")
        assert item.outcome == "failed"
        left = await alice.api.endpoints.drop("sensors", 1)
        assert (left.pushes, left.first, left.dropped) == (1, 2, 1)
        assert await taken(alice, "temp") == [2.0]
        with pytest.raises(NotFound, match="no push #1 waits"):
            await alice.api.endpoints.drop("sensors", 1)
        await push(alice, rows(3.0))
        assert (await alice.api.endpoints.drop("sensors", None)).pushes == 0


async def test_a_full_spool_and_a_full_buffer_refuse_what_is_new(world: World) -> None:
    async with world.running("alice", limits=model.Limits(spool_bytes=200)) as alice:
        await alice.apply(source())
        while (await alice.api.endpoints.show("sensors")).bytes + len(rows(1.0)) <= 200:
            await push(alice, rows(1.0))
        with pytest.raises(Refused, match="is the most") as full:
            await push(alice, rows(1.0))
        assert (full.value.rule, "limits.spool-bytes" in full.value.hint) == ("endpoint-full", True)
    async with world.running("bob") as bob:
        await bob.apply(source(MEMORY.format(more="")), ROOT.format(name="temp"))
        receipt = await push(bob, rows(1.0, 2.0))
        assert not receipt.durable
        with pytest.raises(Refused, match="2 records wait, and the buffer holds 3"):
            await push(bob, rows(3.0, 4.0))
        dropping = MEMORY.format(more=", overflowPolicy: DropOldest")
        await bob.apply(source(dropping))
        await push(bob, rows(3.0, 4.0))
        (event,) = await bob.heard("source.dropped")
        assert "2 records of a full buffer" in event.message
        assert await taken(bob, "temp") == [3.0, 4.0]
        with pytest.raises(Refused):
            await push(bob, rows(1.0, 2.0, 3.0, 4.0))


async def test_a_source_goes_when_nothing_waits(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(source())
        await push(alice, rows(1.0))
        with pytest.raises(Refused, match="1 record that were pushed") as waits:
            await alice.api.declarations.delete("source", "sensors")
        assert waits.value.rule == "source-waits"
        await alice.api.endpoints.drop("sensors", None)
        await alice.api.declarations.delete("source", "sensors")
        with pytest.raises(NotFound):
            await push(alice, rows(1.0))
        await alice.apply(source())
        assert (await push(alice, rows(1.0))).number == 1, "another Source of the name begins anew"


async def test_a_flow_runs_at_so_many_records_or_when_the_oldest_is_so_old(world: World) -> None:
    """Also of what came before a restart, and not before its time."""
    async with world.running("alice") as alice:
        await alice.apply(source(), ROOT.format(name="temp"), FLOW.format(terms="minRecordsToAwait: 3"))
        (view,) = await flows(alice)
        assert view.when == "3 records pushed to sensors, or one that is 1h old"
        await push(alice, rows(1.0, 2.0))
        for _ in range(3):
            await alice.parts.flows.look()
        assert (await temps(alice, "temp"), (await flows(alice))[0].runs) == ([], 0)
        await push(alice, rows(3.0))
        await until(alice, [1.0, 2.0, 3.0])
        await push(alice, rows(4.0))
    async with world.running("alice") as alice:
        assert await temps(alice, "temp") == [1.0, 2.0, 3.0]
        world.clock.instant += 3601 * SECOND
        alice.parts.flows.loop.poke()
        await until(alice, [1.0, 2.0, 3.0, 4.0])


async def until(node: Node, wanted: list[float]) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            turned = node.parts.flows.turned
            if await temps(node, "temp") == wanted:
                return
            await turned.wait()


@pytest.mark.parametrize(
    ("trigger", "rule"),
    [
        (FLOW.format(terms="minRecordsToAwait: 0"), "number-range"),
        (FLOW.format(terms="maxAwaitInterval: 2d"), "number-range"),
        (FLOW.format(terms="minRecordsToAwait: 2").replace("Ingest, source: sensors", "Ingest"), "flow-trigger"),
    ],
)
async def test_what_a_trigger_cannot_mean_is_refused(world: World, trigger: str, rule: str) -> None:
    async with world.running("alice") as alice:
        with pytest.raises(Fault) as refused:
            await alice.apply(source(), ROOT.format(name="temp"), trigger)
        assert refused.value.rule == rule


async def test_what_waits_is_in_a_backup_and_new_pushes_have_numbers_of_their_own(world: World, tmp_path: Path) -> None:
    """Also what a dataset takes while the backup is written; and a chain that went on is not owed what it has."""
    async with world.running("alice") as alice:
        await alice.apply(source(), ROOT.format(name="temp"))
        large = [1.0] * 1000
        await push(alice, rows(*large))
        with alice.home.spool.hold_files():
            assert set(await taken(alice, "temp")) == {1.0}
            assert len(files_of(alice.home.directory)) == 1
        assert files_of(alice.home.directory) == []
        await push(alice, rows(2.0))
        await push(alice, rows(*large))
        request = wire.BackupRequest(to=str(tmp_path / "saved"))
        await alice.done(alice.api.backups.backup(request))
    restore(choose(tmp_path / "saved", None), tmp_path / "again", what_is_wrong, Report())
    with open_state_directory(tmp_path / "again") as home:
        assert [each.name for each in files_of(home.directory)] == ["000000000003"]
        (resource,) = (each for each in declared(home) if each.type == "Source")
        assert home.spool.waiting(resource.id).records == 1001
        found, _ = home.spool.after(resource.id, 1, 10, 1 << 30)
        assert [each.path.read_bytes() for each in found] == [rows(2.0), rows(*large)]
        assert home.spool.add(resource.id, rows(3.0), 1, Instant(0), None).number > 10**9
        left = home.directory / "spool" / resource.id / "000000000009"
        left.write_bytes(b"of a push that was cut off")
    with open_state_directory(tmp_path / "again") as home:
        assert (home.recovery.files, left.exists(), home.spool.waiting(resource.id).pushes) == (1, False, 3)


def files_of(directory: Path) -> list[Path]:
    return sorted(each for each in (directory / "spool").rglob("*") if each.is_file())


def declared(home: Any) -> list[Any]:
    with home.database.read() as connection:
        return ResourceStore(connection).all()
