"""Plans changes to the columns of a root: the events that add columns, or a derived dataset for any other change. Pure.

A chain only ever takes in optional columns (rule ``schema-compatible``). To add one, the read step of each source and
the schema change in one commit. Renaming, widening and dropping are done in a dataset derived from the root, whose
query is written here: the history of the root stays as it was published.

A changed declaration evolves a dataset where its chain can take in what comes from now on. Rows of other columns or
types are refused by the chain, so such a change takes effect only in a rendition, which decodes the captured bytes
anew: it rewrites the dataset. Spec: docs/spec/collections.md#course.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.data.ddl import parse_ddl
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.model import schema as odf
from chain.model.events import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    TransformInput,
    Vocab,
)
from chain.model.portal import is_portal
from chain.model.schema import MAX_COLUMNS, DataField, DataSchema, DataType
from chain.model.source import MergeLedger, MergeSnapshot, ReadStep, SqlQueryStep, Transform, TransformSql
from chain.rules.schema import incompatibilities, shown
from chain.state import ChainState
from chain.terminal_text import is_visible
from chain.wording import agree, plural
from odfd.datasets.creation import as_stored
from odfd.ingest.plan import declared_columns, require_root

Action: TypeAlias = Literal["add", "widen", "rename", "drop"]


class Alteration(msgspec.Struct, frozen=True, kw_only=True):
    """A change of columns that a person requests. ``columns``: SQL definitions for ``add`` and ``widen``, or names."""

    action: Action
    columns: tuple[str, ...]
    query: str | None = None
    """Only with ``add``: replaces the last query of each source's preprocess step."""
    computed: bool = False
    """Only with ``add``: whether the query computes the new columns, so that files do not have them."""
    derived: str | None = None
    """Name of the derived dataset in which columns are renamed, widened or dropped."""


class Altered(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of an alteration: ``events`` to append in one commit, or a dataset to derive."""

    events: tuple[MetadataEvent, ...] = ()
    schema: DataSchema
    """The schema after the alteration, of the root or of the derived dataset."""
    derived: DatasetSnapshot | None = None
    remarks: tuple[str, ...] = ()
    """Consequences for rows and files, one sentence each."""


def plan_alteration(state: ChainState, wanted: Alteration) -> Altered:
    """Plans one alteration.

    Raises Refused for changes that a chain or this dataset does not allow, Invalid for columns that are not right.
    """
    require_root(state)
    if state.unreadable:
        raise Refused(
            f"a newer version of the format declared something of {', '.join(sorted(state.unreadable))}",
            rule="unknown-event",
            hint="update odfd",
        )
    if state.schema is None:
        raise Refused(
            "the dataset has no schema yet: it takes the columns of its first rows",
            rule="schema-none",
            hint="change the read step of its source: odfctl edit dataset NAME",
        )
    if not wanted.columns:
        raise Invalid("no column is named", rule="schema-columns", hint="say which")
    if len(wanted.columns) > MAX_COLUMNS:
        raise Invalid(f"more than {MAX_COLUMNS} columns", rule="schema-columns")
    declared = schema_of(state.schema)
    if is_portal(declared):
        raise Refused(
            "the dataset is a portal: its columns are those that its rule was made for",
            rule="portal-rule",
            hint="declare another source dataset and a Portal for it",
        )
    return _add(state, declared, wanted) if wanted.action == "add" else _derive(state, declared, wanted)


def _derive(state: ChainState, declared: DataSchema, wanted: Alteration) -> Altered:
    if wanted.query is not None or wanted.computed:
        raise Invalid("a query is said of columns that are added", rule="schema-query", hint="leave out --query")
    assert state.dataset is not None
    assert wanted.action != "add"
    schema, made = altered_query(state.dataset, state.vocab, declared, wanted.action, wanted.columns)
    if wanted.derived is None:
        raise Refused(
            f"{_STAYS[wanted.action]}, as ODF has it, so that every reader can read old rows",
            rule="schema-compatible",
            hint="--as NAME derives a dataset in which it is so; the source dataset stays as it is",
        )
    derived = DatasetSnapshot(name=wanted.derived, kind=DatasetKind.DERIVATIVE, metadata=(made,))
    return Altered(schema=schema, derived=derived)


_STAYS: Final = {
    "rename": "a column of a chain keeps its name",
    "drop": "a column of a chain stays: rows that are published have it",
    "widen": "a column of a chain keeps its type",
}


def _add(state: ChainState, declared: DataSchema, wanted: Alteration) -> Altered:
    if wanted.derived is not None:
        raise Invalid("columns are added to the source dataset itself", rule="schema-as", hint="leave out --as")
    new = parse_ddl(wanted.columns).fields
    _check_new(new, declared)
    texts = tuple(_texts(wanted.columns, new))
    sources: list[MetadataEvent] = [*filter(None, [state.polling_source]), *state.active_push_sources.values()]
    events = [as_stored(_with_columns(source, new, texts, wanted)) for source in sources]
    schema = msgspec.structs.replace(declared, fields=(*declared.fields, *new))
    changed = tuple(event for event, before in zip(events, sources, strict=True) if event != before)
    return Altered(
        events=(*changed, SetDataSchema(schema=schema)), schema=schema, remarks=tuple(_of_sources(sources, wanted))
    )


def _check_new(new: Sequence[DataField], declared: DataSchema) -> None:
    names = [field.name for field in declared.fields]
    if len(names) + len(new) > MAX_COLUMNS:
        raise Invalid(f"the dataset would have more than {MAX_COLUMNS} columns", rule="schema-columns")
    check_names([field.name for field in new], names)
    for field in new:
        if not isinstance(field.type, odf.Option):
            raise Refused(
                f"column {field.name!r} is NOT NULL, and rows from before have no value in it",
                rule="schema-compatible",
                hint="leave out NOT NULL",
            )


def _texts(columns: Sequence[str], new: Sequence[DataField]) -> Iterator[str]:
    """Yields the definitions of new columns, as items of ``ddlSchema``; as one item if the counts differ."""
    if len(columns) == len(new):
        yield from columns
    elif columns:
        yield ", ".join(columns)


def _with_columns(
    source: MetadataEvent, new: Sequence[DataField], texts: tuple[str, ...], wanted: Alteration
) -> SetPollingSource | AddPushSource:
    assert isinstance(source, SetPollingSource | AddPushSource)
    if source.preprocess is None:
        if wanted.query is not None or wanted.computed:
            raise Invalid(
                f"{_name_of(source)} has no query: its columns are those of its files",
                rule="schema-query",
                hint="leave out --query and --computed",
            )
        return msgspec.structs.replace(source, read=_read_with(source.read, new, texts))
    if wanted.query is None:
        names = ", ".join(field.name for field in new)
        raise Refused(
            f"{_name_of(source)} shapes rows by a query, which would not give {names}",
            rule="schema-query",
            hint="say the query that does: --query 'select …'; the one so far: odfctl get dataset NAME -o manifest",
        )
    read = source.read if wanted.computed else _read_with(source.read, new, texts)
    return msgspec.structs.replace(source, read=read, preprocess=_with_query(source.preprocess, wanted.query))


def _read_with(read: ReadStep, new: Sequence[DataField], texts: tuple[str, ...]) -> ReadStep:
    """Returns the read step with the new columns that it lacks; unchanged if only the files define columns."""
    declared = declared_columns(read)
    if declared is None:
        return read
    known = {field.name for field in declared.fields}
    missing = tuple(field for field in new if field.name not in known)
    if read.schema is not None and read.schema.fields:
        fields = (*read.schema.fields, *missing)
        return msgspec.structs.replace(read, schema=msgspec.structs.replace(read.schema, fields=fields))
    if len(missing) == len(new):
        return msgspec.structs.replace(read, ddl_schema=(*(read.ddl_schema or ()), *texts))
    if missing:
        raise Invalid(
            f"the read step declares some of these columns already: {', '.join(sorted(known & {f.name for f in new}))}",
            rule="schema-columns",
            hint="add them apart from the others",
        )
    return read


def _with_query(preprocess: Transform, query: str) -> Transform:
    steps = preprocess.queries or ()
    last = msgspec.structs.replace(steps[-1], query=query) if steps else SqlQueryStep(query=query)
    return msgspec.structs.replace(preprocess, query=None, queries=(*steps[:-1], last))


def _name_of(source: SetPollingSource | AddPushSource) -> str:
    return "the polling source" if isinstance(source, SetPollingSource) else f"push source {source.source_name!r}"


def _of_sources(sources: Sequence[MetadataEvent], wanted: Alteration) -> Iterator[str]:
    for source in sources:
        assert isinstance(source, SetPollingSource | AddPushSource)
        called = _name_of(source)
        if wanted.computed:
            yield f"{called}: its query computes the columns"
        elif declared_columns(source.read) is None:
            yield f"{called} declares no columns: each file must have them from now on"
        else:
            yield f"{called} reads them from files from now on"
        if isinstance(source.merge, MergeLedger):
            yield (
                f"{called} uses the ledger strategy: its rows stay null there, even if they are "
                "ingested again with a value"
            )
        elif isinstance(source.merge, MergeSnapshot) and source.merge.compare_columns is not None:
            yield f"{called} does not compare the new columns: a row that differs in them alone is no news"
        elif isinstance(source.merge, MergeSnapshot):
            yield f"{called} is a snapshot: rows that come with a value are corrected by the next one"


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
    fields = {field.name: field for field in declared.fields if field.name not in _system_columns(vocab)}
    changed = _CHANGES[change](columns, fields, vocab)
    picked = [(field, after) for name, field in fields.items() if (after := changed.get(name, field)) is not None]
    listed = ",\n  ".join(_pick(before, after) for before, after in picked)
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


def _system_columns(vocab: Vocab) -> frozenset[str]:
    """Returns the system columns that an engine writes itself and no query selects."""
    return frozenset((vocab.offset, vocab.operation_type, vocab.system_time))


_Changed: TypeAlias = Mapping[str, DataField | None]
"""Changed columns by name; ``None``: the column is removed."""
_Fields: TypeAlias = Mapping[str, DataField]


def _find_column(name: str, fields: _Fields, vocab: Vocab, verb: str) -> DataField:
    if name in _system_columns(vocab) or (name == vocab.event_time and verb != "widened"):
        raise Refused(f"{name!r} is a system column, which is not {verb}", rule="schema-system-columns")
    if name not in fields:
        raise Invalid(f"there is no column {name!r}", rule="schema-columns", hint=f"columns: {', '.join(fields)[:500]}")
    return fields[name]


def _rename(columns: Sequence[str], fields: _Fields, vocab: Vocab) -> _Changed:
    if len(columns) != 2:
        raise Invalid("a column is renamed from one name to another", rule="schema-columns", hint="rename OLD NEW")
    old, new = columns
    field = _find_column(old, fields, vocab, "renamed")
    check_names([new], [*_system_columns(vocab), *fields])
    return {old: msgspec.structs.replace(field, name=new)}


def _drop(columns: Sequence[str], fields: _Fields, vocab: Vocab) -> _Changed:
    gone = {_find_column(name, fields, vocab, "dropped").name for name in columns}
    if gone >= fields.keys() - {vocab.event_time}:
        raise Invalid("no column of data would be left", rule="schema-columns", hint="leave one")
    return dict.fromkeys(gone)


def _widen(columns: Sequence[str], fields: _Fields, vocab: Vocab) -> _Changed:
    change: dict[str, DataField | None] = {}
    for field in parse_ddl(columns).fields:
        before = _find_column(field.name, fields, vocab, "widened")
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
    "rename": _rename,
    "drop": _drop,
    "widen": _widen,
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


def _pick(before: DataField, after: DataField) -> str:
    column, kind = _quote(before.name), _bare(after.type)
    if _bare(before.type) != kind:
        word = f"DECIMAL({kind.precision}, {kind.scale})" if isinstance(kind, odf.Decimal) else _SQL[type(kind)]
        return f"cast({column} as {word}) as {_quote(after.name)}"
    return column if before.name == after.name else f"{column} as {_quote(after.name)}"


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


Word: TypeAlias = Literal["evolves", "rewrites"]


class ChangeKind(NamedTuple):
    """The effect of a changed declaration on a dataset that has rows or columns, and a sentence for people."""

    word: Word
    text: str


def change_kind_of(name: str, state: ChainState, events: Sequence[MetadataEvent], kept: int) -> ChangeKind | None:
    """Returns the course of a change of dataset ``name``; ``None`` if it concerns no rows.

    ``state``: before the change. ``kept``: transactions whose bytes are captured.
    """
    if state.schema is None:
        return None
    sources = [event for event in events if isinstance(event, SetPollingSource | AddPushSource)]
    schema = next((event for event in reversed(events) if isinstance(event, SetDataSchema)), state.schema)
    if problems := [text for source in sources for text in _misfits(source, schema_of(schema), state.vocab)]:
        return ChangeKind("rewrites", f"{'; '.join(problems)}: the chain refuses such rows. {_anew(name, kept)}")
    if sources or any(isinstance(event, SetDataSchema) for event in events):
        return ChangeKind("evolves", f"it applies to rows that come; {_so_far(state)}. {_also(name, kept)}")
    if any(isinstance(event, SetTransform) for event in events):
        return ChangeKind("evolves", f"the next transaction takes over from the query so far; {_so_far(state)}")
    return None


def altered_change_kind(name: str, state: ChainState, altered: Altered, kept: int) -> ChangeKind:
    """Returns the course of an alteration of columns, likewise."""
    if altered.derived is not None:
        text = f"{name} stays as it is: no chain can say this. {altered.derived.name} is derived from it, with all rows"
        return ChangeKind("rewrites", text)
    found = change_kind_of(name, state, altered.events, kept)
    assert found is not None, "columns are altered where there are some"
    return found


def _so_far(state: ChainState) -> str:
    rows = state.next_offset
    return f"{plural(rows, 'row')} so far {agree(rows, 'stays', 'stay')} as {agree(rows, 'it is', 'they are')}"


def _also(name: str, kept: int) -> str:
    if not kept:
        return "Their bytes are not kept, so they cannot be decoded again"
    return f"Bytes of {plural(kept, 'transaction')} are kept: odfctl rendition create {name} decodes them so too"


def _anew(name: str, kept: int) -> str:
    if not kept:
        return "Its bytes are not kept, so no rendition can be made of them: apply it under another name"
    return (
        f"Make a rendition of the {plural(kept, 'transaction')} whose bytes are kept: odfctl rendition create {name},"
        f" then odfctl rendition handover {name} N; no rows are ingested until then"
    )


def _misfits(source: SetPollingSource | AddPushSource, schema: DataSchema, vocab: Vocab) -> Iterator[str]:
    """Yields how the columns that a source declares differ from those of the chain, which an ingest refuses.

    Nothing is said of columns that a query or the files define: they are not known before they come.
    """
    declared = declared_columns(source.read)
    if source.preprocess is not None or declared is None:
        return
    system = {vocab.offset, vocab.operation_type, vocab.system_time, vocab.event_time}
    have = _data(declared, system)
    want = _data(schema, system)
    for incompatibility in incompatibilities(want, have, upgrade=True):
        yield f"{incompatibility.message} from {incompatibility.expected} to {incompatibility.actual}"
    known = {field.name for field in want}
    yield from (f"column {field.name!r} is new" for field in have if field.name not in known)


def _data(schema: DataSchema, system: set[str]) -> Sequence[DataField]:
    return [field for field in schema.fields if field.name not in system]
