"""Says of a changed declaration whether it evolves a dataset or rewrites it, before anything is done. Pure.

A chain keeps its rows and columns. A change that a chain can take in applies to what comes from now on: the dataset
evolves. Rows of other columns or types are refused by the chain, so such a change takes effect only in a rendition,
which decodes the captured bytes anew: it rewrites the dataset. Spec: docs/spec/collections.md#course.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from chain.codec.arrow_schema import schema_of
from chain.model.events import AddPushSource, MetadataEvent, SetDataSchema, SetPollingSource, SetTransform, Vocab
from chain.model.schema import DataField, DataSchema
from chain.rules.schema import incompatibilities
from chain.state import ChainState
from chain.wording import agree, plural
from odfd.ingest.alteration import Altered
from odfd.ingest.plan import declared_columns

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
    if problems := [text for each in sources for text in _misfits(each, schema_of(schema), state.vocab)]:
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
        return "Their bytes are not kept, so they cannot be decoded anew"
    return f"Bytes of {plural(kept, 'transaction')} are kept: odfctl rendition create {name} decodes them so too"


def _anew(name: str, kept: int) -> str:
    if not kept:
        return "Its bytes are not kept, so no rendition can be made of them: apply it under another name"
    return (
        f"Make a rendition of the {plural(kept, 'transaction')} whose bytes are kept: odfctl rendition create {name},"
        f" then odfctl rendition handover {name} N; nothing is taken in until then"
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
    for each in incompatibilities(want, have, upgrade=True):
        yield f"{each.message} from {each.expected} to {each.actual}"
    known = {field.name for field in want}
    yield from (f"column {field.name!r} is new" for field in have if field.name not in known)


def _data(schema: DataSchema, system: set[str]) -> Sequence[DataField]:
    return [field for field in schema.fields if field.name not in system]
