"""A file read as the engine reads it, without Spark: planned, cut into ranges, each range parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from chain.model.source import ReadStep
from engines.spark.ingest.parse import SourceFile, plan_file, read_schema
from engines.spark.ingest.range_tasks import Task, parse

NAME = "data.txt"


class Read(NamedTuple):
    table: pa.Table
    unknown: dict[str, int]
    remarks: tuple[str, ...]

    @property
    def rows(self) -> list[list[Any]]:
        return [list(row.values()) for row in self.table.to_pylist()]

    def column(self, name: str) -> list[Any]:
        found: list[Any] = self.table.column(name).to_pylist()
        return found


def read(folder: Path, data: bytes | str, step: ReadStep) -> Read:
    """Raises Invalid as the engine does."""
    path = folder / NAME
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    schema, format_, spans, remarks, _ = plan_file(SourceFile(path, NAME), step, read_schema(step))
    tasks = [
        Task(path=str(path), name=NAME, span=span, format=format_, schema=schema, part=str(folder / f"{number}"))
        for number, span in enumerate(spans)
    ]
    parsed = [parse(task) for task in tasks]
    unknown: dict[str, int] = {}
    for each in parsed:
        for field, count in each.unknown.items():
            unknown[field] = unknown.get(field, 0) + count
    table = pa.concat_tables([schema.empty_table(), *(each.table.cast(schema) for each in parsed)])
    return Read(table, unknown, remarks)
