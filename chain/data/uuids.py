"""Knows columns of UUIDs: ``Binary`` of sixteen bytes, which an attribute of the field tells from other such bytes.

The format has no type for them (RFC-016), and its readers know the bytes. In Arrow a column holds the bytes, as most
functions of Arrow know no other form, and its field the attribute; in Parquet it has the logical type UUID, as the
specification of ODF asks; people read and write ``123e4567-e89b-12d3-a456-426614174000``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from chain.libraries import pa, pc
from chain.model import schema as odf
from chain.model.schema import DataField

TYPE: Final = "w3id.org/odfd/type"
"""Attribute of a field: a type that the format expresses by another."""
UUID: Final = {"kind": "Uuid"}
EXTRA_KEY: Final = b"opendatafabric.org/extra"
"""Key of the metadata of Arrow's fields and schemas under which attributes travel."""
_TEXTS: Final = b"w3id.org/odfd/uuids"
"""Key of the metadata of an answer's schema: the places of columns of UUIDs that are texts in it."""
_SIZE: Final = 16
_MARK: Final = b'"' + TYPE.encode() + b'"'
_TEXT: Final = r"^\s*[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\s*$"


def is_uuid(field: DataField) -> bool:
    """Whether a field of a schema says that its sixteen bytes are a UUID."""
    inner = field.type.inner if isinstance(field.type, odf.Option) else field.type
    return inner == odf.Binary(fixed_length=_SIZE) and (field.extra or {}).get(TYPE) == UUID


def as_uuid(field: DataField) -> DataField:
    """Returns the field, which is of sixteen bytes, as one of UUIDs."""
    return msgspec.structs.replace(field, extra={**(field.extra or {}), TYPE: UUID})


def is_marked(field: pa.Field) -> bool:
    """Whether a field of Arrow, which holds bytes, has the attribute."""
    raw = (field.metadata or {}).get(EXTRA_KEY, b"")
    if field.type != pa.binary(_SIZE) or _MARK not in raw:
        return False
    extra: dict[str, Any] = msgspec.json.decode(raw)
    return extra.get(TYPE) == UUID


def stored(field: pa.Field) -> pa.Field:
    """Returns a field with bytes, marked, in place of Arrow's type for UUIDs; items of lists have no mark."""
    kind = field.type
    if isinstance(kind, pa.UuidType):
        known = (field.metadata or {}).get(EXTRA_KEY)
        extra = {**(msgspec.json.decode(known) if known else {}), TYPE: UUID}
        mark = {EXTRA_KEY: msgspec.json.encode(extra, order="sorted")}
        return field.with_type(kind.storage_type).with_metadata({**(field.metadata or {}), **mark})
    if not _has_uuids(kind):
        return field
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([stored(kind.field(place)) for place in range(kind.num_fields)]))
    item = stored(kind.value_field).remove_metadata()
    return field.with_type(pa.list_(item, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.list_(item))


def _has_uuids(kind: pa.DataType) -> bool:
    """Whether structs and lists of a type hold Arrow's type for UUIDs."""
    if isinstance(kind, pa.UuidType):
        return True
    of = pa.types
    if not (of.is_struct(kind) or of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind)):
        return False
    return any(_has_uuids(kind.field(place).type) for place in range(kind.num_fields))


def named(field: pa.Field) -> pa.Field:
    """Returns a field with Arrow's type for UUIDs, which Parquet and DuckDB know, in place of marked bytes."""
    kind = field.type
    if pa.types.is_struct(kind):
        children = [kind.field(place) for place in range(kind.num_fields)]
        made = [named(child) for child in children]
        return field if made == children else field.with_type(pa.struct(made))
    return field.with_type(pa.uuid()) if is_marked(field) else field


def named_all(schema: pa.Schema) -> pa.Schema:
    return pa.schema([named(field) for field in schema], metadata=schema.metadata)


def stored_all(schema: pa.Schema) -> pa.Schema:
    return pa.schema([stored(field) for field in schema], metadata=schema.metadata)


def as_stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows with the bytes of UUIDs, in the types of ``stored``."""
    for place, field in enumerate(batch.schema):
        if _has_uuids(field.type):
            plain = stored(field)
            batch = batch.set_column(place, plain, batch.column(place).cast(plain.type))
    return batch


def as_texts(schema: pa.Schema, places: Sequence[int]) -> pa.Schema:
    """Returns a schema that says at which places UUIDs stand as texts, as DuckDB gives them to Arrow."""
    return schema.with_metadata({**(schema.metadata or {}), _TEXTS: msgspec.json.encode(places)})


def named_of_texts(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with Arrow's type for UUIDs where ``as_texts`` says that they are texts."""
    for place in _places(schema):
        schema = schema.set(place, schema.field(place).with_type(pa.uuid()))
    return schema.remove_metadata()


def rows_of_texts(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns rows in the types of ``named_of_texts(schema)``."""
    columns = batch.columns
    for place in _places(schema):
        stored_bytes = parsed(pa.chunked_array([columns[place]])).combine_chunks()
        columns[place] = pa.ExtensionArray.from_storage(pa.uuid(), stored_bytes)
    return pa.RecordBatch.from_arrays(columns, schema=named_of_texts(schema))


def _places(schema: pa.Schema) -> list[int]:
    found: list[int] = msgspec.json.decode((schema.metadata or {}).get(_TEXTS, b"[]"), type=list[int])
    return found


def parsed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the bytes of UUIDs as people write them. Raises ArrowInvalid if a text is none."""
    if not pc.all(pc.match_substring_regex(texts, _TEXT)).as_py() and pc.count(texts).as_py():
        raise pa.ArrowInvalid("no UUID")
    plain = pc.replace_substring(pc.utf8_trim_whitespace(texts), "-", "")
    chunks = [_bytes(chunk) for chunk in plain.chunks]
    return pa.chunked_array(chunks, pa.binary(_SIZE))


def _bytes(plain: pa.StringArray) -> pa.FixedSizeBinaryArray:
    digits = "".join(pc.fill_null(plain, "0" * 2 * _SIZE).to_pylist())
    absent = None if not plain.null_count else plain.is_valid().buffers()[1]
    return pa.Array.from_buffers(pa.binary(_SIZE), len(plain), [absent, pa.py_buffer(bytes.fromhex(digits))])


def text(value: bytes) -> str:
    """Returns the bytes of a UUID as people write it."""
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
