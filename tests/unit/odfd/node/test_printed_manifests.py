"""What a node prints of each type is valid by the schema that it names, and can be applied again."""

from __future__ import annotations

from typing import Any

import msgspec

from odfd.api import resource_operations
from odfd.api.resources.types import TYPES
from odfd.resources.types import ResourceType
from worlds import rfc_schemas

LATER = ("Flow", "Task")
"""Types of which another version is to come."""
MORE = {
    "PersistentVolume": """$schema: PersistentVolume
headers: {name: bucket}
spec: {kind: S3, bucket: our-slices, endpoint: "https://s3.example.org", region: us-west-2, capacity: {storage: 10Gi}}
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
OURS = {"Dataset": {"sharded"}, "PersistentVolume": {"cold"}, "Projection": {"warmest"}}
"""Names of resources that the format's schema has no words for."""


async def everything(node: Any) -> list[ResourceType]:
    """Applies the example of each type, and returns all types of which there is something."""
    for kind in TYPES.acting:
        await node.apply(*filter(None, (kind.example, MORE.get(kind.name))))
    await node.parts.reconciler.settled()
    return [kind for kind in TYPES if kind.spec is not None and kind.name not in LATER]


async def test_r03_each_manifest_that_is_printed_is_valid_by_the_schema_that_it_names(world: Any) -> None:
    async with world.running("alice") as alice:
        for kind in await everything(alice):
            views = await alice.api.declarations.list(kind.name, None)
            assert views, kind.name
            ours = {view.name for view in views if view.schema == kind.own_uri != kind.uri and view.spec is not None}
            assert ours == OURS.get(kind.name, set())
            for view in views:
                if view.spec is None:
                    continue  # what was pulled is declared by nobody
                headers = {key: view.headers[key] for key in ("name", "labels", "annotations") if key in view.headers}
                manifest = {"$schema": view.schema, "headers": headers, "spec": msgspec.to_builtins(view.spec)}
                assert rfc_schemas.mistakes(manifest) == [], (kind.name, view.name)
                if not kind.is_derived:
                    shown = await resource_operations.portable(alice.api, kind, view.name, force=True)
                    assert rfc_schemas.mistakes(shown_of(shown)) == [], (kind.name, view.name)


def shown_of(manifest: Any) -> dict[str, Any]:
    """Returns what is sent of a manifest that people may write."""
    sent: dict[str, Any] = msgspec.to_builtins(manifest)
    assert sent.pop("status") == {}
    return sent
