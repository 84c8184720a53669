"""Parses columns as people write them, ``city STRING NOT NULL``, to a schema. Pure.

The grammar is that of SQL's CREATE TABLE, one or more columns to a text; names keep their case, and may be quoted with
``"`` or backticks. A column may be null unless it says NOT NULL; a TIMESTAMP is in UTC, in milliseconds unless digits
are given: TIMESTAMP(6), TIMESTAMP(9).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from chain.data.uuids import as_uuid, is_uuid
from chain.errors import Invalid
from chain.model import schema as odf
from chain.model.schema import MAX_COLUMNS, DataField, DataSchema, DataType, TimeUnit

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<word>[^\W\d][\w$]*)|"(?P<quoted>(?:[^"]|"")+)"|`(?P<ticked>[^`]+)`|(?P<number>\d{1,9})|(?P<mark>[(),]))"""
)
_RESERVED: Final = frozenset(
    ["check", "constraint", "foreign", "fulltext", "index", "key", "primary", "spatial", "unique"]
)
"""Words that begin a constraint of a table; a column of such a name must be quoted."""
_TYPES: Final[dict[str, DataType]] = {
    **dict.fromkeys(["bool", "boolean"], odf.Bool()),
    "tinyint": odf.Int8(),
    **dict.fromkeys(["smallint", "int2"], odf.Int16()),
    **dict.fromkeys(["int", "integer", "int4"], odf.Int32()),
    **dict.fromkeys(["bigint", "int8"], odf.Int64()),
    "tinyint unsigned": odf.UInt8(),
    **dict.fromkeys(["smallint unsigned", "int2 unsigned"], odf.UInt16()),
    **dict.fromkeys(["int unsigned", "integer unsigned", "int4 unsigned"], odf.UInt32()),
    **dict.fromkeys(["bigint unsigned", "int8 unsigned"], odf.UInt64()),
    **dict.fromkeys(["float", "real", "float4"], odf.Float32()),
    **dict.fromkeys(["double", "double precision", "float8"], odf.Float64()),
    "date": odf.Date(),
    "time": odf.Time(unit=TimeUnit.NANOSECOND),
    **dict.fromkeys(
        ["timestamp", "timestamp with time zone", "timestamp without time zone"],
        odf.Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC"),
    ),
    **dict.fromkeys(["string", "text", "varchar", "char"], odf.String()),
    **dict.fromkeys(["binary", "varbinary", "bytea", "blob"], odf.Binary()),
    "uuid": odf.Binary(fixed_length=16),
}
_DECIMALS: Final = ("decimal", "numeric")
_DEFAULT_DECIMAL: Final = (38, 10)
_DIGITS: Final = {3: TimeUnit.MILLISECOND, 6: TimeUnit.MICROSECOND, 9: TimeUnit.NANOSECOND}
"""Unit of time by the number of digits after the decimal point of seconds."""
_WITH_LENGTH: Final = ("varchar", "char", "varbinary")


class _Token(NamedTuple):
    text: str
    quoted: bool = False


def parse_ddl(columns: Sequence[str]) -> DataSchema:
    """Returns the schema of a read step's ``ddlSchema``. Raises Invalid with the column as its place."""
    fields: list[DataField] = []
    for number, text in enumerate(columns):
        try:
            for tokens in _split(_tokens(text)):
                fields.append(_column(tokens, text))
        except Invalid as error:
            error.place = f"ddlSchema[{number}]"
            raise
        if len(fields) > MAX_COLUMNS:
            raise Invalid(f"more than {MAX_COLUMNS} columns", rule="ddl-columns")
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            raise Invalid(f"column {field.name!r} is there twice", rule="ddl-duplicate", hint="rename one of them")
        seen.add(field.name)
    return DataSchema(fields=tuple(fields))


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _bad(text, f"cannot read {text[position : position + 100].strip()[:20]!r}")
        quoted = match["quoted"] or match["ticked"]
        if quoted is not None:
            tokens.append(_Token(quoted.replace('""', '"') if match["quoted"] else quoted, quoted=True))
        else:
            tokens.append(_Token(match["word"] or match["number"] or match["mark"]))
        position = match.end()
    return tokens


def _split(tokens: list[_Token]) -> list[list[_Token]]:
    """Splits tokens into columns, at the commas outside of parentheses."""
    columns: list[list[_Token]] = [[]]
    depth = 0
    for token in tokens:
        mark = "" if token.quoted else token.text
        depth += (mark == "(") - (mark == ")")
        if mark == "," and depth == 0:
            columns.append([])
        else:
            columns[-1].append(token)
    return columns


def _column(tokens: list[_Token], text: str) -> DataField:
    if len(tokens) < 2 or (not tokens[0].quoted and tokens[0].text in ("(", ")", ",")):
        raise _bad(text, "a column is a name and a type")
    name, rest = tokens[0], tokens[1:]
    if not name.quoted and name.text.lower() in _RESERVED:
        raise Invalid(
            f"{name.text!r} is a reserved word of SQL", rule="ddl-reserved", hint=f'quote it: "{name.text}" …'
        )
    words = [token.text.lower() for token in rest]
    optional = True
    if words[-2:] == ["not", "null"]:
        optional, words = False, words[:-2]
    elif words[-1:] == ["null"]:
        words = words[:-1]
    type_ = _type(words, text)
    field = DataField(name=name.text, type=odf.Option(inner=type_) if optional else type_)
    return as_uuid(field) if words == ["uuid"] else field


def _type(words: list[str], text: str) -> DataType:
    base = words[:1]
    arguments: list[int] = []
    if "(" in words and ")" not in words:
        raise _bad(
            text, "a parenthesis is not closed; a comma ends an item within [ ] of YAML: put the column in quotes"
        )
    if words[1:2] == ["("] and ")" in words:
        end = words.index(")")
        inside = [word for word in words[2:end] if word != ","]
        if not all(word.isdecimal() for word in inside):
            raise _bad(text, "a type's parameters are numbers")
        arguments = [int(word) for word in inside]
        words = base + words[end + 1 :]
    name = " ".join(words)
    if name in _DECIMALS:
        return _decimal(arguments, text)
    if (type_ := _TYPES.get(name)) is None:
        raise _bad(text, f"unknown type {name.upper()!r}")
    if isinstance(type_, odf.Timestamp | odf.Time) and arguments:
        return _to_digits(type_, arguments, text)
    if arguments and name not in _WITH_LENGTH:
        raise _bad(text, f"{name.upper()} takes no parameters")
    return type_


def _to_digits(type_: odf.Timestamp | odf.Time, arguments: list[int], text: str) -> DataType:
    unit = _DIGITS.get(arguments[0]) if len(arguments) == 1 else None
    if unit is None:
        raise _bad(text, "times have 3, 6 or 9 digits: milliseconds, microseconds or nanoseconds")
    return msgspec.structs.replace(type_, unit=unit)


def _decimal(arguments: list[int], text: str) -> odf.Decimal:
    given = [*arguments, 0] if len(arguments) == 1 else arguments or list(_DEFAULT_DECIMAL)
    if len(given) != 2 or not (1 <= given[0] <= 76 and 0 <= given[1] <= given[0]):
        raise _bad(text, "a decimal is DECIMAL(precision, scale), precision 1 to 76, scale at most that")
    return odf.Decimal(precision=given[0], scale=given[1])


def _bad(text: str, why: str) -> Invalid:
    return Invalid(
        f"column {text.strip()[:60]!r}: {why}",
        rule="ddl-column",
        hint="write columns like: city STRING NOT NULL, population BIGINT; or give `schema` instead of `ddlSchema`",
    )


def spell_field(field: DataField) -> str:
    """Writes the type of a column for people, as ``spell`` does; of UUIDs by their name."""
    if is_uuid(field):
        return "UUID?" if isinstance(field.type, odf.Option) else "UUID"
    return spell(field.type)


def spell(type_: DataType) -> str:
    """Writes a logical type for people: ``Timestamp(Millisecond, UTC)``, an optional one with ``?``."""
    match type_:
        case odf.Option(inner=inner):
            return spell(inner) + "?"
        case odf.Binary(fixed_length=int(size)):
            return f"Binary({size})"
        case odf.Decimal(precision=precision, scale=scale):
            return f"Decimal({precision}, {scale})"
        case odf.Timestamp(unit=unit, timezone=zone):
            return f"Timestamp({_unit(unit)}, {zone or 'UTC'})"
        case odf.Time(unit=unit) | odf.Duration(unit=unit):
            return f"{type(type_).__name__}({_unit(unit)})"
        case odf.List(item_type=item, fixed_length=size):
            return f"List({spell(item)}{'' if size is None else f', {size}'})"
        case odf.Map(key_type=key, value_type=value):
            return f"Map({spell(key)}, {spell(value)})"
        case odf.Struct(fields=fields):
            return f"Struct({', '.join(f'{field.name}: {spell_field(field)}' for field in fields)})"
    return type(type_).__name__


def _unit(unit: TimeUnit | None) -> str:
    return (unit or TimeUnit.MILLISECOND).value
