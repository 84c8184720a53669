"""Formats the columns of declared resources, which the registry of types names, for ``get``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from chain.instant import Instant
from odfd.cli import formatting
from odfd.cli.table import WHOLE, TableColumn
from odfd.control import wire
from odfd.resources.registry import ANY, PrintedColumn, Registration

_NAME = PrintedColumn("NAME", "name")
_NUMBERS = ("count", "size", "rate", "share", "progress")


def columns(names: Registration, now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    """Returns the columns of a type at the current time, as some show how long ago something was."""
    has_name = any(column.title in (_NAME.title, names.name.upper()) for column in names.columns)
    return _to_columns(names.columns if has_name else (_NAME, *names.columns), now)


def resources(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    """Returns the columns of resources of several types."""
    return _to_columns(ANY, now)


def _to_columns(columns: Iterable[PrintedColumn], now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    return tuple(
        TableColumn(
            column.title, partial(_cell, column, now), column.form in _NUMBERS, column.most or WHOLE, column.optional
        )
        for column in columns
    )


def _cell(column: PrintedColumn, now: Instant, row: wire.ResourceManifest) -> str:
    if column.form == "phase":
        return phase_text(row)
    value: Any = column.of(row)
    if value is None or value == "":
        return column.absent or ("" if not column.title else formatting.NOTHING)
    match column.form:
        case "count":
            return value if isinstance(value, str) else formatting.count(value)
        case "size":
            return formatting.size(value)
        case "share":
            return f"{value['have']:,}/{value['want']:,}"
        case "did":
            return formatting.identity(value)
        case "node":
            return formatting.node(msgspec.convert(value, wire.PeerName))
        case "progress":
            return _progress(value["done"], value.get("total"), value["unit"])
        case "digest":
            return formatting.digest(value)
        case "rate":
            return formatting.rate(value)
        case "moment":
            return formatting.moment(value)
        case "ago":
            return formatting.ago(value, now)
        case "labels":
            return labels_text(value)
        case "conditions":
            return conditions_text(value)
        case "reference":
            return str(value).partition(":")[2] if value[:1].isupper() else str(value)
    if isinstance(value, Mapping):
        value = sorted(value)
    return str(value) if isinstance(value, str) else ", ".join(map(str, value)) or formatting.NOTHING


def _progress(done: int, total: int | None, unit: str) -> str:
    if unit == "bytes":
        return f"{formatting.size(done)} of {formatting.size(total)}" if total else formatting.size(done)
    if total:
        return f"{done:,}/{total:,} {unit}".rstrip()
    return formatting.plural(done, unit.removesuffix("s"), unit).rstrip() if done else formatting.NOTHING


def phase_text(row: wire.ResourceManifest) -> str:
    """Formats the phase: ``Failed(code)`` after a failure; with a star if it is about an older generation."""
    phase, code = row.status.get("phase", formatting.NOTHING), row.problem.get("code")
    behind = "" if row.status.get("observedGeneration") == row.generation else "*"
    return (f"{phase}({code})" if phase == "Failed" else phase) + behind


def conditions_text(status: Mapping[str, Any]) -> str:
    """Formats conditions by the last part of their URIs; those that tell several things are seen with ``-o yaml``."""
    conditions = {
        key.rpartition("/")[2]: each.get("value", each.get("kind", each.get("status")))
        for key, each in status.get("conditions", {}).items()
    }
    single = {key: value for key, value in conditions.items() if isinstance(value, str | int | float)}
    return labels_text({key: value for key, value in single.items() if key not in wire.BESIDE})


def labels_text(labels: Mapping[str, Any]) -> str:
    """Formats labels as ``-l`` takes them."""
    shown = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in sorted(labels.items()))
    return ",".join(shown) or formatting.NOTHING
