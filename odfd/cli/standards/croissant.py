"""Writes exported rows as Croissant JSON-LD, the description of datasets that machine learning tools read. Pure.

Spec: MLCommons Croissant 1.0; schema.org/Dataset.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from chain.errors import Invalid
from odfd.cli.descriptions import Described, DescribedColumn, DocumentFormat

FILE: Final = "croissant.json"
_MEDIA_TYPES: Final = {"csv": "text/csv", "ndjson": "application/jsonlines", "parquet": "application/x-parquet"}
_TYPES: Final = (
    ("bool", "sc:Boolean"),
    ("int", "sc:Integer"),
    ("uint", "sc:Integer"),
    ("halffloat", "sc:Float"),
    ("float", "sc:Float"),
    ("double", "sc:Float"),
    ("date", "sc:Date"),
    ("timestamp[", "sc:DateTime"),
    ("time", "sc:Time"),
    ("string", "sc:Text"),
    ("large_string", "sc:Text"),
    ("decimal", "sc:Float"),  # the standard has no exact number; the file has
)
"""Croissant's types by the beginning of a type in Arrow's spelling; the first that fits."""
_LIST: Final = re.compile(r"(?:large_)?list<[^:<>]+: ([^<>]+?)(?: not null)?>")
_CONTEXT: Final = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification gives; readers warn of any other."""
_ROWS: Final = "rows"


def dataset(rows: Described) -> dict[str, Any]:
    """Builds the document. Raises Invalid for several files, which the standard holds in archives only."""
    if len(rows.files) != 1:
        raise Invalid(
            f"Croissant describes one file of rows, not {len(rows.files)}",
            rule="describe-files",
            hint="leave out --rows-per-file, or --describe frictionless",
        )
    (file,) = rows.files
    detail = rows.detail
    fields = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": detail.dataset.name,
        "identifier": detail.dataset.id,
        "description": detail.description,
        "keywords": list(detail.keywords),
        "license": rows.license_url or (detail.license.spdx_id or detail.license.name if detail.license else ""),
        "url": detail.dataset.id,
        "datePublished": detail.updated_at,
        "isBasedOn": [identity for _, identity in rows.sources],
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": quote(file.name),
                "name": file.name,
                "contentUrl": file.name,  # a path: readers do not decode it
                "contentSize": f"{file.bytes} B",
                "encodingFormat": _MEDIA_TYPES[rows.form],
                "sha256": file.sha256,
            }
        ],
        "recordSet": [_record_set(rows, quote(file.name))],
    }
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


def list_omitted(rows: Described) -> list[str]:
    """Names columns that the document leaves out, since the standard has no type for them."""
    return [column.name for column in rows.columns if _kind(column, rows.form) is None]


def _record_set(rows: Described, file: str) -> dict[str, Any]:
    shown = [field for column in rows.columns if (field := _field(column, rows.form, file)) is not None]
    found: dict[str, Any] = {"@type": "cr:RecordSet", "@id": _ROWS, "name": _ROWS, "field": shown}
    if rows.key:
        found["key"] = [{"@id": _id(name)} for name in rows.key]
    return found


def _field(column: DescribedColumn, form: str, file: str) -> dict[str, Any] | None:
    kind = _kind(column, form)
    if kind is None:
        return None
    data_type, repeated = kind
    field: dict[str, Any] = {"@type": "cr:Field", "@id": _id(column.name), "name": column.name}
    if column.comment:
        field["description"] = column.comment
    field["dataType"] = data_type
    if repeated:
        field["repeated"] = True
    field["source"] = {"fileObject": {"@id": file}, "extract": {"column": column.name}}
    return field


def _id(column: str) -> str:
    return f"{_ROWS}/{quote(column, safe='')}"


def _kind(column: DescribedColumn, form: str) -> tuple[str, bool] | None:
    """Returns the type of a column, and whether a row has several values of it; ``None``: no type fits."""
    plain = _plain(column.type)
    if plain is not None:
        return plain, False
    if form == "csv":
        return "sc:Text", False  # JSON, or hexadecimal digits
    items = _LIST.fullmatch(column.type)
    inner = _plain(items[1]) if items else None
    return None if inner is None else (inner, True)


def _plain(kind: str) -> str | None:
    return next((each for begin, each in _TYPES if kind.startswith(begin)), None)


FORMAT: Final = DocumentFormat("Croissant", FILE, dataset, one_file=True, list_omitted=list_omitted)
