"""A type that is registered is served by all paths, commands and GraphQL, with no code that names it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import pytest

from chain.errors import Invalid, Refused
from odfd.api import resource_operations as operations
from odfd.cli import resource_tables
from odfd.control import wire
from odfd.node import features
from odfd.resources import records
from odfd.resources.controller import ApplyBatch, Controller, Controllers, Intent
from odfd.resources.manifest import describe
from odfd.resources.plan import DesiredResource, PlannedResource
from odfd.resources.references import refers_to
from odfd.resources.registry import OURS, PrintedColumn, Registration
from odfd.resources.resource import Resource
from odfd.resources.types import ResourceType, TypeOperations, TypeRegistry
from odfd.services.resources.types import TYPES
from worlds.asking import ask
from worlds.node_world import World

DELETED: list[str] = []


class ToySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a toy does."""

    sound: Annotated[str, describe("What it says.")]
    chest: Annotated[str, describe("The set in which it lies."), refers_to("VariableSet")] | None = None


async def _deleted(operations: TypeOperations, view: Any, how: Any) -> None:
    DELETED.append(view.name)
    await operations.delete("Toy", view.id, how.generation, force=how.force)


TOY = ResourceType(
    names=Registration(
        "Toy", "play", "toys", aliases=("ty",), base=OURS,
        columns=(PrintedColumn("SAYS", "spec.sound"), PrintedColumn("PHASE", "status.phase", "phase")),
    ),
    about="A toy.", spec=ToySpec, delete=_deleted,
)  # fmt: skip
BEAR = {"$schema": "Toy", "headers": {"name": "bear"}, "spec": {"sound": "brumm", "chest": "VariableSet:chest"}}
CHEST = "$schema: VariableSet\nheaders: {name: chest}\nspec: {variables: {x: '1'}}\n"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = TypeRegistry([*TYPES, TOY])
    for part in ("_types", "_written", "_words"):
        monkeypatch.setattr(TYPES, part, getattr(registry, part))
    DELETED.clear()


async def test_r07_a_registered_type_is_served_everywhere_and_named_nowhere(world: World) -> None:
    async with world.running("alice") as alice:
        status, (item,) = await ask(alice, "POST", "/play/v1alpha1/toys", body=BEAR)
        assert (status, item["kind"], item["action"]) == (201, "toy", "created")
        await alice.parts.reconciler.wait_settled()
        status, (held,) = await ask(alice, "GET", "/play/v1alpha1/ty/bear")
        assert (status, held["$schema"]) == (200, f"{OURS}/play/v1alpha1/Toy")
        assert held["status"]["phase"] == "Ready"
        (dangling,) = [each for key, each in held["status"]["conditions"].items() if key.endswith("DanglingReferences")]
        assert dangling["value"] is True
        await alice.apply(CHEST)
        await alice.parts.reconciler.wait_settled()
        patch = {"spec": {"sound": "grr"}}
        assert (await ask(alice, "PATCH", "/play/v1alpha1/toys/bear", body=patch))[0] == 200
        await alice.parts.reconciler.wait_settled()
        status, (listed,) = await ask(alice, "GET", "/play/v1alpha1/toys")
        (shown,) = listed["items"]
        assert shown["spec"]["sound"] == "grr"
        (meant,) = [each for key, each in shown["status"]["conditions"].items() if key.endswith("/References")]
        assert [each.get("name") for each in meant["value"]] == ["chest"]
        row = msgspec.convert(shown, wire.ResourceManifest)
        columns = resource_tables.columns(TOY.names, 0)  # type: ignore[arg-type]  # an Instant
        assert [(each.title, each.cell(row)) for each in columns] == [
            ("NAME", "bear"), ("SAYS", "grr"), ("PHASE", "Ready"),
        ]  # fmt: skip
        query = {"query": '{ resource(ref: "Toy:bear") }'}
        _, (told,) = await ask(alice, "POST", "/graphql", body=query)
        assert told["data"]["resource"]["spec"]["sound"] == "grr"
        _, (explained,) = await ask(alice, "GET", "/resource/v1alpha1/types/toy", "path=spec")
        assert [each["name"] for each in explained["fields"]] == ["sound", "chest"]
        assert (await ask(alice, "GET", "/schemas/play/v1alpha1/Toy"))[0] == 200
        assert (await ask(alice, "DELETE", "/play/v1alpha1/toys/bear"))[0] == 200
        assert DELETED == ["bear"]
        assert (await ask(alice, "GET", "/play/v1alpha1/toys/bear"))[0] == 404
        assert operations.type_of("play", "v1alpha1", "ty") is TOY


class ToyController(Controller):
    """Winds toys up: the last written first, upon those before it."""

    type = "Toy"
    prepares = "changes"

    def __init__(self) -> None:
        self.acts: list[str] = []

    def check(self, before: Resource, after: Resource | None) -> None:
        if after is not None and before.name != after.name:
            raise Invalid("a toy keeps its name", rule="toy-name")

    def spec_to_store(self, desired: DesiredResource, before: Resource | None) -> Any:
        return {**desired.spec, "sound": desired.spec["sound"].lower()}

    def order(self, planned: Sequence[PlannedResource], batch: ApplyBatch) -> Sequence[PlannedResource]:
        return planned[::-1]

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent:
        name, sound = planned.after.name, planned.after.spec["sound"]
        if sound == "silence":
            raise Refused(
                "a toy says something", rule="toy-sound", place=batch.drafts[planned.after.id].place("spec.sound")
            )
        self.acts.append(f"prepare {name}")

        def record(connection: sqlite3.Connection) -> None:
            if sound == "broken":
                raise Refused("its spring is broken", rule="toy-broken")
            records.put(connection, "toy", name, sound.encode(), batch.now)

        async def take_up() -> None:
            self.acts.append(f"take up {name}")

        return Intent(record, take_up, tell=partial(self.acts.append, f"tell {name}"), item={"warnings": ("wound up",)})

    async def follow_changes(self, changed: Sequence[PlannedResource]) -> None:
        self.acts.append(f"applied {', '.join(each.after.name for each in changed)}")


def toy(name: str, sound: str = "Brumm", **headers: str) -> str:
    said = "".join(f", {key}: {value}" for key, value in headers.items())
    return f"$schema: Toy\nheaders: {{name: {name}{said}}}\nspec: {{sound: {sound}}}\n"


async def test_r07_a_controller_takes_part_in_an_apply_by_what_it_says_of_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = ToyController()
    monkeypatch.setattr(features, "Controllers", lambda each: Controllers([*each, controller]))

    def actions(result: wire.ApplyResult) -> Mapping[str, str]:
        return {each.name: each.action for each in result.items}

    async with world.running("alice") as alice:

        def kept() -> dict[str, bytes]:
            with alice.home.database.read() as connection:
                return {each.key: each.body for each in records.of_kind(connection, "toy")}

        await alice.apply(toy("bear"), toy("cat"), dry_run=True)
        assert controller.acts == ["prepare cat", "prepare bear"]
        assert kept() == {}
        controller.acts.clear()
        made = await alice.apply(CHEST, toy("bear"), toy("cat"))
        assert [(each.name, each.action, each.warnings) for each in made.items] == [
            ("cat", "created", ("wound up",)), ("bear", "created", ("wound up",)), ("chest", "created", ()),
        ]  # fmt: skip
        assert controller.acts == [
            "prepare cat", "prepare bear", "take up cat", "take up bear", "applied cat, bear", "tell cat", "tell bear",
        ]  # fmt: skip
        assert kept() == {"bear": b"brumm", "cat": b"brumm"}
        controller.acts.clear()
        assert set(actions(await alice.apply(CHEST, toy("bear"), toy("cat"))).values()) == {"unchanged"}
        assert controller.acts == []
        both = toy("bear", "Grr"), toy("cat", "silence")
        (cat, bear) = (await alice.apply(*both)).items
        assert (cat.action, bear.action) == ("failed", "skipped")
        assert cat.fault is not None
        assert (cat.fault.rule, cat.fault.place) == ("toy-sound", "m1.yaml:3")
        assert kept() == {"bear": b"brumm", "cat": b"brumm"}
        assert actions(await alice.apply(*both, on_error="skip")) == {"cat": "failed", "bear": "updated"}
        (cat, bear) = (await alice.apply(toy("bear", "Mew"), toy("cat", "broken"))).items
        assert cat.fault is not None
        assert (cat.fault.rule, bear.action, kept()["bear"]) == ("toy-broken", "skipped", b"grr")
        id_ = (await alice.api.declarations.get("toy", "cat")).id
        with pytest.raises(Invalid, match="a toy keeps its name"):
            await alice.apply(toy("tiger", id=id_))
