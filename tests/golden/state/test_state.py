"""State directories of earlier programs are opened: all that was in them stands, and each change is told.

One is of before there were resources; one of when what commands declared stood beside them, in a log of its own.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from odfd.resources.store import ResourceStore
from odfd.state.upgrade import table_changes
from worlds.node_world import World

KEPT = Path(__file__).with_name("before-resources.tar.gz")
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
    datasets = {each.name: each for each in await alice.api.datasets.list()}
    assert {name: (each.blocks, each.records) for name, each in datasets.items()} == {
        "airlines": (7, 20), "cities": (3, 0), "flights.long": (10, 1_248), "sensors": (2, 0), "theirs": (0, 0),
    }  # fmt: skip
    assert [name for name, each in datasets.items() if each.published] == ["cities", "theirs"]
    assert {name for name, each in datasets.items() if each.owner} == {"cities", "sensors"}
    rows = await alice.api.datasets.tail("airlines", 1)
    assert "SkyWest" in rows.rows[0]
    (mirror,) = await alice.api.mirrors.list()
    assert (mirror.id, mirror.want, mirror.priority) == (MIRRORED, "chain", 5)
    (validator,) = await alice.api.trust.validators()
    assert (validator.key, validator.group) == (f"did:key:{VALIDATOR}", "uni")
    assert (await alice.api.declarations.get("Peer", BLOCKED)).spec == {"peerId": BLOCKED, "blocked": True}
    manifest = await alice.api.datasets.manifest("cities")
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
        (mirror,) = await alice.api.mirrors.list()
        assert (mirror.id, mirror.want, mirror.priority) == (MIRRORED, "chain", 5)
        assert (await alice.api.declarations.get("Mirror", "theirs")).headers["labels"]["topic"] == "health"
        flows = {each.name: each.target for each in await alice.api.flows.list()}
        assert flows == {"often": "sensors", "sensors": "sensors"}
        assert [each.name for each in await alice.api.datasets.list() if each.published] == ["sensors", "theirs"]
        with alice.home.database.read() as connection:
            store = ResourceStore(connection)
            (bobs,) = store.namesakes("SecretSet", "keys")
            assert store.account_name(bobs.account or "") == "bob"
            source = store.named("Source", "cities", None)
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
