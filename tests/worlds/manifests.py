"""Two datasets as people write them: cities from CSV files of a folder, and towns, which derives from them."""

from __future__ import annotations

from chain.yaml_text import render_yaml
from odfd.control import wire

ROOT = """kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: '*.csv', order: ByName}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {kind: Append}
"""
DERIVED = """kind: DatasetSnapshot
version: 1
content:
  name: towns
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs:
        - {datasetRef: cities, alias: cities}
      transform:
        kind: Sql
        engine: spark
        query: select * from cities
"""
GATE = """kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: gate
      read: {kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}
      merge: {kind: Append}
"""
"""A root that takes what is pushed to it."""
FROM_URL = """kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: '{url}'}}
      read:
        kind: Csv
        header: true
        ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']
      merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""
BOTH = f"{ROOT}---\n{DERIVED}"
HOOKED = """$schema: SecretSet
headers: {name: hooks}
spec: {secrets: {key: sesame-open-sesame-open-sesame}}
---
$schema: Source
headers: {name: hooked}
spec:
  config: {key: "SecretSet:hooks#key"}
  ingress: {kind: RestEndpoint, signature: {kind: Hmac, secret: "${{ config.key }}", idHeader: X-Delivery}}
  read: {kind: NdJson, schema: {fields: [{name: x, type: Int64}]}}
---
$schema: Source
headers: {name: closed}
spec:
  ingress: {kind: RestEndpoint}
  read: {kind: NdJson, schema: {fields: [{name: x, type: Int64}]}}
"""
"""A Source that takes signed calls, and one that takes none."""
_IN_SHARDS = """$schema: Dataset
headers: {name: NAME}
spec:
  kind: Root
  shards: {number: 3, by: [city]}
  metadata:
"""


def in_shards(root: str, shards: str = "{number: 3, by: [city]}") -> str:
    """A root as a resource that begins in shards."""
    name = root.split("  name: ", 1)[1].split("\n", 1)[0]
    said = _IN_SHARDS.replace("NAME", name).replace("{number: 3, by: [city]}", shards)
    return said + root.split("  metadata:\n", 1)[1]


def text_of(manifest: wire.ResourceManifest) -> str:
    """A manifest as a person keeps it in a file."""
    return render_yaml({"$schema": manifest.schema, "headers": manifest.headers, "spec": manifest.spec})
