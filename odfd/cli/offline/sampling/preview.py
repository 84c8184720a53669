"""Reads the first rows of a file by a read step, as the engine would."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from chain.errors import Invalid
from chain.libraries import pa
from chain.model.source import ReadStep
from engines.spark.ingest.encodings import with_guess
from engines.spark.ingest.parse import plan_file, read_schema
from engines.spark.ingest.range_tasks import ParquetFormat, RangeTask, parse
from engines.spark.ingest.ranges import Range
from engines.spark.ingest.source_files import open_sources
from engines.spark.ingest.unpack import SourceFile, UnpackBounds

_BOUNDS: Final = UnpackBounds()


class SampleRows(NamedTuple):
    """The first rows of a file, and remarks on them."""

    rows: pa.Table
    remarks: tuple[str, ...]


def read_sample(path: Path, name: str, step: ReadStep, limit: int, bounds: UnpackBounds = _BOUNDS) -> SampleRows:
    """Reads at most ``limit`` rows, of the first range only. Raises Invalid as an ingest does; Environment."""
    with tempfile.TemporaryDirectory(prefix="odfctl-") as scratch:
        folder = Path(scratch)
        sources = open_sources([SourceFile(path, name)], step, folder, bounds)
        try:
            return _first(sources.files, sources.step, sources.remarks, limit, folder)
        except Invalid as fault:
            raise with_guess(fault, sources.files) from fault


def _first(files: list[SourceFile], step: ReadStep, remarks: tuple[str, ...], limit: int, folder: Path) -> SampleRows:
    wanted, tables = read_schema(step), []
    for file in files:
        if not file.path.stat().st_size:
            continue
        plan = plan_file(file, step, wanted)
        wanted = plan.schema
        remarks += plan.remarks
        span = plan.spans[0] if plan.spans else Range(0, 0)
        task = RangeTask(
            path=str(file.path), name=file.name, span=span, format=plan.format, schema=wanted, part=str(folder / "part")
        )
        if plan.spans or isinstance(plan.format, ParquetFormat):
            tables.append(parse(task).table.slice(0, limit))
        if sum(each.num_rows for each in tables) >= limit:
            break
    columns = wanted if wanted is not None else pa.schema([])
    rows = pa.concat_tables([columns.empty_table(), *(each.cast(columns) for each in tables)])
    return SampleRows(rows.slice(0, limit), remarks)
