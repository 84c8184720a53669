"""Prepares the files of a request for the parsers: unpacks them, and converts text to UTF-8.

Makes all files in a folder of the request, and unpacks no file beyond its bounds.

Files that the parsers cannot read are converted first, each in a process of its own (``foreign``).
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from chain.errors import Environment, Invalid
from chain.model.read_options import ReadOptions, read_options
from chain.model.source import ReadCsv, ReadEsriShapefile, ReadNdGeoJson, ReadNdJson, ReadParquet, ReadStep
from chain.wording import plural
from engines.contract import IngestBatchRequest
from engines.spark.ingest.encodings import encoding_of, to_utf8
from engines.spark.ingest.foreign.converting import main
from engines.spark.ingest.foreign.job import ANSWER, RULE, Conversion, ConversionResult
from engines.spark.ingest.unpack import CHUNK, SourceFile, UnpackBounds, Unpacking, unpack_source, write

PATIENCE: Final = 3600.0
"""Seconds allowed for converting one file."""
_LOOK: Final = 0.2
_SAID: Final = 300


def foreign_kind(step: ReadStep) -> str | None:
    """Returns the kind of file of a read step that must be converted first; ``None`` for others."""
    named = read_options(step.schema).format
    return "EsriShapefile" if named is None and isinstance(step, ReadEsriShapefile) else named


def step_behind(step: ReadStep) -> ReadStep:
    """Returns the read step for the converted files."""
    match foreign_kind(step):
        case "EsriShapefile" | "GeoPackage":
            return ReadNdGeoJson(ddl_schema=step.ddl_schema, schema=step.schema)
        case "Sqlite":
            return ReadNdJson(ddl_schema=step.ddl_schema, schema=step.schema)
        case "Avro":
            return ReadParquet(ddl_schema=step.ddl_schema, schema=step.schema)
        case None:
            return step
    assert isinstance(step, ReadCsv)
    named = read_options(step.schema).format
    header = True if named == "Xml" else step.header
    return msgspec.structs.replace(step, separator=None, quote=None, escape=None, encoding=None, header=header)


def converted_file(
    source: SourceFile, step: ReadStep, folder: Path, bounds: UnpackBounds, check: Callable[[], None]
) -> SourceFile:
    """Converts a file; ``check`` may raise to stop the work. Raises Invalid; Environment for faults of our machine."""
    kind = foreign_kind(step)
    assert kind is not None
    folder.mkdir()
    target = folder / "rows"
    job = Conversion(
        kind=kind,
        path=str(source.path),
        name=source.name,
        target=str(target),
        folder=str(folder),
        limit=bounds.size,
        ratio=bounds.ratio,
        options=read_options(step.schema) if kind != "EsriShapefile" else ReadOptions(),
        sub_path=getattr(step, "sub_path", None),
    )
    fault = _run_process(job, check).fault()
    if fault is not None:
        raise fault
    return SourceFile(target, source.name)


def _run_process(job: Conversion, check: Callable[[], None]) -> ConversionResult:
    command = [sys.executable, "-m", main.__module__, msgspec.json.encode(job).decode()]
    waited = 0.0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ)
    ) as process:
        try:
            while True:
                try:
                    _, complaint = process.communicate(timeout=_LOOK)
                    break
                except subprocess.TimeoutExpired:
                    waited += _LOOK
                    check()
                    if waited > PATIENCE:
                        raise _too_much(job, f"it took more than {PATIENCE:g} s") from None
        finally:
            process.kill()
    try:
        return msgspec.json.decode((Path(job.folder) / ANSWER).read_bytes(), type=ConversionResult)
    except (OSError, msgspec.DecodeError) as error:
        if process.returncode < 0 or b"memory" in complaint.lower():
            raise _too_much(job, "its reader was ended, as for memory") from error
        words = complaint.decode("utf-8", "replace").strip()[-_SAID:]
        raise Environment(f"the reader of {job.kind} did not work: {words}", rule=RULE) from error


def _too_much(job: Conversion, why: str) -> Invalid:
    return Invalid(
        f"no {job.kind} that can be read: {why}", rule=RULE, hint="split the file, or convert it before", place=job.name
    )


_END: Final = re.compile(rb"\r\n|\n|\r")


class Passed(NamedTuple):
    """Counts the lines of a file that are no rows."""

    before: int
    comments: int
    behind: int

    def describe(self, name: str) -> str:
        parts = [
            plural(self.before, "line") + " before the header" if self.before else "",
            plural(self.comments, "comment") if self.comments else "",
            plural(self.behind, "line") + " at the end" if self.behind else "",
        ]
        return f"{name}: no rows: {', '.join(filter(None, parts))}"


class LinesPassed:
    """Skips the lines of one file that ``options`` exclude. Read ``blocks`` first, then ``passed``."""

    def __init__(self, view: mmap.mmap, options: ReadOptions, quote: str, name: str) -> None:
        self._view = view
        self._quote = quote.encode()
        self._open = False
        self._start, before = _behind_lines(view, options.skip_rows)
        self._stop, behind = _before_footer(view, self._start, options.skip_footer)
        if before < options.skip_rows or behind < options.skip_footer:
            raise Invalid(
                f"skipRows {options.skip_rows} and skipFooter {options.skip_footer} are more than there is",
                rule="read-lines",
                hint="check that the file is complete",
                place=name,
            )
        self._comment = None if options.comment is None else re.escape(options.comment.encode())
        self.passed = Passed(before, 0, behind)

    def blocks(self) -> Iterator[bytes]:
        """Yields the remaining lines in blocks; keeps the line ends of skipped ones, so that line numbers stay."""
        view, at = self._view, self._start
        yield b"\n" * self.passed.before
        if self._comment is not None:
            for found in re.compile(rb"(?<![^\r\n])" + self._comment + rb"[^\r\n]*").finditer(view, at, self._stop):
                yield from self._read_blocks(at, found.start())
                at = found.start()
                if not self._open:  # inside quotes it is part of a value
                    at = found.end()
                    self.passed = self.passed._replace(comments=self.passed.comments + 1)
        yield from self._read_blocks(at, self._stop)

    def _read_blocks(self, start: int, stop: int) -> Iterator[bytes]:
        for at in range(start, stop, CHUNK):
            block = self._view[at : min(at + CHUNK, stop)]
            self._open ^= bool(block.count(self._quote) % 2)
            yield block


def _behind_lines(view: mmap.mmap, count: int) -> tuple[int, int]:
    """Returns the position after so many lines, and how many there were."""
    ends = [found.end() for found in islice(_END.finditer(view), count)]
    return (ends[-1] if ends else 0), len(ends)


def _before_footer(view: mmap.mmap, start: int, count: int) -> tuple[int, int]:
    """Returns the position before so many lines that are not empty, counted from the end, and how many there were."""
    stop, found = len(view), 0
    while found < count and stop > start:
        end = stop
        while end > start and view[end - 1 : end] in (b"\n", b"\r"):
            end -= 1
        stop = max(view.rfind(b"\n", start, end), view.rfind(b"\r", start, end), start - 1) + 1
        found += end > start
    return stop, found


_ZIPS: Final = frozenset({"Spreadsheet", "EsriShapefile"})
"""Kinds of files that are zip archives themselves."""


class OpenedSources(NamedTuple):
    """Opened files, of text or of a format that a parser reads directly."""

    files: list[SourceFile]
    step: ReadStep
    """How to read them: the step of the request, or the one for the converted files."""
    remarks: tuple[str, ...] = ()
    """Remarks on what was skipped or assumed, to be shown to people."""


def bounds_of(request: IngestBatchRequest) -> UnpackBounds:
    usual = UnpackBounds()
    return UnpackBounds(
        request.max_source_bytes or usual.size,
        request.max_unpack_ratio or usual.ratio,
        request.max_record_bytes or usual.record,
    )


def open_sources(
    sources: Sequence[SourceFile],
    step: ReadStep,
    folder: Path,
    bounds: UnpackBounds,
    check: Callable[[], None] = lambda: None,
) -> OpenedSources:
    """Opens sources; ``check`` may raise to stop the work. Raises Invalid; Environment for faults of our disk."""
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
        inside = unpack_source(
            source, own, bounds, options.members, keeps_zip=kind in _ZIPS and options.members is None
        )
        for place, each in enumerate(inside):
            check()
            growth = Unpacking(each.name, each.path.stat().st_size, bounds)
            if kind is not None:
                text = converted_file(each, step, own / f"made-{place}", bounds, check)
            else:
                text = to_utf8(each, encoding_of(step), own / f"text-{place}", growth)
            rows, said = _rows_of(text, behind, options, own / f"rows-{place}", bounds)
            files.append(rows._replace(record_bytes=bounds.record))
            remarks += said
    return OpenedSources(files, behind, tuple(remarks))


def _rows_of(
    source: SourceFile, step: ReadStep, options: ReadOptions, target: Path, bounds: UnpackBounds
) -> tuple[SourceFile, tuple[str, ...]]:
    """Returns the text without the lines that are no rows, and remarks on these."""
    if not isinstance(step, ReadCsv) or not (options.skip_rows or options.skip_footer or options.comment):
        return source, ()
    with source.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        lines = LinesPassed(view, options, step.quote or '"', source.name)
        write(target, lines.blocks(), Unpacking(source.name, len(view), bounds))
    return SourceFile(target, source.name), (lines.passed.describe(source.name),)
