"""Plans changes to the columns of a root: the events that add columns, or a derived dataset for any other change. Pure.

A chain only ever takes in optional columns (rule ``schema-compatible``). To add one, the read step of each source and
the schema change in one commit. Renaming, widening and dropping are done in a dataset derived from the root, whose
query is written here: the history of the root stays as it was published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.data.ddl import parse_ddl
from chain.errors import Invalid, Refused
from chain.model import schema as odf
from chain.model.events import (
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
)
from chain.model.portal import is_portal
from chain.model.schema import MAX_COLUMNS, DataField, DataSchema
from chain.model.source import MergeLedger, MergeSnapshot, ReadStep, SqlQueryStep, Transform
from chain.state import ChainState
from odfd.datasets.creation import as_stored
from odfd.ingest.altered_query import altered_query, check_names
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
            hint="declare another root and a Portal for it",
        )
    return _added(state, declared, wanted) if wanted.action == "add" else _derived(state, declared, wanted)


def _derived(state: ChainState, declared: DataSchema, wanted: Alteration) -> Altered:
    if wanted.query is not None or wanted.computed:
        raise Invalid("a query is said of columns that are added", rule="schema-query", hint="leave out --query")
    assert state.dataset is not None
    assert wanted.action != "add"
    schema, made = altered_query(state.dataset, state.vocab, declared, wanted.action, wanted.columns)
    if wanted.derived is None:
        raise Refused(
            f"{_STAYS[wanted.action]}, as ODF has it, so that every reader can read old rows",
            rule="schema-compatible",
            hint="--as NAME derives a dataset in which it is so; the root stays as it is",
        )
    derived = DatasetSnapshot(name=wanted.derived, kind=DatasetKind.DERIVATIVE, metadata=(made,))
    return Altered(schema=schema, derived=derived)


_STAYS: Final = {
    "rename": "a column of a chain keeps its name",
    "drop": "a column of a chain stays: rows that are published have it",
    "widen": "a column of a chain keeps its type",
}


def _added(state: ChainState, declared: DataSchema, wanted: Alteration) -> Altered:
    if wanted.derived is not None:
        raise Invalid("columns are added to the root itself", rule="schema-as", hint="leave out --as")
    new = parse_ddl(wanted.columns).fields
    _check_new(new, declared)
    texts = tuple(_texts(wanted.columns, new))
    sources: list[MetadataEvent] = [*filter(None, [state.polling_source]), *state.active_push_sources.values()]
    events = [as_stored(_with_columns(each, new, texts, wanted)) for each in sources]
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
                f"{_called(source)} has no query: its columns are those of its files",
                rule="schema-query",
                hint="leave out --query and --computed",
            )
        return msgspec.structs.replace(source, read=_read_with(source.read, new, texts))
    if wanted.query is None:
        names = ", ".join(field.name for field in new)
        raise Refused(
            f"{_called(source)} shapes rows by a query, which would not give {names}",
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


def _called(source: SetPollingSource | AddPushSource) -> str:
    return "the polling source" if isinstance(source, SetPollingSource) else f"push source {source.source_name!r}"


def _of_sources(sources: Sequence[MetadataEvent], wanted: Alteration) -> Iterator[str]:
    for source in sources:
        assert isinstance(source, SetPollingSource | AddPushSource)
        called = _called(source)
        if wanted.computed:
            yield f"{called}: its query computes the columns"
        elif declared_columns(source.read) is None:
            yield f"{called} declares no columns: each file must have them from now on"
        else:
            yield f"{called} reads them from files from now on"
        if isinstance(source.merge, MergeLedger):
            yield f"{called} is a ledger: rows that it has stay null there, even if they come again with a value"
        elif isinstance(source.merge, MergeSnapshot) and source.merge.compare_columns is not None:
            yield f"{called} does not compare the new columns: a row that differs in them alone is no news"
        elif isinstance(source.merge, MergeSnapshot):
            yield f"{called} is a snapshot: rows that come with a value are corrected by the next one"
