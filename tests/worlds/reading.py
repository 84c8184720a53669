"""A file read as the engine reads it, without Spark: planned, cut into ranges, each range parsed."""

from __future__ import annotations

import tempfile
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from chain.codec.manifest import parse_manifests, render_manifest
from chain.model.events import AddPushSource
from chain.model.source import ReadStep
from engines.spark.ingest.parse import SourceFile, plan_file, read_schema
from engines.spark.ingest.range_tasks import RangeTask, parse
from engines.spark.ingest.source_files import OpenedSources, open_sources
from engines.spark.ingest.unpack import UnpackBounds
from odfd.datasets.creation import with_columns

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
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return _read(open_sources([SourceFile(path, NAME)], step, Path(scratch), UnpackBounds()), folder, step)


def _read(sources: OpenedSources, folder: Path, step: ReadStep) -> Read:
    schema, remarks = read_schema(step), list(sources.remarks)
    tasks: list[RangeTask] = []
    for source in sources.files:
        schema, format_, spans, said, _ = plan_file(source, sources.step, schema)
        remarks += said
        for span in spans:
            part = str(folder / f"{len(tasks)}")
            tasks.append(
                RangeTask(path=str(source.path), name=source.name, span=span, format=format_, schema=schema, part=part)
            )
    parsed = [parse(task) for task in tasks]
    unknown: dict[str, int] = {}
    for each in parsed:
        for field, count in each.unknown.items():
            unknown[field] = unknown.get(field, 0) + count
    assert schema is not None
    table = pa.concat_tables([schema.empty_table(), *(each.table.cast(schema) for each in parsed)])
    return Read(table, unknown, tuple(remarks))


def read_step(text: str) -> ReadStep:
    """The read step of a manifest, as a chain has it; it is the same when the chain's manifest is read again."""
    indented = textwrap.indent(textwrap.dedent(text).strip(), "    ")
    manifest = "kind: MetadataEvent\nversion: 1\ncontent:\n  kind: AddPushSource\n  sourceName: default\n"
    manifest += f"  read:\n{indented}\n  merge: {{kind: Append}}\n"
    (parsed,) = parse_manifests(manifest, "m.yaml")
    assert isinstance(parsed.content, AddPushSource)
    event = with_columns(parsed.content)
    assert isinstance(event, AddPushSource)
    (again,) = parse_manifests(render_manifest(event), "again.yaml")
    assert again.content == event
    return event.read
