"""The files of a request as the parsers take them: unpacked, and text in UTF-8.

All that is made lies in a folder of the request, and no file unpacks beyond its bounds.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chain.model.read_options import ReadOptions, read_options
from chain.model.source import ReadCsv, ReadStep
from engines.contract import IngestRequest
from engines.spark.ingest.encodings import decoded, encoding_of
from engines.spark.ingest.foreign_files import converted_file, foreign_kind, step_behind
from engines.spark.ingest.skipped_lines import LinesPassed
from engines.spark.ingest.unpack import SourceFile, UnpackBounds, Unpacking, unpacked, write

_ZIPS: Final = frozenset({"Spreadsheet", "EsriShapefile"})
"""Kinds of files that are zips themselves."""


class Opened(NamedTuple):
    """Files of text, or of what a parser reads by itself."""

    files: list[SourceFile]
    step: ReadStep
    """How they are read: the step of the request, or the one behind a kind of file that was converted."""
    remarks: tuple[str, ...] = ()
    """What was passed over or taken for granted, for people."""


def bounds_of(request: IngestRequest) -> UnpackBounds:
    usual = UnpackBounds()
    return UnpackBounds(request.max_source_bytes or usual.size, request.max_unpack_ratio or usual.ratio)


def opened(
    sources: Sequence[SourceFile],
    step: ReadStep,
    folder: Path,
    bounds: UnpackBounds,
    check: Callable[[], None] = lambda: None,
) -> Opened:
    """``check`` may raise to stop the work. Raises Invalid; Environment for our disk."""
    files: list[SourceFile] = []
    remarks: list[str] = []
    options = read_options(step.schema)
    kind, behind = foreign_kind(step), step_behind(step)
    for number, source in enumerate(sources):
        if source.path.stat().st_size == 0:
            files.append(source)
            continue
        own = folder / f"opened-{number}"
        own.mkdir()
        inside = unpacked(source, own, bounds, options.members, keeps_zip=kind in _ZIPS and options.members is None)
        for place, each in enumerate(inside):
            check()
            growth = Unpacking(each.name, each.path.stat().st_size, bounds)
            if kind is not None:
                text = converted_file(each, step, own / f"made-{place}", bounds, check)
            else:
                text = decoded(each, encoding_of(step), own / f"text-{place}", growth)
            rows, said = _rows_of(text, behind, options, own / f"rows-{place}", bounds)
            files.append(rows)
            remarks += said
    return Opened(files, behind, tuple(remarks))


def _rows_of(
    source: SourceFile, step: ReadStep, options: ReadOptions, target: Path, bounds: UnpackBounds
) -> tuple[SourceFile, tuple[str, ...]]:
    """Without lines that are no rows, and what is told of these."""
    if not isinstance(step, ReadCsv) or not (options.skip_rows or options.skip_footer or options.comment):
        return source, ()
    with source.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        lines = LinesPassed(view, options, step.quote or '"', source.name)
        write(target, lines.blocks(), Unpacking(source.name, len(view), bounds))
    return SourceFile(target, source.name), (lines.passed.told(source.name),)
