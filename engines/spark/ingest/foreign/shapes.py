"""Converts a zipped ESRI shapefile to lines of GeoJSON features.

Coordinates stay in their system; if it is not WGS 84, each shape names it in its member ``crs``.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import shapefile

from chain.errors import Invalid
from engines.spark.ingest.encodings import codec_of
from engines.spark.ingest.foreign.job import RULE, Conversion, one_of
from engines.spark.ingest.unpack import (
    UnpackBounds,
    UnpackFaults,
    Unpacking,
    blocks,
    choose_members,
    member_names,
    write,
)

_PARTS: Final = ("shp", "shx", "dbf", "prj", "cpg")
_WGS84: Final = frozenset({"gcswgs1984", "wgs84", "wgs1984"})
_BROKEN: Final = (shapefile.ShapefileException, struct.error, ValueError, IndexError, KeyError, OverflowError, EOFError)


def shape_text(job: Conversion) -> Iterator[bytes]:
    """Yields the features as lines of text. Raises Invalid."""
    parts = _unpack(job)
    crs = _crs(parts)
    codec = _codec(parts)
    try:
        with shapefile.Reader(
            shp=str(parts["shp"]), shx=_maybe(parts, "shx"), dbf=_maybe(parts, "dbf"), encoding=codec
        ) as reader:
            names = [field[0] for field in reader.fields if field[0] != "DeletionFlag"]
            for shape in reader.iterShapeRecords():
                yield _feature(shape, names, crs)
    except UnicodeDecodeError as error:
        raise Invalid(
            f"texts that are no {codec}: {error.reason}", rule="read-encoding", hint="add a .cpg file", place=job.name
        ) from error
    except _BROKEN as error:
        raise Invalid(
            f"not a shapefile that can be read: {error}",
            rule=RULE,
            hint="check that the file is complete",
            place=job.name,
        ) from error


def _feature(shape: Any, names: list[str], crs: str | None) -> bytes:
    geometry = None
    if shape.shape.shapeType != shapefile.NULL:
        geometry = dict(shape.shape.__geo_interface__)
        if crs is not None:
            geometry["crs"] = {"type": "name", "properties": {"name": crs}}
    values = {name: _value(value) for name, value in zip(names, shape.record, strict=True)}
    return msgspec.json.encode({"type": "Feature", "geometry": geometry, "properties": values}) + b"\n"


def _value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.date) else value


def _unpack(job: Conversion) -> dict[str, Path]:
    """Unpacks the parts of the zip's one shapefile; returns them by their endings."""
    if not zipfile.is_zipfile(job.path):
        raise Invalid(
            "a shapefile comes as a zip of its parts (.shp, .shx, .dbf, .prj)",
            rule=RULE,
            hint="pack them into one zip",
            place=job.name,
        )
    growth = Unpacking(job.name, job.source.stat().st_size, UnpackBounds(job.limit, job.ratio))
    with UnpackFaults(job.name, "zip"), zipfile.ZipFile(job.path) as archive:
        names = member_names(archive)
        shapes = [name for name in names if name.lower().endswith(".shp")]
        wanted = job.sub_path
        if wanted is not None:
            found = choose_members(shapes, wanted) or [name for name in shapes if name.startswith(wanted)]
            wanted = found[0] if len(found) == 1 else wanted
        stem = one_of(wanted, shapes, "shapefile", "subPath", job.name)[:-4].lower()
        made = {}
        for name in names:
            base, _, ending = name.rpartition(".")
            if base.lower() == stem and ending.lower() in _PARTS:
                target = Path(job.folder) / f"shape.{ending.lower()}"
                with archive.open(name) as member:
                    write(target, blocks(member), growth)
                made[ending.lower()] = target
    return made


def _maybe(parts: dict[str, Path], ending: str) -> str | None:
    return str(parts[ending]) if ending in parts else None


def _codec(parts: dict[str, Path]) -> str:
    """Returns the declared encoding of the file's texts, or UTF-8 if none is declared."""
    if "cpg" not in parts:
        return codec_of(None)
    said = parts["cpg"].read_text("ascii", "replace").strip().lower().removeprefix("ansi ")
    return codec_of(f"cp{said}" if said.isdigit() else said)


def _crs(parts: dict[str, Path]) -> str | None:
    """Returns the name of the coordinate system; ``None`` for WGS 84, and if none is declared."""
    if "prj" not in parts:
        return None
    found = re.match(r"\s*[A-Z]+\[\s*\"([^\"]{1,200})\"", parts["prj"].read_text("utf-8", "replace"))
    name = found[1] if found else "unknown"
    return None if re.sub(r"[^a-z0-9]", "", name.lower()) in _WGS84 else name
