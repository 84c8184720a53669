"""Crosses a handover of a collection: from a former rendition to the next one, by the exact difference of both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from odfd_client.errors import Bug, HandedOver, Invalid, NotFound, Refused
from odfd_client.expressions import Parameters, quote_name
from odfd_client.leases import SECONDS, Lease
from odfd_client.relations import Demand, Query, Selection, last_offset
from odfd_client.subscription import Progress, Source, Update, of_shards, progressing
from odfd_client.transport import Transport, part
from odfd_client.values import Pin, Position

_SOON, _LATER, _PATIENCE = 0.005, 0.5, 60.0
"""Seconds between requests for an end that is not complete yet: first, most, and altogether."""
_SYSTEM = ("offset", "op", "system_time")


@dataclass(frozen=True, slots=True)
class Switched:
    """A handover. The results of the rows so far, changed by ``changes``, equal those of the next rendition."""

    time: str
    old: str
    """Id of the rendition that ended."""
    new: str
    changes: Query | None
    """Rows with ``op``: 1 retracts an earlier row, 0 adds one. ``None``: both contain the same rows. Read them before
    the next item: until then the histories are held."""
    position: Position


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a rendition, as the node describes it."""

    time: str
    old: tuple[Pin, ...]
    """The cut of each shard at the end."""
    new: tuple[Pin, ...]
    equal: bool
    columns: tuple[str, ...] | None
    difference: Pin | None = None
    """The rows by which both differ, if the node keeps them."""
    offsets: tuple[int, ...] = ()
    """The offset of the last row of each shard of the new rendition, if the node said them."""

    @classmethod
    def of(cls, transport: Transport, dataset: str) -> Ending:
        """Requests the end of a rendition. Raises NotFound: it has not ended, or its data is gone; Bug."""
        said = _ask_end(transport, dataset)
        try:
            columns, kept = said.get("columns"), said.get("difference")
            old, new = (tuple(map(Pin.of, said.get(f"{each}Shards") or (said[each],))) for each in ("old", "new"))
            return cls(
                str(said["time"]), old, new, said.get("equal") is True,
                None if columns is None else tuple(map(str, columns)), None if kept is None else Pin.of(kept),
                tuple(map(int, said.get("offsets") or ())),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, Invalid) as error:
            raise Bug(f"the end of a rendition is not understood: {error}", rule="answer") from error


def _ask_end(transport: Transport, dataset: str) -> Any:
    """Requests the end of a rendition, again while the handover is being completed. Raises NotFound."""
    path, pause, waited = f"/dataset/v1alpha1/datasets/{part(dataset)}/handover", _SOON, 0.0
    while True:
        try:
            return transport.get(path)
        except NotFound as error:
            if error.rule != "rendition-upper" or waited >= _PATIENCE:
                raise
        threading.Event().wait(pause)
        waited, pause = waited + pause, min(2 * pause, _LATER)


class Handovers(Protocol):
    """The handovers of a collection: a node, or a repository, tells them."""

    def ending(self, source: Source, dataset: str) -> Ending:
        """Returns the end of a rendition. Raises NotFound: it has not ended, or its data is gone."""

    def switch(self, ending: Ending, position: Position) -> Generator[Switched, None, Position]:
        """Yields the handover. Returns the position after it.

        ``position``: how far the former rendition was read, possibly beyond its end.
        """


class HandoversOfNode:
    """The handovers that a node tells, with both histories held while their difference is read."""

    def __init__(self, transport: Transport, selection: Selection, demand: Demand) -> None:
        self._transport, self._selection, self._demand = transport, selection, demand

    def ending(self, source: Source, dataset: str) -> Ending:  # noqa: ARG002  a repository asks it
        return Ending.of(self._transport, dataset)

    def switch(self, ending: Ending, position: Position) -> Generator[Switched, None, Position]:
        return _switch(self._transport, self._selection, self._demand, ending, position)


def _switch(
    transport: Transport, selection: Selection, demand: Demand, ending: Ending, position: Position
) -> Generator[Switched, None, Position]:
    read = tuple(Pin(each.id, each.id, each.block, each.sequence_number) for each in position.parts)
    is_at_the_end = [each.block for each in read] == [each.block for each in ending.old]
    if is_at_the_end and ending.equal:  # nothing of both is read
        after = _begin(transport, demand, ending)
        yield Switched(ending.time, read[0].id, ending.new[0].id, None, after)
        return after
    with ExitStack() as held:
        for dataset in (read[0].id, ending.new[0].id):
            held.enter_context(Lease.take(transport, dataset, None, SECONDS, "a listener that crosses a handover"))
        after = _begin(transport, demand, ending)
        if is_at_the_end and ending.difference is not None:
            kept = replace(ending.difference, name=ending.difference.id)
            changes = Query(transport, _kept_changes(selection, ending), (kept,), demand)
        else:
            pins = (*read, *(replace(pin, name=pin.id) for pin in ending.new))
            changes = Query(transport, _changes(selection, read, ending), pins, demand)
        yield Switched(ending.time, read[0].id, ending.new[0].id, changes, after)
    return after


def _begin(transport: Transport, demand: Demand, ending: Ending) -> Position:
    """Returns the position in the new rendition at the handover."""
    parts = []
    for place, pin in enumerate(ending.new):
        if len(ending.offsets) == len(ending.new):
            offset = ending.offsets[place]
        else:  # an older node
            offset = last_offset(transport, Selection(pin.id), (pin,), demand)
        parts.append(Position(pin.id, offset, pin.block, pin.sequence_number))
    return Position.of(parts)


def _changes(selection: Selection, read: Sequence[Pin], ending: Ending) -> tuple[str, Parameters]:
    """Builds SQL for rows that one of both has more often, as many times; equal rows are counted."""
    parameters: Parameters = {}
    where = "" if selection.where is None else f" WHERE {selection.where.sql(parameters)}"
    named = selection.columns or ending.columns
    wanted = None if named is None else [name for name in named if name not in _SYSTEM]
    if wanted is None or (selection.columns and ending.columns is None):
        chosen = (
            ", ".join(map(quote_name, wanted)) if wanted else "* EXCLUDE (" + ", ".join(map(quote_name, _SYSTEM)) + ")"
        )
        old, new = (f"{chosen} FROM {_standing(pins)}{where}" for pins in (read, ending.new))
        return f"SELECT 1 AS op, {old} UNION ALL BY NAME SELECT 0 AS op, {new}", parameters
    columns = ", ".join(map(quote_name, wanted))
    old, new = (f"FROM {_standing(pins)}{where}" for pins in (read, ending.new))
    return _sum_sql(columns, f'SELECT {columns}, -1 AS "odfd w" {old} UNION ALL SELECT {columns}, 1 {new}'), parameters


def _kept_changes(selection: Selection, ending: Ending) -> tuple[str, Parameters]:
    """Builds SQL for the chosen columns of the rows that the node keeps; rows that are equal in them are counted."""
    assert ending.difference is not None
    parameters: Parameters = {}
    where = "" if selection.where is None else f" WHERE {selection.where.sql(parameters)}"
    named = selection.columns or ending.columns or ()
    columns = ", ".join(quote_name(name) for name in named if name not in _SYSTEM)
    rows = f"FROM {quote_name(ending.difference.id)}{where}"
    return _sum_sql(columns, f'SELECT {columns}, if(op = 1, -1, 1) AS "odfd w" {rows}'), parameters


def _sum_sql(columns: str, both: str) -> str:
    # Names are quoted, and values are parameters.
    sums = f'SELECT {columns}, sum("odfd w") AS "odfd s" FROM ({both}) GROUP BY ALL HAVING sum("odfd w") <> 0'  # noqa: S608
    each = f'SELECT *, unnest(range(abs("odfd s")::BIGINT)) AS "odfd r" FROM ({sums})'  # noqa: S608
    return f'SELECT if("odfd s" < 0, 1, 0) AS op, {columns} FROM ({each}) ORDER BY op DESC'  # noqa: S608


def _standing(pins: Sequence[Pin]) -> str:
    """Formats the table of a rendition's current rows; rows of one key are always in one shard."""
    parts = [f"SELECT * FROM current.{quote_name(pin.id)}" for pin in pins]  # noqa: S608  quoted
    return f"current.{quote_name(pins[0].id)}" if len(pins) == 1 else f"({' UNION ALL BY NAME '.join(parts)})"


def cross(
    log: Callable[[str], Source],
    name: str,
    handovers: Handovers,
    position: Position | None,
    *,
    follow: bool,
    seconds: float,
    progress: bool = False,
) -> Generator[Update | Switched | Progress, None, None]:
    """Implements ``Dataset.cross``. ``log``: returns a source for a dataset's id, or for the requested name."""
    dataset = str(log(name).describe()["id"]) if position is None else position.id
    ended, complete = False, False
    while True:
        source = log(dataset)
        if ended or source.has_ended(dataset):
            position = yield from _to_the_end(source, dataset, position, handovers, complete=complete)
            dataset, ended, complete = position.id, False, True
            continue
        try:
            for item in progressing(source, position, follow=follow, seconds=seconds, progress=progress):
                position, complete = item.position or position, isinstance(item, Progress)
                yield item
        except HandedOver:
            ended, complete = True, True
            continue
        return


def _to_the_end(
    source: Source, dataset: str, position: Position | None, handovers: Handovers, *, complete: bool
) -> Generator[Update | Switched, None, Position]:
    """Yields the rows of a rendition up to its end, and the handover. Returns the position after it.

    ``complete``: all rows of the position's own block are delivered.
    """
    ending = handovers.ending(source, dataset)
    ids = [pin.id for pin in ending.old]
    if position is not None and [each.id for each in position.parts] != ids:
        said = f"the position is of one shard of {source.ref}, and all {len(ids)} handed over together"
        raise Refused(said, rule="shard-listen", hint="start again with the collection's name")
    parts = position.parts if position is not None else ()
    # A shard that was read beyond its end stays so; the difference is computed from there.
    up_to = (
        [
            Pin(each.id, each.id, each.block, each.sequence_number) if _reaches(each, pin) else pin
            for each, pin in zip(parts, ending.old, strict=True)
        ]
        if parts
        else ending.old
    )
    _, position = yield from of_shards(source, ids, position, up_to, resumed=not complete)
    assert position is not None
    for each, pin in zip(position.parts, ending.old, strict=True):
        if (each.block, each.sequence_number) != (pin.block, pin.sequence_number):  # that the end has, the node says
            source.stands_on(each)
    return (yield from handovers.switch(ending, position))


def _reaches(position: Position, pin: Pin) -> bool:
    return position.sequence_number >= pin.sequence_number
