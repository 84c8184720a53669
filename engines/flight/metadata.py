"""Answers the commands that list catalogs, schemas, tables, types, keys and the features of SQL. Pure.

A dataset is a table (its log), and a view of the same name in the schema ``current``; there are no catalogs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

LOG, CURRENT = "TABLE", "VIEW"
SCHEMA_OF_CURRENT: Final = "current"
_TEXT, _NUMBER = pa.utf8(), pa.int32()


class ListedDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as the node lists it for Flight SQL."""

    name: str
    schema: str = ""
    """Arrow IPC in base64; empty: the dataset has no columns yet."""
    offset: str = "offset"
    key: tuple[str, ...] = ()
    """Columns that identify a row in the schema ``current``."""


def _columns(*fields: tuple[str, pa.DataType] | tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema([pa.field(field[0], field[1], nullable=len(field) == 3) for field in fields])


CATALOGS: Final = _columns(("catalog_name", _TEXT))
SCHEMAS: Final = _columns(("catalog_name", _TEXT, True), ("db_schema_name", _TEXT))
TABLE_TYPES: Final = _columns(("table_type", _TEXT))
TABLES: Final = _columns(
    ("catalog_name", _TEXT, True), ("db_schema_name", _TEXT, True), ("table_name", _TEXT), ("table_type", _TEXT)
)
TABLES_WITH_SCHEMAS: Final = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
PRIMARY_KEYS: Final = _columns(
    ("catalog_name", _TEXT, True), ("db_schema_name", _TEXT, True), ("table_name", _TEXT), ("column_name", _TEXT),
    ("key_sequence", _NUMBER), ("key_name", _TEXT, True),
)  # fmt: skip
FOREIGN_KEYS: Final = _columns(
    ("pk_catalog_name", _TEXT, True), ("pk_db_schema_name", _TEXT, True), ("pk_table_name", _TEXT),
    ("pk_column_name", _TEXT), ("fk_catalog_name", _TEXT, True), ("fk_db_schema_name", _TEXT, True),
    ("fk_table_name", _TEXT), ("fk_column_name", _TEXT), ("key_sequence", _NUMBER), ("fk_key_name", _TEXT, True),
    ("pk_key_name", _TEXT, True), ("update_rule", pa.uint8()), ("delete_rule", pa.uint8()),
)  # fmt: skip
TYPES: Final = _columns(
    ("type_name", _TEXT), ("data_type", _NUMBER), ("column_size", _NUMBER, True), ("literal_prefix", _TEXT, True),
    ("literal_suffix", _TEXT, True), ("create_params", pa.list_(pa.field("item", _TEXT, nullable=False)), True),
    ("nullable", _NUMBER), ("case_sensitive", pa.bool_()), ("searchable", _NUMBER),
    ("unsigned_attribute", pa.bool_(), True), ("fixed_prec_scale", pa.bool_()), ("auto_increment", pa.bool_(), True),
    ("local_type_name", _TEXT, True), ("minimum_scale", _NUMBER, True), ("maximum_scale", _NUMBER, True),
    ("sql_data_type", _NUMBER), ("datetime_subcode", _NUMBER, True), ("num_prec_radix", _NUMBER, True),
    ("interval_precision", _NUMBER, True),
)  # fmt: skip
_VALUE: Final = pa.dense_union([
    pa.field("string_value", _TEXT), pa.field("bool_value", pa.bool_()), pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", _NUMBER), pa.field("string_list", pa.list_(pa.field("string_data", _TEXT))),
    pa.field("int32_to_int32_list_map", pa.map_(_NUMBER, pa.list_(pa.field("$data$", _NUMBER)))),
])  # fmt: skip
SQL_INFO: Final = pa.schema([pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", _VALUE)])

# Of each type: its number in ODBC, size, radix, quotes and whether it has a sign.
_SQL_TYPES: Final[Sequence[tuple[str, int, int | None, int | None, bool, bool | None]]] = (
    ("BIGINT", -5, 19, 10, False, False), ("BLOB", -3, None, None, True, None), ("BOOLEAN", -7, 1, None, False, None),
    ("DATE", 91, 10, None, True, None), ("DECIMAL", 3, 38, 10, False, False), ("DOUBLE", 8, 53, 2, False, False),
    ("HUGEINT", 2, 38, 10, False, False), ("INTEGER", 4, 10, 10, False, False), ("REAL", 7, 24, 2, False, False),
    ("SMALLINT", 5, 5, 10, False, False), ("TIME", 92, 15, None, True, None), ("TIMESTAMP", 93, 26, None, True, None),
    ("TIMESTAMP WITH TIME ZONE", 93, 32, None, True, None), ("TINYINT", -6, 3, 10, False, False),
    ("UBIGINT", -5, 20, 10, False, True), ("UINTEGER", 4, 10, 10, False, True), ("VARCHAR", 12, None, None, True, None),
)  # fmt: skip

_TYPE_NAME: Final = "ARROW:FLIGHT:SQL:TYPE_NAME"
_PRECISION: Final = "ARROW:FLIGHT:SQL:PRECISION"
_SCALE: Final = "ARROW:FLIGHT:SQL:SCALE"
_NAMES: Final[Sequence[tuple[Callable[[pa.DataType], bool], str]]] = (
    (pa.types.is_int64, "BIGINT"), (pa.types.is_int32, "INTEGER"), (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int8, "TINYINT"), (pa.types.is_uint64, "UBIGINT"), (pa.types.is_uint32, "UINTEGER"),
    (pa.types.is_float64, "DOUBLE"), (pa.types.is_float32, "REAL"), (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_string, "VARCHAR"), (pa.types.is_binary, "BLOB"), (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME"),
)  # fmt: skip
"""Tests of Arrow types -> names in ``_SQL_TYPES``."""


def table_types() -> pa.Table:
    return pa.table([[LOG, CURRENT]], TABLE_TYPES)


def schemas(catalog: str | None, pattern: str | None) -> pa.Table:
    """Lists the schemas. The unnamed one, of the logs, is listed too: ADBC's driver shows only tables
    of listed schemas."""
    names = [name for name in ("", SCHEMA_OF_CURRENT) if not catalog and _like(pattern)(name)]
    return pa.table([[None] * len(names), names], SCHEMAS)


def tables(datasets: Sequence[ListedDataset], wanted: Any) -> pa.Table:
    rows: list[tuple[Any, ...]] = []
    is_named = _like(_optional(wanted, "table_name_filter_pattern"))
    in_schema = _like(_optional(wanted, "db_schema_filter_pattern"))
    for kind, schema in ((LOG, None), (CURRENT, SCHEMA_OF_CURRENT)):
        if (wanted.table_types and kind not in wanted.table_types) or _optional(wanted, "catalog"):
            continue
        if in_schema(schema or ""):
            rows += [
                (None, schema, dataset.name, kind, _ipc(dataset)) for dataset in datasets if is_named(dataset.name)
            ]
    shape = TABLES_WITH_SCHEMAS if wanted.include_schema else TABLES
    return pa.table([[row[place] for row in rows] for place in range(len(shape))], shape)


def primary_keys(datasets: Sequence[ListedDataset], wanted: Any) -> pa.Table:
    schema = _optional(wanted, "db_schema")
    rows = [
        (None, schema or None, dataset.name, column, place + 1, None)
        for dataset in datasets
        if dataset.name.lower() == wanted.table.lower() and not _optional(wanted, "catalog")
        for place, column in enumerate(dataset.key if schema == SCHEMA_OF_CURRENT else (dataset.offset,))
    ]
    return pa.table([[row[place] for row in rows] for place in range(len(PRIMARY_KEYS))], PRIMARY_KEYS)


def types(wanted: int | None) -> pa.Table:
    """Builds the table of SQL types; ``wanted``: only those with this number."""
    known = sorted(_SQL_TYPES, key=lambda each: (each[1], each[0]))
    rows = [_type_row(*each) for each in known if wanted is None or each[1] == wanted]
    return pa.Table.from_pylist(rows, TYPES)


def sql_info(wanted: Sequence[int], version: str) -> pa.Table:
    """Builds the table of server properties; ``wanted``: their numbers, all if empty."""
    known: dict[int, tuple[int, Any]] = {
        0: (0, "odfd"), 1: (0, version), 2: (0, pa.__version__), 3: (1, True), 4: (1, True), 5: (1, False),
        8: (3, 0), 9: (1, True), 10: (1, False), 11: (1, False), 500: (1, False), 501: (1, False), 502: (1, False),
        503: (2, 1), 504: (0, '"'), 505: (2, 1), 506: (1, True), 507: (2, 3), 517: (3, 0),
    }  # fmt: skip
    names = [each for each in (wanted or known) if each in known]
    kinds = [known[name][0] for name in names]
    members, offsets = [[] for _ in _VALUE], []  # type: ignore[var-annotated]
    for name in names:
        kind, value = known[name]
        offsets.append(len(members[kind]))
        members[kind].append(value)
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(each, field.type) for each, field in zip(members, _VALUE, strict=True)],
        [field.name for field in _VALUE],
    )
    return pa.Table.from_arrays([pa.array(names, pa.uint32()), values], schema=SQL_INFO)


def _type_row(name: str, number: int, size: int | None, radix: int | None, quoted: bool, unsigned: bool | None) -> Any:
    quote = "'" if quoted else None
    is_time = number in (91, 92, 93)
    return {
        "type_name": name, "data_type": number, "column_size": size, "literal_prefix": quote, "literal_suffix": quote,
        "nullable": 1, "case_sensitive": name == "VARCHAR", "searchable": 3, "unsigned_attribute": unsigned,
        "fixed_prec_scale": False, "auto_increment": None if unsigned is None else False, "local_type_name": name,
        "minimum_scale": 0 if name == "DECIMAL" else None, "maximum_scale": 38 if name == "DECIMAL" else None,
        "create_params": ["precision", "scale"] if name == "DECIMAL" else None,
        "sql_data_type": 9 if is_time else number, "datetime_subcode": number - 90 if is_time else None,
        "num_prec_radix": radix,
    }  # fmt: skip


def _optional(message: Any, field: str) -> str | None:
    return getattr(message, field) if message.HasField(field) else None


def _like(pattern: str | None) -> Callable[[str], bool]:
    """Returns a test for SQL's LIKE, ignoring case, in time proportional to the text; ``None`` matches everything."""
    if pattern is None:
        return lambda _: True
    return lambda text: bool(pc.match_like(pa.scalar(text), pattern, ignore_case=True).as_py())


def _ipc(dataset: ListedDataset) -> bytes:
    """Encodes the columns of a dataset, each with the type of answers and the name of its SQL type, which drivers map
    to types of their own."""
    stored = base64.b64decode(dataset.schema) if dataset.schema else b""
    columns = pa.ipc.read_schema(pa.py_buffer(stored)) if stored else pa.schema([])
    answered = [field.with_type(_answer_type(field.type)) for field in columns]
    told = pa.schema([field.with_metadata(_column_metadata(field.type)) for field in answered])
    return bytes(told.serialize().to_pybytes())


def _answer_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type in which a query answers: slices may hold times in milliseconds (ADR 74)."""
    is_coarser = pa.types.is_timestamp(kind) and kind.tz and kind.unit in ("s", "ms")
    return pa.timestamp("us", kind.tz) if is_coarser else kind


def _column_metadata(kind: pa.DataType) -> dict[str, str]:
    """Returns Flight SQL's metadata of a column; empty for a type that ``types`` does not list."""
    if pa.types.is_decimal(kind):
        return {_TYPE_NAME: "DECIMAL", _PRECISION: str(kind.precision), _SCALE: str(kind.scale)}
    if pa.types.is_timestamp(kind):
        return {_TYPE_NAME: "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"}
    name = next((name for is_of, name in _NAMES if is_of(kind)), "")
    return {_TYPE_NAME: name} if name else {}
