"""Writes the query of a derived dataset that renames, widens or drops columns of a root. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from chain.data.ddl import parse_ddl
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.model import schema as odf
from chain.model.events import SetTransform, TransformInput, Vocab
from chain.model.schema import DataField, DataSchema, DataType
from chain.model.source import SqlQueryStep, TransformSql
from chain.rules.schema import shown
from chain.terminal_text import is_visible

Change: TypeAlias = Literal["widen", "rename", "drop"]
MAX_NAME: Final = 256
"""Characters that the name of a column may have."""
_INPUT: Final = "input"


def altered_query(
    dataset: DatasetId, vocab: Vocab, declared: DataSchema, change: Change, columns: Sequence[str]
) -> tuple[DataSchema, SetTransform]:
    """Returns the columns after the change, and the transform of ``dataset`` that gives them.

    Raises Refused for system columns, Invalid for columns that do not exist or a change that would lose values.
    """
    fields = {field.name: field for field in declared.fields if field.name not in _hidden(vocab)}
    changed = _CHANGES[change](columns, fields, vocab)
    picked = [(field, after) for name, field in fields.items() if (after := changed.get(name, field)) is not None]
    listed = ",\n  ".join(_picked(before, after) for before, after in picked)
    made = SetTransform(
        inputs=(TransformInput(dataset_ref=str(dataset), alias=_INPUT),),
        transform=TransformSql(
            engine="spark",
            queries=(SqlQueryStep(query=f"select\n  {listed}\nfrom {_INPUT}"),),
        ),
    )
    return DataSchema(fields=tuple(after for _, after in picked)), made


def check_names(new: Sequence[str], there: Sequence[str]) -> None:
    """Raises Invalid for a new name that is invisible, too long, taken, or equal to another one but for case."""
    known = {name.lower(): name for name in there}
    for name in new:
        if not is_visible(name) or not 0 < len(name) <= MAX_NAME:
            raise Invalid(
                f"a column's name has 1 to {MAX_NAME} characters, all of them visible",
                rule="schema-columns",
                hint="choose another name",
            )
        other = known.get(name.lower())
        if other == name:
            raise Invalid(f"there is a column {name!r} already", rule="schema-columns", hint="odfctl schema NAME")
        if other is not None:
            raise Invalid(
                f"column {name!r} differs from {other!r} in case alone: SQL takes them for one",
                rule="schema-columns",
                hint="choose another name",
            )
        known[name.lower()] = name


def _hidden(vocab: Vocab) -> frozenset[str]:
    """Returns the system columns that an engine writes itself and no query selects."""
    return frozenset((vocab.offset, vocab.operation_type, vocab.system_time))


_Changed: TypeAlias = Mapping[str, DataField | None]
"""Changed columns by name; ``None``: the column is removed."""
_Fields: TypeAlias = Mapping[str, DataField]


def _known(name: str, fields: _Fields, vocab: Vocab, verb: str) -> DataField:
    if name in _hidden(vocab) or (name == vocab.event_time and verb != "widened"):
        raise Refused(f"{name!r} is a system column, which is not {verb}", rule="schema-system-columns")
    if name not in fields:
        raise Invalid(f"there is no column {name!r}", rule="schema-columns", hint=f"columns: {', '.join(fields)[:500]}")
    return fields[name]


def _renamed(columns: Sequence[str], fields: _Fields, vocab: Vocab) -> _Changed:
    if len(columns) != 2:
        raise Invalid("a column is renamed from one name to another", rule="schema-columns", hint="rename OLD NEW")
    old, new = columns
    field = _known(old, fields, vocab, "renamed")
    check_names([new], [*_hidden(vocab), *fields])
    return {old: msgspec.structs.replace(field, name=new)}


def _dropped(columns: Sequence[str], fields: _Fields, vocab: Vocab) -> _Changed:
    gone = {_known(name, fields, vocab, "dropped").name for name in columns}
    if gone >= fields.keys() - {vocab.event_time}:
        raise Invalid("no column of data would be left", rule="schema-columns", hint="leave one")
    return dict.fromkeys(gone)


def _widened(columns: Sequence[str], fields: _Fields, vocab: Vocab) -> _Changed:
    change: dict[str, DataField | None] = {}
    for field in parse_ddl(columns).fields:
        before = _known(field.name, fields, vocab, "widened")
        old, new = _bare(before.type), _bare(field.type)
        if not _is_wider(old, new):
            raise Invalid(
                f"not every {shown(old)} of column {field.name!r} is one {shown(new)}",
                rule="schema-widen",
                hint="a larger integer, a Float64 of a Float32, a Decimal with room for all digits, or a String",
            )
        kind = odf.Option(inner=new) if isinstance(before.type, odf.Option) else new
        change[field.name] = DataField(name=field.name, type=kind, extra=before.extra)
    return change


_CHANGES: Final[dict[Change, Callable[[Sequence[str], _Fields, Vocab], _Changed]]] = {
    "rename": _renamed,
    "drop": _dropped,
    "widen": _widened,
}
_SIGNED: Final = (odf.Int8, odf.Int16, odf.Int32, odf.Int64)
_DIGITS: Final = dict(zip(_SIGNED, (3, 5, 10, 19), strict=True))


def _bare(data_type: DataType) -> DataType:
    return data_type.inner if isinstance(data_type, odf.Option) else data_type


def _is_wider(old: DataType, new: DataType) -> bool:
    """Whether ``new`` is another type that holds each value of ``old``. Unsigned types never are: SQL has none."""
    if isinstance(old, _SIGNED):
        if isinstance(new, _SIGNED):
            return _DIGITS[type(new)] > _DIGITS[type(old)]
        if isinstance(new, odf.Decimal):
            return new.precision - new.scale >= _DIGITS[type(old)]
        if isinstance(new, odf.Float64):
            return not isinstance(old, odf.Int64)
        return isinstance(new, odf.String)
    if isinstance(old, odf.Float32):
        return isinstance(new, odf.Float64)
    if isinstance(old, odf.Decimal) and isinstance(new, odf.Decimal):
        whole = new.precision - new.scale >= old.precision - old.scale
        return new != old and new.scale >= old.scale and whole
    return isinstance(old, odf.Date | odf.Bool | odf.Decimal) and isinstance(new, odf.String)


_SQL: Final[dict[type, str]] = {
    odf.Int16: "SMALLINT",
    odf.Int32: "INT",
    odf.Int64: "BIGINT",
    odf.Float64: "DOUBLE",
    odf.String: "STRING",
}


def _picked(before: DataField, after: DataField) -> str:
    column, kind = _quoted(before.name), _bare(after.type)
    if _bare(before.type) != kind:
        word = f"DECIMAL({kind.precision}, {kind.scale})" if isinstance(kind, odf.Decimal) else _SQL[type(kind)]
        return f"cast({column} as {word}) as {_quoted(after.name)}"
    return column if before.name == after.name else f"{column} as {_quoted(after.name)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
