"""Runs a converting process: reads one file, writes one file and a JSON report."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Invalid
from engines.spark.ingest.foreign.avro import avro_to_parquet
from engines.spark.ingest.foreign.job import ANSWER, MEMORY, RULE, Conversion, ConversionResult
from engines.spark.ingest.foreign.shapes import shape_text
from engines.spark.ingest.foreign.sheets import sheet_text
from engines.spark.ingest.foreign.sqlite_file import layer_text, table_text
from engines.spark.ingest.foreign.xml_records import record_text
from engines.spark.ingest.unpack import UnpackBounds, Unpacking, write

_TEXTS: Final[Mapping[str, Callable[[Conversion], Iterator[bytes]]]] = {
    "Spreadsheet": sheet_text,
    "Xml": record_text,
    "GeoPackage": layer_text,
    "EsriShapefile": shape_text,
    "Sqlite": table_text,
}
_ANY_RATIO: Final = 1 << 20
"""A ratio that no file reaches: the text of a spreadsheet is many times its bytes, so only its size is bounded."""


def convert(job: Conversion) -> ConversionResult:
    try:
        if job.kind == "Avro":
            avro_to_parquet(job)
        else:
            growth = Unpacking(job.name, job.source.stat().st_size, UnpackBounds(job.limit, _ANY_RATIO))
            write(Path(job.target), _TEXTS[job.kind](job), growth)
    except Invalid as fault:
        return ConversionResult.of(fault)
    except (MemoryError, RecursionError):
        return ConversionResult(
            message="it needs more memory than a file may", rule=RULE, hint="split the file", place=job.name
        )
    return ConversionResult()


def main(arguments: list[str]) -> int:
    """Runs the process. Returns its exit code."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job = msgspec.json.decode(arguments[0], type=Conversion)
    (Path(job.folder) / ANSWER).write_bytes(msgspec.json.encode(convert(job)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
