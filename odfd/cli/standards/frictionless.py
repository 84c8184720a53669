"""Writes exported rows as a Frictionless data package with Table Schemas. Pure.

Spec: Data Package, Data Resource and Table Schema, version 1 with ``hash`` and ``bytes``, which version 2 reads too.
"""

from __future__ import annotations

import re
from typing import Any, Final

from chain.errors import Invalid
from chain.wording import plural
from odfd.cli.descriptions import Described, DescribedColumn, DescribedFile, DocumentFormat

FILE: Final = "datapackage.json"
MOST_FILES: Final = 1000
"""Resources of a package, each of which repeats the schema."""
_MEDIA_TYPES: Final = {"csv": "text/csv", "ndjson": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
_TYPES: Final = (
    ("bool", {"type": "boolean"}),
    ("int", {"type": "integer"}),
    ("uint", {"type": "integer"}),
    ("halffloat", {"type": "number"}),
    ("float", {"type": "number"}),
    ("double", {"type": "number"}),
    ("decimal", {"type": "number"}),
    ("date", {"type": "date"}),
    ("timestamp[", {"type": "datetime", "format": "any"}),
    ("time", {"type": "time", "format": "any"}),
    ("string", {"type": "string"}),
    ("large_string", {"type": "string"}),
    ("binary", {"type": "string"}),
    ("large_binary", {"type": "string"}),
    ("fixed_size_binary", {"type": "string"}),
    ("list", {"type": "array"}),
    ("large_list", {"type": "array"}),
    ("fixed_size_list", {"type": "array"}),
    ("struct", {"type": "object"}),
)
"""Types of Table Schema by the beginning of a type in Arrow's spelling; the first that fits."""


def package(rows: Described) -> dict[str, Any]:
    """Builds the package, with one resource for each file. Raises Invalid for more than ``MOST_FILES``."""
    if len(rows.files) > MOST_FILES:
        raise Invalid(
            f"{plural(len(rows.files), 'file')} in one data package, which holds {MOST_FILES}",
            rule="describe-files",
            hint=f"the files are written; for a package of at most {MOST_FILES}, set a larger --rows-per-file",
        )
    detail = rows.detail
    fields = {
        "profile": "data-package",
        "name": slug(detail.dataset.name),
        "id": detail.dataset.id,
        "title": detail.dataset.name,
        "description": detail.description,
        "keywords": list(detail.keywords),
        "created": detail.updated_at,
        "licenses": _licenses(rows),
        "sources": [{"title": name, "odf:id": identity} for name, identity in rows.sources],
        "resources": [_resource(rows, file) for file in rows.files],
        "odf": rows.provenance,
    }
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


def slug(text: str) -> str:
    """Returns a name as the standard requires it: lower-case letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-") or "dataset"


def _licenses(rows: Described) -> list[dict[str, str]]:
    found = rows.detail.license
    if found is None:
        return []
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", found.spdx_id or found.short_name).strip("-")
    fields = {"name": name, "path": rows.license_url, "title": found.name}
    return [{key: value for key, value in fields.items() if value}] if name or rows.license_url else []


def _resource(rows: Described, file: DescribedFile) -> dict[str, Any]:
    schema: dict[str, Any] = {"fields": [_field(column) for column in rows.columns], "missingValues": [""]}
    if rows.key and len(rows.files) == 1:
        schema["primaryKey"] = list(rows.key)
    return {
        "name": slug(file.name.rpartition(".")[0]),
        "path": file.name,
        "profile": "tabular-data-resource" if rows.form == "csv" else "data-resource",
        "format": rows.form,
        "mediatype": _MEDIA_TYPES[rows.form],
        **({} if rows.form == "parquet" else {"encoding": "utf-8"}),
        "bytes": file.bytes,
        "hash": f"sha256:{file.sha256}",
        "schema": schema,
    }


def _field(column: DescribedColumn) -> dict[str, Any]:
    kind = next((each for begin, each in _TYPES if column.type.startswith(begin)), {"type": "any"})
    field: dict[str, Any] = {"name": column.name, **kind, "odf:arrowType": column.type}
    if column.comment:
        field["description"] = column.comment
    if column.required:
        field["constraints"] = {"required": True}
    return field


FORMAT: Final = DocumentFormat("Frictionless", FILE, package)
