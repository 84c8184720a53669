"""Turns a dataset snapshot into events: those that begin a chain, or those that update an existing chain.

Pure. References to inputs are resolved to ids, queries are normalised, and the digest of the engine is pinned, so that
a chain never says anything whose meaning depends on this node. Spec: DatasetSnapshot, SetTransform.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from chain.codec.blocks import decode_block, encode_block
from chain.data.ddl import parse_ddl
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import MetadataBlock, UnknownEvent
from chain.model.changelog import says_by_time, says_changelog, with_changelog
from chain.model.defaults import same
from chain.model.events import (
    AddPushSource,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    MetadataEvent,
    Seed,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
    SetVocab,
    TransformInput,
)
from chain.model.portal import is_portal
from chain.model.source import ReadCsv, TransformSql
from chain.rules import check_snapshot
from chain.rules.rule import Violation
from chain.rules.snapshot import normalise_event
from chain.state import ChainState
from odfd.renditions.successor import without_notice

Resolve: TypeAlias = Callable[[str], DatasetId]
"""Resolves a reference to an id. Raises NotFound."""
Pin: TypeAlias = Callable[[TransformSql], str | None]
"""Returns the digest of the engine that will run a transform; ``None`` if it is unknown."""


def founding_events(
    snapshot: DatasetSnapshot, dataset: DatasetId, resolve: Resolve, pin: Pin
) -> tuple[MetadataEvent, ...]:
    """Builds all events of a new chain, the Seed first. Raises Invalid with every broken rule, or NotFound."""
    _refuse(check_snapshot(snapshot), snapshot)
    seed = Seed(dataset_id=dataset, dataset_kind=snapshot.kind)
    return (seed, *(normalise(event, resolve, pin) for event in snapshot.metadata))


def _refuse(broken: Sequence[Violation], snapshot: DatasetSnapshot) -> None:
    """Raises Invalid if any rule is broken."""
    if broken:
        raise Invalid(
            "; ".join(each.message for each in broken),
            rule=broken[0].rule,
            hint=broken[0].hint,
            place=snapshot.name,
        )


def normalise(event: MetadataEvent, resolve: Resolve, pin: Pin) -> MetadataEvent:
    """Normalises an event for a chain: expands shorthands, resolves references, pins the engine."""
    plain = with_columns(normalise_event(event))
    if not isinstance(plain, SetTransform):
        return plain
    inputs = tuple(
        TransformInput(dataset_ref=str(resolve(input_.dataset_ref)), alias=input_.alias) for input_ in plain.inputs
    )
    transform = plain.transform
    if transform.version is None:
        transform = msgspec.structs.replace(transform, version=pin(transform))
    return SetTransform(inputs=inputs, transform=transform)


def with_columns(event: MetadataEvent) -> MetadataEvent:
    """Copies columns declared as DDL to the schema with their attributes. Raises Invalid for unreadable DDL."""
    if not isinstance(event, SetPollingSource | AddPushSource):
        return event
    read = event.read
    if not read.ddl_schema or read.schema is None or read.schema.fields:
        return event
    try:
        columns = parse_ddl(read.ddl_schema)
    except Invalid as fault:
        fault.place = fault.place or "ddlSchema"
        raise
    schema = msgspec.structs.replace(columns, extra=read.schema.extra)
    return msgspec.structs.replace(event, read=msgspec.structs.replace(read, schema=schema, ddl_schema=None))


def changed_events(
    state: ChainState, snapshot: DatasetSnapshot, resolve: Resolve, pin: Pin
) -> tuple[MetadataEvent, ...]:
    """Builds the events that change an existing chain to ``snapshot``. Raises Invalid if that is impossible.

    Whether a new transform can go on from where the present one stopped is for the engine to say.
    """
    if state.kind is not snapshot.kind:
        held = state.kind.value if state.kind else "unknown"
        raise Invalid(
            f"{snapshot.name} exists as a {held} dataset and cannot become {snapshot.kind.value}",
            rule="dataset-exists",
            hint="choose another name, or delete it first",
        )
    _refuse(check_snapshot(snapshot, changes=True), snapshot)
    # Of two events for one place the later is in force in the end; the earlier would undo it at each apply.
    last = {_place(event): event for event in snapshot.metadata}
    changes: list[MetadataEvent] = []
    for event in snapshot.metadata:
        if last[_place(event)] is not event:
            continue
        wanted = as_stored(normalise(event, resolve, pin))
        held_event = in_force(state, wanted)
        wanted = _as_changeable(wanted, held_event)
        if same(held_event, wanted) and _escape(held_event) == _escape(wanted):
            continue
        if isinstance(wanted, SetDataSchema | SetVocab) and state.schema is not None and is_portal(state.schema.schema):
            text = f"{snapshot.name} is a portal: its schema and its rule stay as they are"
            raise Invalid(text, rule="portal-rule", hint="declare another source dataset for another rule")
        if _differs_in_pin_alone(event, wanted, held_event):
            continue
        changes.append(wanted)
    return tuple(changes)


def as_stored(event: MetadataEvent) -> MetadataEvent:
    """Returns the event as it would be read back from a block: the format does not distinguish some empty forms."""
    block = encode_block(MetadataBlock(system_time=Instant(0), prev_block_hash=None, sequence_number=0, event=event))
    stored = decode_block(block.raw).event
    assert not isinstance(stored, UnknownEvent), "we write no event that we do not know"
    return stored


def _place(event: MetadataEvent) -> Hashable:
    """Returns a key that is equal for events of which only the last is in force."""
    match event:
        case AddPushSource(source_name=name) | DisablePushSource(source_name=name):
            return AddPushSource, name
        case SetPollingSource() | DisablePollingSource():
            return SetPollingSource
        case _:
            return type(event)


def declaration(state: ChainState, name: str) -> DatasetSnapshot:
    """Returns the current declaration as a snapshot; ``changed_events`` of it on ``state`` is empty.

    It leaves out the schema, which comes with the data. Raises Invalid if a newer version declared something.
    """
    if state.kind is None or state.unknown is not None or state.unreadable:
        raise Invalid(
            f"a newer version of the format declared something of {name} that this one cannot say",
            rule="unknown-event",
            hint="update odfd",
        )
    declared = (
        state.set_vocab,
        state.polling_source,
        *(source for _, source in sorted(state.active_push_sources.items())),
        state.set_transform,
        without_notice(state.set_info),
        state.set_license,
        state.set_attachments,
    )
    return DatasetSnapshot(name=name, kind=state.kind, metadata=tuple(each for each in declared if each is not None))


def in_force(state: ChainState, event: MetadataEvent) -> MetadataEvent | None:
    """Returns the event in force that ``event`` would replace."""
    match event:
        case DisablePollingSource():
            return event if state.polling_disabled and state.polling_source is None else None
        case DisablePushSource(source_name=name):
            disabled = name in state.disabled_push_sources and name not in state.active_push_sources
            return event if disabled else None
        case AddPushSource(source_name=name):
            return state.active_push_sources.get(name)
        case SetInfo():
            return without_notice(state.set_info)
    declared = state.schema, state.set_license, state.set_attachments, state.set_vocab, state.polling_source
    return next((each for each in (*declared, state.set_transform) if type(each) is type(event)), None)


def _as_changeable(wanted: MetadataEvent, held: MetadataEvent | None) -> MetadataEvent:
    """Adds to a schema that is declared again the changes that the dataset went through, unless it states them."""
    if not (isinstance(wanted, SetDataSchema) and isinstance(held, SetDataSchema)):
        return wanted
    if wanted.schema is None or says_changelog(held.schema) is None or says_changelog(wanted.schema) is not None:
        return wanted
    by_time = says_by_time(held.schema)
    return SetDataSchema(schema=with_changelog(wanted.schema, says_changelog(held.schema), by_time=by_time))


def _escape(event: MetadataEvent | None) -> str | None:
    """Returns the escape character of a source's CSV.

    Absent, it means none to our reader and to the reference's, though the format gives it the default ``\\``: whoever
    adds it changes how files are read.
    """
    read = event.read if isinstance(event, SetPollingSource | AddPushSource) else None
    return read.escape if isinstance(read, ReadCsv) else None


def _differs_in_pin_alone(event: MetadataEvent, wanted: MetadataEvent, held: MetadataEvent | None) -> bool:
    """Whether a transform differs only in the engine, and states none; then the pinned engine stays."""
    if not (isinstance(event, SetTransform) and isinstance(wanted, SetTransform) and isinstance(held, SetTransform)):
        return False
    return event.transform.version is None and is_same_query(held, wanted)


def is_same_query(one: SetTransform, other: SetTransform) -> bool:
    """Whether two declarations differ at most in the engine."""
    return one.inputs == other.inputs and _neutral(one.transform) == _neutral(other.transform)


def _neutral(transform: TransformSql) -> TransformSql:
    return msgspec.structs.replace(transform, version=None)


def input_ids(transform: SetTransform) -> Sequence[DatasetId]:
    return [DatasetId.parse(input_.dataset_ref) for input_ in transform.inputs]


def inputs_first(
    asked: Iterable[DatasetId], inputs: Callable[[DatasetId], Sequence[DatasetId]], among: Container[DatasetId]
) -> list[DatasetId]:
    """Orders the requested datasets and those of their inputs that are in ``among``, so that inputs come first.

    Chains of other nodes may derive from each other in a ring; such a ring is cut where it closes.
    """
    ordered: dict[DatasetId, None] = {}
    begun: set[DatasetId] = set()
    for first in asked:
        path = [first]
        while path:
            last = path[-1]
            begun.add(last)
            following = next((input_ for input_ in inputs(last) if input_ in among and input_ not in begun), None)
            if following is not None:
                path.append(following)
            else:
                ordered[path.pop()] = None
    return list(ordered)
