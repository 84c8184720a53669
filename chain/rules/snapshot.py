"""Checks the snapshots that a person may apply, and prepares their events for a chain. Spec: DatasetSnapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import parse_local_alias
from chain.model.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DatasetSnapshot,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    MetadataEvent,
    Seed,
    SetPollingSource,
    SetTransform,
    TransformInput,
)
from chain.model.source import SqlQueryStep, TransformSql
from chain.rules.rule import Violation

_RULE: Final = "snapshot"
_NEVER: Final = {
    Seed: "the Seed is made for you",
    AddData: "data enters by ingest",
    ExecuteTransform: "transforms are executed by the node",
    DisablePushSource: "there is nothing to disable yet",
    DisablePollingSource: "there is nothing to disable yet",
}
_DISABLING: Final = (DisablePushSource, DisablePollingSource)
_ONLY: Final = {
    SetPollingSource: DatasetKind.ROOT,
    AddPushSource: DatasetKind.ROOT,
    SetTransform: DatasetKind.DERIVATIVE,
}


def check_snapshot(snapshot: DatasetSnapshot, *, changes: bool = False) -> list[Violation]:
    """Lists the reasons why a snapshot cannot become a chain, apart from references to other datasets.

    ``changes``: the snapshot changes an existing dataset, which may have sources to disable, and keeps what the
    snapshot omits. The rules on blocks apply to its events too; they are checked when the blocks are made.
    """
    return list(_faults(snapshot, changes=changes))


def normalise_event(event: MetadataEvent) -> MetadataEvent:
    """Returns the event with its shorthands expanded."""
    match event:
        case SetTransform(inputs=inputs, transform=transform):
            named = tuple(TransformInput(dataset_ref=x.dataset_ref, alias=x.alias or x.dataset_ref) for x in inputs)
            return SetTransform(inputs=named, transform=_normalised(transform))
        case (
            SetPollingSource(preprocess=TransformSql() as transform)
            | AddPushSource(preprocess=TransformSql() as transform)
        ):
            return msgspec.structs.replace(event, preprocess=_normalised(transform))
        case _:
            return event


def _normalised(transform: TransformSql) -> TransformSql:
    if transform.query is None or transform.queries is not None:
        return transform
    return msgspec.structs.replace(transform, query=None, queries=(SqlQueryStep(query=transform.query),))


def _faults(snapshot: DatasetSnapshot, *, changes: bool) -> Iterator[Violation]:
    try:
        parse_local_alias(snapshot.name)
    except Invalid as fault:
        yield Violation(rule=fault.rule, message=fault.message, hint=fault.hint)
    for number, event in enumerate(snapshot.metadata):
        place = f"metadata[{number}]"
        name = type(event).__name__
        why = _NEVER.get(type(event))
        if why and not (changes and isinstance(event, _DISABLING)):
            yield Violation(rule=_RULE, message=f"{place}: {name} is not allowed in a snapshot", hint=why)
        only = _ONLY.get(type(event))
        if only not in (None, snapshot.kind):
            yield Violation(
                rule="event-of-kind",
                message=f"{place}: {name} belongs in a {only.value if only else ''} dataset",
                expected=only.value if only else "",
                actual=snapshot.kind.value,
            )
        yield from _both_forms(event, place)
    yield from _counts(snapshot, least=0 if changes else 1)


def _both_forms(event: MetadataEvent, place: str) -> Iterator[Violation]:
    match event:
        case (
            SetTransform(transform=TransformSql() as transform)
            | SetPollingSource(preprocess=TransformSql() as transform)
            | AddPushSource(preprocess=TransformSql() as transform)
        ) if transform.query is not None and transform.queries is not None:
            yield Violation(rule=_RULE, message=f"{place}: both query and queries are given", hint="keep one of them")


def _counts(snapshot: DatasetSnapshot, least: int) -> Iterator[Violation]:
    transforms = sum(isinstance(event, SetTransform) for event in snapshot.metadata)
    polling = sum(isinstance(event, SetPollingSource) for event in snapshot.metadata)
    if snapshot.kind is DatasetKind.DERIVATIVE and not least <= transforms <= 1:
        yield Violation(
            rule=_RULE, message="a derived dataset needs one SetTransform", expected="1", actual=str(transforms)
        )
    if polling > 1:
        yield Violation(rule=_RULE, message="more than one polling source", expected="1", actual=str(polling))
