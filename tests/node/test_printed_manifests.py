"""What a node prints of each type is valid by the schema that it names, and can be applied again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from chain.errors import Invalid
from odfd.api import resource_operations
from odfd.resources.store import ResourceStore
from odfd.resources.types import ResourceType
from odfd.services.resources.types import TYPES
from odfd.services.resources.views import manifest_of
from worlds import rfc_schemas
from worlds.node_world import Node, World

MORE = {
    "PersistentVolume": """$schema: PersistentVolume
headers: {name: bucket}
spec: {kind: S3, bucket: our-slices, endpoint: "https://s3.example.org", region: us-west-2, capacity: {storage: 10Gi}}
""",
    "WebhookTarget": """$schema: WebhookTarget
headers: {name: sealed}
spec: {url: "https://example.org/hook", secret: whsec_bm90IGEgc2VjcmV0IG9mIGFueWJvZHkgYXQgYWxs}
""",
    "Projection": """$schema: Projection
headers: {name: newest}
spec:
  inputs: [{datasetRef: sensors}]
  project: {kind: Sql, engine: duckdb, query: SELECT max(celsius) AS celsius FROM sensors}
""",
    "Dataset": """$schema: Dataset
headers:
  name: sharded
  annotations: {schedule: {every: 1h}}
spec:
  kind: Root
  shards: {number: 2, by: [n]}
  metadata:
  - kind: SetPollingSource
    fetch: {kind: Url, url: "file:///nothing.csv"}
    read: {kind: Csv, header: true, schema: {fields: [{name: n, type: Int64}]}}
    merge: {kind: Append}
""",
}
"""Manifests beside the example of a type, so that what only we have is with it and without."""
OURS = {
    "Dataset": {"sharded"},
    "Flow": {"sharded"},
    "WebhookTarget": {"com.example.hook"},
    "PersistentVolume": {"cold"},
    "Projection": {"warmest"},
}
"""Names of resources that the format's schema has no words for."""


async def everything(node: Node) -> list[ResourceType]:
    """Applies the example of each type, and returns all types of which there is something."""
    for kind in TYPES.acting:
        await node.apply(*filter(None, (kind.example, MORE.get(kind.name))))
    await node.parts.reconciler.wait_settled()
    return [kind for kind in TYPES if kind.spec is not None]


async def listed(node: Node, type_: str) -> list[Any]:
    """Lists what is stored of a type: the tasks of commands are of kinds that nobody declares."""
    with node.home.database.read() as connection:
        stored = {each.id for each in ResourceStore(connection).all(type_)}
    views = await node.api.declarations.list(type_, None)
    return [each for each in views if each.id in stored or type_ != "Task"]


async def test_r03_each_manifest_that_is_printed_is_valid_by_the_schema_that_it_names(world: World) -> None:
    async with world.running("alice") as alice:
        for kind in await everything(alice):
            views = await listed(alice, kind.name)
            assert views, kind.name
            ours = {view.name for view in views if view.schema == kind.own_uri != kind.uri and view.spec is not None}
            assert ours == OURS.get(kind.name, set())
            for view in views:
                canonical = msgspec.to_builtins(manifest_of(view))
                assert rfc_schemas.mistakes(canonical) == [], (kind.name, view.name)
                if not kind.is_derived and view.spec is not None:  # what was pulled is declared by nobody
                    shown = await resource_operations.portable(alice.api, kind, view.name, force=True)
                    assert rfc_schemas.mistakes(shown_of(shown)) == [], (kind.name, view.name)


def shown_of(manifest: Any) -> dict[str, Any]:
    """Returns what is sent of a manifest that people may write."""
    sent: dict[str, Any] = msgspec.to_builtins(manifest)
    assert sent.pop("status") == {}
    return sent


async def test_r08_what_is_shown_of_a_resource_is_applied_again_without_a_change(world: World) -> None:
    async with world.running("alice") as alice:
        for kind in await everything(alice):
            for view in await listed(alice, kind.name):
                if not kind.is_derived:
                    (item,) = (await alice.apply(json.dumps(msgspec.to_builtins(manifest_of(view))))).items
                    assert (item.action, item.fault) == ("unchanged", None), (kind.name, view.name, item)


async def test_r09_an_account_is_written_by_its_id_its_did_or_its_name(world: World) -> None:
    account = "$schema: Account\nheaders: {name: bob}\nspec: {email: b@example.org, did: 'did:odf:fed01bob'}\n"
    made = "$schema: VariableSet\nheaders: {name: a, account: {name: bob}}\nspec: {variables: {}}\n"

    async def shown(of: str) -> Any:
        (view,) = [each for each in await alice.api.declarations.list("VariableSet", None) if each.name == of]
        return manifest_of(view).headers["account"]

    async with world.running("alice") as alice:
        await alice.apply(account, made, made.replace(", account: {name: bob}", "").replace("a}", "b}"))
        bob, owner = await shown("a"), await shown("b")
        assert (bob["did"], bob["name"], owner["name"]) == ("did:odf:fed01bob", "bob", "node")
        for whole in (bob, owner):
            for forms in (whole, {"id": whole["id"]}, {"did": whole["did"]}, whole["did"]):
                text = json.dumps({"$schema": "VariableSet", "headers": {"name": "c", "account": forms}})
                (item,) = (await alice.apply(text[:-1] + ', "spec": {"variables": {}}}')).items
                assert (item.action, await shown("c")) == ("created", whole)
                await alice.api.declarations.delete("VariableSet", f"{whole['name']}/c" if whole is bob else "c")
        with pytest.raises(Invalid, match="is no did"):
            await alice.apply(account.replace("did:odf:fed01bob", "bob"))


async def test_a_did_alone_names_a_dataset_that_is_here(world: World) -> None:
    text = "$schema: Dataset\nheaders: {{name: {}}}\nspec: {{did: {}}}\n"
    async with world.running("alice") as alice:
        await alice.apply("$schema: Dataset\nheaders: {name: raw}\nspec: {kind: Root, metadata: []}\n")
        did = alice.dataset("raw")
        (item,) = (await alice.apply(text.format("raw", did).replace("raw}", "raw, labels: {env: dev}}"))).items
        assert (item.action, item.changes) == ("updated", ('+ labels.env: "dev"',))
        for name, other in (("new", did), ("raw", "did:odf:fed01" + "0" * 64)):
            with pytest.raises(Invalid, match="there is no dataset"):
                await alice.apply(text.format(name, other))
        with pytest.raises(Invalid, match="metadata is missing"):
            await alice.apply("$schema: Dataset\nheaders: {name: new}\nspec: {kind: Root}\n")
