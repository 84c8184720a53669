"""Checks a source when it is declared, for everything that would make a pull or push fail whatever the files hold.

Each part is checked by the module that would refuse it later. Faults that depend on the content of files, on servers or
on the rows of a query are reported only when the source is read. Functions; nothing is fetched. Blocking: looks at
files of this machine that a source names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from zoneinfo import available_timezones

import msgspec

from chain.data.ddl import parse_ddl
from chain.data.type_limits import check_schema
from chain.errors import Invalid, Refused
from chain.model.events import AddPushSource, DatasetKind, SetPollingSource
from chain.model.fetch_options import fetch_options
from chain.model.read_options import check_kind, quarantine_of, read_options
from chain.model.schema import DataSchema, DataType, Duration, List, Map, Option, Struct, Timestamp
from chain.model.source import (
    FetchStep,
    MergeAppend,
    ReadCsv,
    ReadJson,
    ReadNdJson,
    ReadParquet,
    ReadStep,
    SqlQueryStep,
    Transform,
)
from chain.wording import a, listed
from engines.spark.analysis.source_declarations import read_source
from engines.spark.ingest.dialect import check_text_options, csv_dialect
from odfd.ingest.fetch.dispatch import source_of
from odfd.ingest.plan import refuse_links, refuse_quarantine
from odfd.ingest.preparation import check_prepare
from odfd.ingest.settings import IngestSettings
from odfd.ingest.templates import check_text
from odfd.ingest.trigger import SPECIMEN, at_time, check_trigger

ENGINES: Final = frozenset({"spark"})
_UTC: Final = "UTC"
"""The time zone that is accepted even if the machine has no list of zones."""


def check_source(
    event: SetPollingSource | AddPushSource, settings: IngestSettings, *, is_fetched: bool = True
) -> tuple[str, Invalid | Refused] | None:
    """Returns the first part of ``event`` that would be refused, by its manifest name, with the reason; ``None``: all
    pass.

    ``is_fetched``: whether the fetch and prepare steps of a polling source are checked too.
    """
    parts: dict[str, Callable[[], None]] = {}
    if isinstance(event, SetPollingSource) and is_fetched:
        fetch, steps = event.fetch, event.prepare or ()
        parts["fetch"] = lambda: _check_fetch(fetch, event.read, settings)
        parts["prepare"] = lambda: check_prepare(steps, settings)
    parts["read"] = lambda: _check_read(event.read)
    parts["read.schema"] = lambda: _check_types(event)
    parts["preprocess"] = lambda: _check_preprocess(event.preprocess)
    parts["read.onError"] = lambda: refuse_quarantine(event.read, event.merge)
    parts["merge"] = lambda: _check_merge(event)
    for name, check in parts.items():
        try:
            check()
        except (Invalid, Refused) as fault:
            return name, fault
    return None


def _check_fetch(fetch: FetchStep, read: ReadStep, settings: IngestSettings) -> None:
    check_trigger(fetch, read)
    source = source_of(*at_time((fetch, fetch_options(read.schema)), SPECIMEN))
    source.check(settings)
    source.check_read(read)


def _check_read(read: ReadStep) -> None:
    if read.schema is not None and read.ddl_schema:
        raise Invalid("schema and ddlSchema are both given", rule="read-one-schema", hint="keep one of them")
    match read:
        case ReadCsv():
            csv_dialect(read)
        case ReadJson() | ReadNdJson():
            check_text_options(read.encoding, read.date_format, read.timestamp_format)
    refuse_links(read)
    _check_on_error(read)
    check_kind(read_options(read.schema), str(type(read).__struct_config__.tag))
    declared = _schema_of(read)
    if declared is not None:
        check_schema(declared)
        _check_zones(declared)


def _check_on_error(read: ReadStep) -> None:
    if quarantine_of(read.schema) is None:
        return
    if isinstance(read, ReadParquet):
        raise Invalid(
            "records of Parquet or Avro are not written to a quarantine dataset",
            rule="on-error",
            hint="leave out onError: its columns have types, and a file that does not fit is refused",
        )
    if read.schema is None or not read.schema.fields:
        raise Invalid(
            "onError: quarantine, and no columns are declared",
            rule="on-error",
            hint="declare the schema: it says which records cannot be read",
        )


def _check_types(event: SetPollingSource | AddPushSource) -> None:
    """Raises Invalid for columns that no row can have, whatever the files hold."""
    declared, read = _schema_of(event.read), event.read
    is_text = not isinstance(read, ReadParquet) or read_options(read.schema).format is not None
    for field in () if declared is None else declared.fields:
        name = _unfit(field.type)
        if name is None or (event.preprocess is not None and (name == _STRUCTS or not is_text)):
            continue  # a query may convert what the file has
        raise Invalid(
            f"column {field.name!r} is {a(name)}, which no dataset holds",
            rule="column-type",
            hint="declare it as String or BIGINT, if the file has it so; a query of preprocess may convert it",
        )


_STRUCTS: Final = "List of Struct"


def _unfit(type_: DataType) -> str | None:
    """Returns the name of the first type in a type of which no dataset has columns; ``None`` if it has none."""
    match type_:
        case Map() | Duration():
            return type(type_).__name__
        case List(item_type=Struct() | Option(inner=Struct())):
            return _STRUCTS
        case Option(inner=inner) | List(item_type=inner):
            return _unfit(inner)
        case Struct(fields=fields):
            return next((name for field in fields if (name := _unfit(field.type)) is not None), None)
    return None


def _schema_of(read: ReadStep) -> DataSchema | None:
    return read.schema or (parse_ddl(read.ddl_schema) if read.ddl_schema else None)


def _check_zones(schema: DataSchema) -> None:
    for field in schema.fields:
        for zone in _zones(field.type):
            if zone != _UTC and zone[:1] not in "+-" and zone not in available_timezones():
                raise Invalid(
                    f"column {field.name!r} is in the time zone {zone!r}, which is not known",
                    rule="read-zone",
                    hint="write UTC, a name like Europe/Vienna, or an offset like +01:00",
                )


def _zones(type_: DataType) -> Iterator[str]:
    """Yields the time zones named in a type, at any depth."""
    match type_:
        case Timestamp(timezone=str(zone)):
            yield zone
        case Option(inner=inner) | List(item_type=inner):
            yield from _zones(inner)
        case Map(key_type=key, value_type=value):
            yield from _zones(key)
            yield from _zones(value)
        case Struct(fields=fields):
            for field in fields:
                yield from _zones(field.type)


def _check_preprocess(transform: Transform | None) -> None:
    if transform is None:
        return
    if transform.engine.lower() not in ENGINES:
        raise Invalid(
            f"preprocess requires engine {transform.engine!r}, and there is none here",
            rule="preprocess-engine",
            hint="write engine: spark; for words of other engines see odfctl docs kamu-compatibility",
        )
    steps = transform.queries or ()
    if not steps and not transform.query:
        raise Invalid("preprocess has no query", rule="transform-has-queries", hint="write query: select … from input")
    if any(not step.alias for step in steps[:-1]):
        raise Invalid("all queries but the last need an alias", rule="query-aliases", hint="write {alias: …, query: …}")
    for step in (*steps, *([SqlQueryStep(query=transform.query)] if transform.query else [])):
        check_text(step.query, "the preprocess query")
    read_source(transform)


def _check_merge(event: SetPollingSource | AddPushSource) -> None:
    merge, declared = event.merge, _schema_of(event.read)
    if isinstance(merge, MergeAppend):
        return
    if not merge.primary_key:
        raise Invalid("primaryKey is empty", rule="primary-key", hint="name the columns that identify a row")
    if event.preprocess is not None or declared is None or not declared.fields:
        return  # the columns are those of a query, or guessed from files
    columns = [field.name for field in declared.fields]
    for field in msgspec.structs.fields(merge):  # each is a list of columns
        if missing := [name for name in getattr(merge, field.name) or () if name not in columns]:
            raise Invalid(
                f"{field.encode_name} names {listed(missing)}, and the read schema has {listed(columns)}",
                rule="primary-key",
                hint="name columns of the read schema; without a schema the files decide",
            )


def check_root(name: str, rule: str, *, is_own: bool, kind: DatasetKind | None) -> None:
    """Raises Refused for a dataset that is no source dataset of this node, and so takes from no source."""
    if not is_own or kind is not DatasetKind.ROOT:
        hint = "a derived dataset takes from its inputs, a mirror from its publisher"
        raise Refused(f"{name} is no source dataset of this node", rule=rule, hint=hint)
