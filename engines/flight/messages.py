"""Builds the messages of Flight SQL as protobuf classes, from the table below (Arrow format: FlightSql, Flight).

Messages that are not in the table are refused by name. Enumerations are given as numbers, a nested message as its
bytes.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message, message_factory

from chain.errors import Invalid

PACKAGE: Final = "arrow.flight.protocol.sql"
_URL: Final = f"type.googleapis.com/{PACKAGE}."
_CANCEL: Final = "arrow.flight.protocol"
MAX_MESSAGE: Final = 1 << 20
"""Most bytes of a command, an action or a ticket."""
_KEYS: Final = "catalog:1:s? db_schema:2:s? table:3:s"
_FIELDS: Final = {
    "CommandGetSqlInfo": "info:1:u*",
    "CommandGetXdbcTypeInfo": "data_type:1:i?",
    "CommandGetCatalogs": "",
    "CommandGetDbSchemas": "catalog:1:s? db_schema_filter_pattern:2:s?",
    "CommandGetTables": "catalog:1:s? db_schema_filter_pattern:2:s? table_name_filter_pattern:3:s? table_types:4:s*"
    " include_schema:5:t",
    "CommandGetTableTypes": "",
    "CommandGetPrimaryKeys": _KEYS,
    "CommandGetExportedKeys": _KEYS,
    "CommandGetImportedKeys": _KEYS,
    "CommandGetCrossReference": "pk_catalog:1:s? pk_db_schema:2:s? pk_table:3:s fk_catalog:4:s? fk_db_schema:5:s?"
    " fk_table:6:s",
    "ActionCreatePreparedStatementRequest": "query:1:s transaction_id:2:b?",
    "ActionCreatePreparedStatementResult": "prepared_statement_handle:1:b dataset_schema:2:b parameter_schema:3:b"
    " is_update:4:t?",
    "ActionClosePreparedStatementRequest": "prepared_statement_handle:1:b",
    "CommandStatementQuery": "query:1:s transaction_id:2:b?",
    "TicketStatementQuery": "statement_handle:1:b",
    "CommandPreparedStatementQuery": "prepared_statement_handle:1:b",
    "DoPutPreparedStatementResult": "prepared_statement_handle:1:b?",
    "ActionCancelQueryRequest": "info:1:b",
    "ActionCancelQueryResult": "result:1:i",
}
CANCELLED: Final = 1
"""Status in an ``ActionCancelQueryResult`` and a ``CancelFlightInfoResult``."""
_F: Final = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "s": _F.TYPE_STRING, "b": _F.TYPE_BYTES, "u": _F.TYPE_UINT32, "i": _F.TYPE_INT32, "t": _F.TYPE_BOOL,
}  # fmt: skip


def _class_of(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _declare(file: descriptor_pb2.FileDescriptorProto, name: str, fields: str) -> None:
    declared = file.message_type.add(name=name)
    for each in fields.split():
        field, number, kind = each.split(":")
        is_optional = kind.endswith("?")
        made = declared.field.add(
            name=field,
            number=int(number),
            type=_TYPES[kind[0]],
            label=_F.LABEL_REPEATED if kind.endswith("*") else _F.LABEL_OPTIONAL,
        )
        if is_optional:
            made.proto3_optional = True
            made.oneof_index = len(declared.oneof_decl)
            declared.oneof_decl.add(name=f"_{field}")


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="odfd_flight_sql.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        _declare(file, name, fields)
    pool.Add(file)
    other = descriptor_pb2.FileDescriptorProto(name="odfd_flight.proto", package=_CANCEL, syntax="proto3")
    _declare(other, "CancelFlightInfoRequest", "info:1:b")
    _declare(other, "CancelFlightInfoResult", "status:1:i")
    pool.Add(other)
    found = {name: _class_of(pool, f"{PACKAGE}.{name}") for name in _FIELDS}
    return found | {each.name: _class_of(pool, f"{_CANCEL}.{each.name}") for each in other.message_type}


CLASSES: Final[dict[str, Any]] = _classes()


def pack_any(name: str, **values: Any) -> bytes:
    """Packs a message in an ``Any``, the form of commands and tickets."""
    wrapped = any_pb2.Any(type_url=_URL + name, value=CLASSES[name](**values).SerializeToString())
    return bytes(wrapped.SerializeToString())


def unpack_any(data: bytes) -> tuple[str, Any]:
    """Returns the name and the value of the message in an ``Any``. Raises Invalid."""
    wrapped = any_pb2.Any()
    _parse(wrapped, data, "a command of Flight SQL")
    name = wrapped.type_url.removeprefix(_URL)
    if name == wrapped.type_url or name not in _FIELDS:
        said = wrapped.type_url.rpartition("/")[2].rpartition(".")[2][:60] or "it"
        raise Invalid(
            f"{said} is not understood here", rule="flight-command", hint="a node is read with SELECT, and not written"
        )
    return name, parse_message(name, wrapped.value)


def parse_message(name: str, data: bytes) -> Any:
    """Parses a message of this name. Raises Invalid."""
    made = CLASSES[name]()
    _parse(made, data, f"a message {name}")
    return made


def _parse(made: message.Message, data: bytes, what: str) -> None:
    if len(data) > MAX_MESSAGE:
        raise Invalid(f"{what} has at most {MAX_MESSAGE:,} bytes", rule="flight-size")
    try:
        made.ParseFromString(data)
    except (message.DecodeError, ValueError) as error:
        raise Invalid(f"what came is not {what}", rule="flight-message") from error
