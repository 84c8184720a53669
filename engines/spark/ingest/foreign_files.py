"""Converts files that the parsers cannot read, each in a process of its own, and reads the results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Environment, Invalid
from chain.model.read_options import ReadOptions, read_options
from chain.model.source import ReadCsv, ReadEsriShapefile, ReadNdGeoJson, ReadNdJson, ReadParquet, ReadStep
from engines.spark.ingest.foreign.converting import main
from engines.spark.ingest.foreign.job import ANSWER, RULE, Conversion, ConversionResult
from engines.spark.ingest.unpack import SourceFile, UnpackBounds

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
