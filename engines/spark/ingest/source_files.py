"""The files of a request as the parsers take them: unpacked, and text in UTF-8.

All that is made lies in a folder of the request, and no file unpacks beyond its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chain.model.source import ReadEsriShapefile, ReadStep
from engines.contract import IngestRequest
from engines.spark.ingest.encodings import decoded, encoding_of
from engines.spark.ingest.unpack import SourceFile, UnpackBounds, Unpacking, unpacked


class Opened(NamedTuple):
    """Files of text, or of what a parser reads by itself."""

    files: list[SourceFile]
    remarks: tuple[str, ...] = ()
    """What was passed over or taken for granted, for people."""


def bounds_of(request: IngestRequest) -> UnpackBounds:
    usual = UnpackBounds()
    return UnpackBounds(request.max_source_bytes or usual.size, request.max_unpack_ratio or usual.ratio)


def opened(sources: Sequence[SourceFile], step: ReadStep, folder: Path, bounds: UnpackBounds) -> Opened:
    """Raises Invalid; Environment for our disk."""
    files = []
    for number, source in enumerate(sources):
        if source.path.stat().st_size == 0:
            files.append(source)
            continue
        own = folder / f"opened-{number}"
        own.mkdir()
        inside = unpacked(source, own, bounds, keeps_zip=isinstance(step, ReadEsriShapefile))
        for place, each in enumerate(inside):
            growth = Unpacking(each.name, each.path.stat().st_size, bounds)
            files.append(decoded(each, encoding_of(step), own / f"text-{place}", growth))
    return Opened(files)
