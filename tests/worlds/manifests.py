"""Two datasets as people write them: cities from CSV files of a folder, and towns, which derives from them."""

from __future__ import annotations

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
BOTH = f"{ROOT}---\n{DERIVED}"
