"""State directories of earlier programs are opened: all that was in them stands, and each change is told.

One is of before there were resources; one of when what commands declared stood beside them, in a log of its own; one of
when each chain of a collection was a resource of its own; one of when flows had the form of RFC-018; one of when each
recorded difference was one.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain import instant
from chain.errors import Environment
from chain.ids import DatasetId
from chain.store.database import Database
from odfd.access.relations import Role
from odfd.control import wire
from odfd.renditions import former_rows
from odfd.resources.resource import Resource
from odfd.resources.store import ResourceStore
from odfd.services.maintenance.upgrade import table_changes
from odfd.store.access_state import AccessReader
from odfd.store.catalog import Catalog
from odfd.store.directory import DATABASE, StateDirectory
from odfd.store.pushes import PushTable
from worlds.flow_world import flows
from worlds.node_world import World

KEPT = Path(__file__).with_name("before-resources.tar.gz")
COLLECTIONS = Path(__file__).with_name("before-collections.tar.gz")
FLOW_FORMS = Path(__file__).with_name("before-flow-forms.tar.gz")
DIFFERENCES = Path(__file__).with_name("before-differences.tar.gz")
TWO_STORES = Path(__file__).with_name("before-one-store.tar.gz")
MIRRORED = "did:odf:fed01937855671a2cd6a8134a6744411b9808e834932fb6885229000e1d5931cb25ef"
BLOCKED = "12D3KooWM57jXdhtZT4ZEcdNbTo5JiKUxMZHg143ugaEYH8CNUMh"
VALIDATOR = "z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
STANDING = {
    "Dataset": ["airlines", "cities", "flights.long", "sensors", "theirs"],
    "Mirror": ["theirs"],
    "Network": ["demo"],
    "Peer": [BLOCKED],
    "Validator": [VALIDATOR],
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder of worlds, in which the node alice has the old state."""
    return unpacked(KEPT, tmp_path)


def unpacked(archive: Path, folder: Path) -> Path:
    state = folder / "alice" / "state"
    state.mkdir(mode=0o700, parents=True)
    with tarfile.open(archive) as opened:
        opened.extractall(state, filter="data")
    return folder


@pytest.mark.slow
async def test_a_state_directory_of_before_resources_is_opened_with_all_that_was_in_it(kept: Path) -> None:
    changes = {each.room: (each.here, each.known) for each in table_changes(kept / "alice" / "state")}
    assert changes["resources"][0] < changes["resources"][1]
    world = World(kept)
    async with world.running("alice", private=True) as alice:
        # A line for each part of the database, in the log, and for the doctor.
        said = [more for event, more in alice.logger.said if event == "tables of an older version brought forward"]
        assert {each["tables"]: (each["version"], each["to"]) for each in said} == changes
        (recovery,) = [each for each in await alice.api.about.doctor() if each.name == "last end"]
        assert all(f"{room} {here} to {now}" in recovery.message for room, (here, now) in changes.items())
        # A resource for each thing, and a line of each in the log of resources.
        found: dict[str, list[str]] = {}
        views = await alice.api.declarations.list(None, None)
        for each in views:
            found.setdefault(each.type, []).append(each.name)
        assert {type_: sorted(names) for type_, names in found.items()} == STANDING
        history = await alice.api.history.last(None, 100)
        created = [(each.type, each.name) for each in history if each.change == "Created"]
        assert sorted(created) == sorted((each.type, each.name) for each in views)
        await check_whole(alice)
        ids = {each.id for each in views}
    assert table_changes(kept / "alice" / "state") == []
    async with world.running("alice", private=True) as alice:
        assert {each.id for each in await alice.api.declarations.list(None, None)} == ids
        assert alice.home.recovery.brought_forward == ()
        await check_whole(alice)


async def check_whole(alice: Any) -> None:
    """Data, keys, publications and intents are as they were."""
    datasets = {each.name: each for each in await alice.dataset_views()}
    assert {name: (each.blocks, each.records) for name, each in datasets.items()} == {
        "airlines": (7, 20), "cities": (3, 0), "flights.long": (10, 1_248), "sensors": (2, 0), "theirs": (0, 0),
    }  # fmt: skip
    assert [name for name, each in datasets.items() if each.published] == ["cities", "theirs"]
    assert {name for name, each in datasets.items() if each.owner} == {"cities", "sensors"}
    rows = await alice.api.datasets.tail("airlines", 1)
    assert "SkyWest" in rows.rows[0]
    (mirror,) = await alice.mirrors()
    assert (mirror.id, mirror.want, mirror.priority) == (MIRRORED, "chain", 5)
    (validator,) = await alice.api.declarations.list("Validator", None)
    assert validator.spec == {"did": f"did:key:{VALIDATOR}", "group": "uni"}
    assert (await alice.api.declarations.get("Peer", BLOCKED)).spec == {"peerId": BLOCKED, "blocked": True}
    manifest = await alice.manifest("cities")
    assert [each["kind"] for each in manifest.spec["metadata"]] == ["SetPollingSource", "SetInfo"]


DECLARED = {
    "Account": ["bob"],
    "Dataset": ["bobs", "sensors", "theirs"],
    "Flow": ["often", "sensors"],
    "Mirror": ["theirs"],
    "Network": ["demo"],
    "Peer": [BLOCKED],
    "Relations": ["team"],
    "SecretSet": ["keys"],
    "Source": ["cities"],
    "TrustPolicy": ["strict"],
    "Validator": [VALIDATOR],
    "VariableSet": ["places"],
}


async def test_what_commands_declared_and_what_was_applied_stand_in_one_store(tmp_path: Path) -> None:
    world = World(unpacked(TWO_STORES, tmp_path))
    async with world.running("alice", private=True) as alice:
        found: dict[str, list[str]] = {}
        for each in await alice.api.declarations.list(None, None):
            found.setdefault(each.type, []).append(each.name)
        assert {type_: sorted(names) for type_, names in found.items()} == DECLARED
        (mirror,) = await alice.mirrors()
        assert (mirror.id, mirror.want, mirror.priority) == (MIRRORED, "chain", 5)
        assert (await alice.api.declarations.get("Mirror", "theirs")).headers["labels"]["topic"] == "health"
        assert {each.name: each.target for each in await flows(alice)} == {"often": "sensors", "sensors": "sensors"}
        assert [each.name for each in await alice.dataset_views() if each.published] == ["sensors", "theirs"]
        with alice.home.database.read() as connection:
            store = ResourceStore(connection)
            (bobs,) = store.namesakes("SecretSet", "keys")
            assert store.account_name(bobs.account or "") == "bob"
            source = store.find_named("Source", "cities", None)
            assert source is not None
            assert [held and held.name for held in source.references.values()] == ["places"]
    async with world.running("alice", private=True) as alice:
        assert alice.home.recovery.converted == alice.home.recovery.brought_forward == ()
        keys = "$schema: SecretSet\nheaders: {name: keys, account: bob}\nspec: {secrets: {key: sesame, more: poppy}}\n"
        (item,) = (await alice.apply(keys)).items
        assert (item.action, item.id) == ("updated", bobs.id)
        parts = {
            each.name: each.headers["account"]["name"] for each in await alice.api.declarations.list("Secret", None)
        }
        assert parts == {"keys#key": "bob", "keys#more": "bob"}


GATHERED = {"Dataset": ["sales", "stock", "wide"], "Flow": ["late", "often", "sales"], "Relations": ["team"]}
RENDITIONS = {"sales": 2, "stock": 1, "wide": 0}
"""The active rendition of each dataset."""


def check_gathered(home: StateDirectory) -> None:
    with home.database.read() as connection:
        store, catalog = ResourceStore(connection), Catalog(connection)
        found = {type_: sorted(each.name for each in store.all(type_)) for type_ in GATHERED}
        assert found == GATHERED
        rows: dict[str, Resource] = {each.name: each for each in store.all("Dataset")}
        assert {name: dict(each.labels) for name, each in rows.items()} == {
            "sales": {"env": "prod", "team": "a"}, "stock": {"env": "test"}, "wide": {},
        }  # fmt: skip
        assert rows["sales"].annotations == {"schedule": {"every": "1h"}}
        for name, number in RENDITIONS.items():
            entry = catalog.resolve(f"{name}.r{number}")
            assert (entry.name, str(entry.id)) == (name, rows[name].did)
        inner = sorted(each.name for each in catalog.chains() if each.is_inner)
        assert inner == ["sales.r0", "sales.r1", "sales.r3", "stock.r0", "wide.r0.s1"]
        for name in inner:
            entry = catalog.resolve(name)
            assert catalog.find(entry.id) == entry
            whole = catalog.resource_of(entry.id)
            assert whole is not None
            assert whole.name == name.partition(".")[0]
        meant = {
            each.name: [(held.id, held.did) for held in each.references.values() if held and held.name in rows]
            for type_ in ("Flow", "Relations")
            for each in store.all(type_)
        }
        sales, stock = ((rows[each].id, rows[each].did) for each in ("sales", "stock"))
        assert meant == {"late": [stock], "often": [sales], "sales": [sales], "team": [sales]}
        bob = store.find_named("Account", "bob", None)
        assert bob is not None
    assert AccessReader(home.database, lambda _: ()).role(bob.id, rows["sales"].id) is Role.READER


async def test_the_rows_of_a_collection_are_gathered(tmp_path: Path) -> None:
    world = World(unpacked(COLLECTIONS, tmp_path))
    world.clock.instant = instant.parse("2026-12-01T00:00:00Z")  # after its last block
    async with world.running("alice", private=True) as alice:
        check_gathered(alice.home)
        told = sorted(line for line in alice.home.recovery.converted if not line.startswith("Flow "))
        assert [line.partition(":")[0] for line in told] == [
            "the dataset sales is one resource over 4 chains of 4 renditions",
            "the dataset stock is one resource over 2 chains of 2 renditions",
            "the dataset wide is one resource over 2 chains of 1 rendition",
        ]
        assert {each.name: each.target for each in await flows(alice)} == {
            "late": "stock", "often": "sales", "sales": "sales",
        }  # fmt: skip
        assert {each.name: each.records for each in await alice.dataset_views()} == dict.fromkeys(RENDITIONS, 2)
        await alice.done(alice.api.renditions.hand_over("sales", 3, wire.HandoverRequest()))
        assert alice.home.resolve("sales.r3").name == "sales"
    async with world.running("alice", private=True) as alice:
        assert alice.home.recovery.converted == alice.home.recovery.brought_forward == ()
        assert alice.home.resolve("sales.r3").name == "sales"


async def test_captured_datasets_are_annotated(tmp_path: Path) -> None:
    """By their active renditions: others took nothing any more, whether or not they were captured."""
    folder = unpacked(COLLECTIONS, tmp_path)
    with contextlib.closing(sqlite3.connect(folder / "alice" / "state" / DATABASE)) as connection, connection:
        dids = dict(connection.execute("SELECT name, did FROM declarations WHERE type = 'Dataset'"))
        for name in ("sales", "stock.r0"):
            row = (bytes(DatasetId.parse(dids[name])), 0)
            connection.execute("INSERT INTO captured_datasets (dataset, since) VALUES (?, ?)", row)
    world = World(folder)
    world.clock.instant = instant.parse("2026-12-01T00:00:00Z")  # after its last block
    async with world.running("alice", private=True) as alice:
        told = [line for line in alice.home.recovery.converted if "keepRaw" in line]
        assert told == ["the dataset sales, captured by odfctl raw keep before, has the annotation keepRaw: true"]
        for name in RENDITIONS:
            assert (await alice.api.raw.show(name)).keeping == (name == "sales")
        assert (await alice.api.raw.show("sales.r0")).keeping
        view = await alice.api.declarations.get("Dataset", "sales")
        assert view.headers["annotations"] == {"schedule": {"every": "1h"}, "keepRaw": True}
    async with world.running("alice", private=True) as alice:
        assert alice.home.recovery.converted == ()
        assert (await alice.api.raw.show("sales")).keeping


async def test_pushes_of_before_keep_their_order(tmp_path: Path) -> None:
    folder = unpacked(COLLECTIONS, tmp_path)
    answer = msgspec.json.encode({"blocks": 1, "records": 1, "counts": {}})
    with contextlib.closing(sqlite3.connect(folder / "alice" / "state" / DATABASE)) as connection, connection:
        (did,) = connection.execute("SELECT did FROM declarations WHERE type = 'Dataset' AND name = 'stock'").fetchone()
        for name, sequence in (("late", 3), ("early", 2)):
            row = (bytes(DatasetId.parse(did)), name, "gate", b"", sequence, answer)
            connection.execute("INSERT INTO pushes VALUES (?, ?, ?, ?, ?, ?, NULL)", row)
    world = World(folder)
    world.clock.instant = instant.parse("2026-12-01T00:00:00Z")  # after its last block
    async with world.running("alice", private=True) as alice:
        assert (await alice.api.datasets.commit_point("stock")).push == "late"
        await alice.done(alice.api.renditions.hand_over("stock", 0, wire.HandoverRequest()))
        point = await alice.api.datasets.commit_point("stock")
        assert point.push == "late", "though a handover gives them one place"
        home = alice.home
        known = PushTable(home.database).find(DatasetId.parse(point.id), "early")
        assert known is not None
        assert known.answer.block == str(home.chains.chain(DatasetId.parse(point.id)).block_at(known.sequence).hash)


def test_a_killed_conversion_leaves_the_former_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = unpacked(COLLECTIONS, tmp_path) / "alice" / "state"

    def rows() -> list[str]:
        with contextlib.closing(sqlite3.connect(state / DATABASE)) as connection:
            return [row[0] for row in connection.execute("SELECT name FROM declarations WHERE type = 'Dataset'")]

    before, calls = sorted(rows()), 0
    gathered = former_rows._gather

    def dies(connection: sqlite3.Connection, collection: Any) -> str | None:
        nonlocal calls
        calls += 1
        line = gathered(connection, collection)
        if calls == 2:
            raise KeyboardInterrupt
        return line

    with monkeypatch.context() as patched:
        patched.setattr(former_rows, "_gather", dies)
        database = Database(state / DATABASE)
        try:
            with pytest.raises(KeyboardInterrupt):
                StateDirectory(state, database)
        finally:
            database.close()
    assert sorted(rows()) == before
    database = Database(state / DATABASE)
    try:
        check_gathered(StateDirectory(state, database))
    finally:
        database.close()


async def test_recorded_differences_are_inside_their_collections(tmp_path: Path) -> None:
    """One that was deleted is forgotten; one that kept a former name of its collection has the present one."""
    world = World(unpacked(DIFFERENCES, tmp_path))
    world.clock.instant = instant.parse("2026-12-01T00:00:00Z")  # after its last block
    async with world.running("alice", private=True) as alice:
        assert alice.home.recovery.converted == (
            "the recorded difference cities.h1 is inside towns, as towns.h1, and no dataset",
            "the recorded difference towns.h2 is inside towns, as towns.h2, and no dataset",
        )
        await check_differences(alice)
        await alice.done(alice.api.renditions.hand_over("towns", 0, wire.HandoverRequest(difference=True)))
        assert alice.home.resolve("towns.h4").is_inner
    async with world.running("alice", private=True) as alice:
        assert alice.home.recovery.converted == alice.home.recovery.brought_forward == ()
        await check_differences(alice)


async def check_differences(alice: Any) -> None:
    views = await alice.api.declarations.list("Dataset", None)
    assert [each.name for each in views] == [each.name for each in await alice.dataset_views()] == ["towns"]
    with alice.home.catalog() as catalog:
        inner = {each.name for each in catalog.chains() if each.is_inner and ".h" in each.name}
        assert inner - {"towns.h4"} == {"towns.h1", "towns.h2"}
        assert all(catalog.find(catalog.resolve(name).id).name == name for name in inner)
    for name, rows in (("towns.h1", 2), ("towns.h2", 2)):
        assert len((await alice.api.datasets.tail(name, 5)).rows) == rows
        view = await alice.api.declarations.get("Dataset", str(alice.dataset(name)))
        assert view.name == "towns", "its did means the collection"


OWN = "https://w3id.org/odfd/schemas/tasks/v1alpha1"
FORMS: dict[str, Any] = {
    "checks": {
        "target": {"type": "Dataset", "name": "ci%", "labels": {"env": "prod"}},
        "triggers": [{"kind": "Event", "cooldown": "5min", "events": {"type": "dataset.ref.updated"}}],
        "tasks": [
            {"kind": "Compaction", "maxSliceRecords": 100}, {"kind": "Verify", "replayTransform": True},
        ],
        "retryPolicy": {"maxAttempts": 5},
    },
    "hourly": {
        "target": "Dataset:hourly", "triggers": [{"kind": "Interval", "interval": "1h"}],
        "tasks": [{"kind": f"{OWN}/Pull"}],
    },
    "often": {
        "target": "Dataset:cities", "triggers": [{"kind": "Interval", "interval": "1h"}],
        "tasks": [{"kind": f"{OWN}/Pull"}],
    },
    "takes": {
        "target": "Dataset:cities",
        "triggers": [{"kind": "SourceUpdated", "source": "sensors", "minRecordsToAwait": 10}],
        "tasks": [{"kind": "Ingest", "source": "sensors"}],
    },
    "tells": {
        "target": "Dataset:cities",
        "triggers": [{"kind": "Event", "target": "hourly", "events": {"type": "dataset.ref.updated"}}],
        "tasks": [{"kind": "WebhookCall", "endpoint": "hook"}, {"kind": f"{OWN}/Push", "to": "archive"}],
    },
    "done": {"kind": f"{OWN}/VerifyChain", "target": "cities"},
    "waits": {"kind": "Ingest", "source": "sensors", "target": "absent"},
}  # fmt: skip


async def test_flows_and_tasks_of_before_have_the_form_of_rfc_019(tmp_path: Path) -> None:
    world = World(unpacked(FLOW_FORMS, tmp_path))
    world.clock.instant = instant.parse("2026-12-01T00:00:00Z")  # after its last block
    async with world.running("alice", private=True) as alice:
        await alice.parts.reconciler.wait_settled()
        views = {
            each.name: each for type_ in ("flow", "task") for each in await alice.api.declarations.list(type_, None)
        }
        assert {name: views[name].spec for name in FORMS} == FORMS
        policy = {"timeZone": "Europe/Vienna", "retry": {"maxDelay": "2h"}}
        assert views["checks"].headers["annotations"] == {"flowPolicy": policy}
        assert "annotations" not in views["waits"].headers
        told = {line.partition(":")[0] for line in alice.home.recovery.converted if not line.startswith("Webhook")}
        assert told == {
            f"{'Task' if name in ('done', 'waits') else 'Flow'} {name} has the form of RFC-019 now" for name in FORMS
        }  # fmt: skip
        assert (views["done"].status["phase"], views["waits"].status["code"]) == ("Ready", "unresolved-reference")
        (outcome,) = [each for key, each in views["done"].status["conditions"].items() if key.endswith("/TaskOutcome")]
        assert outcome["kind"] == "NoOp", "which was up-to-date"
        found = {each.name: each for each in await flows(alice)}
        assert (found["often"].state, found["often"].when) == ("paused", "every 1h")
        assert found["tells"].runs >= 1, "its record stays with it"
    async with world.running("alice", private=True) as alice:
        assert alice.home.recovery.converted == alice.home.recovery.brought_forward == ()


async def test_a_flow_that_has_no_form_of_rfc_019_stops_the_upgrade_before_anything_is_written(tmp_path: Path) -> None:
    state = unpacked(FLOW_FORMS, tmp_path) / "alice" / "state"
    database = Database(state / DATABASE)
    with database.write() as connection:
        store = ResourceStore(connection)
        (often,) = store.namesakes("Flow", "often")
        task = {"kind": "Ext", "$schema": "Dance"}
        store.rewrite(msgspec.structs.replace(often, spec={**often.spec, "tasks": [task]}), often.updated_at)
    try:
        with pytest.raises(Environment) as refused:
            StateDirectory(state, database)
        assert (refused.value.rule, "Flow often" in refused.value.message) == ("flow-form", True)
        assert "odfctl delete flow" in refused.value.hint
        with database.read() as connection:
            (task,) = ResourceStore(connection).namesakes("Task", "done")
            assert task.spec["kind"] == "Ext"
    finally:
        database.close()
