"""A type that is registered is served by all paths, commands and GraphQL, with no code that names it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from odfd.api import resource_operations as operations
from odfd.api.resources.types import TYPES
from odfd.cli import resource_tables
from odfd.control import wire
from odfd.resources.manifest import described
from odfd.resources.references import refers_to
from odfd.resources.registry import OURS, PrintedColumn, Registration
from odfd.resources.types import ResourceType, TypeRegistry
from worlds.asking import ask

DELETED: list[str] = []


class ToySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a toy does."""

    sound: Annotated[str, described("What it says.")]
    chest: Annotated[str, described("The set in which it lies."), refers_to("VariableSet")] | None = None


async def _deleted(services: Any, view: Any, how: Any) -> None:
    DELETED.append(view.name)
    await services.declarations.delete("Toy", view.id, how.generation, force=how.force)


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


async def test_r07_a_registered_type_is_served_everywhere_and_named_nowhere(world: Any) -> None:
    async with world.running("alice") as alice:
        status, (item,) = await ask(alice, "POST", "/play/v1alpha1/toys", body=BEAR)
        assert (status, item["kind"], item["action"]) == (201, "toy", "created")
        await alice.parts.reconciler.settled()
        status, (held,) = await ask(alice, "GET", "/play/v1alpha1/ty/bear")
        assert (status, held["$schema"]) == (200, f"{OURS}/play/v1alpha1/Toy")
        assert held["status"]["phase"] == "Ready"
        (dangling,) = [each for key, each in held["status"]["conditions"].items() if key.endswith("DanglingReferences")]
        assert dangling["value"] is True
        await alice.apply(CHEST)
        await alice.parts.reconciler.settled()
        patch = {"spec": {"sound": "grr"}}
        assert (await ask(alice, "PATCH", "/play/v1alpha1/toys/bear", body=patch))[0] == 200
        await alice.parts.reconciler.settled()
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
