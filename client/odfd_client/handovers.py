"""Crosses a handover of a collection: from a former rendition to the next one, by the exact difference of both."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass

from odfd_client.errors import Bug, HandedOver, Invalid
from odfd_client.expressions import Parameters, quoted
from odfd_client.holds import SECONDS, take
from odfd_client.relations import Dataset, Demand, Query, Selection
from odfd_client.subscription import Source, Update, delivered, listen
from odfd_client.transport import Transport, part
from odfd_client.values import Pin, Position

_SYSTEM = ("offset", "op", "system_time")


@dataclass(frozen=True, slots=True)
class Switched:
    """A handover. What was made of the rows so far, with ``changes``, is what the next rendition contains."""

    time: str
    old: str
    """Id of the rendition that ended."""
    new: str
    changes: Query | None
    """Rows with ``op``: 1 retracts a row of before, 0 adds one. ``None``: both contain the same. Read them before the
    next item is asked for: until then the histories are held."""
    position: Position


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a rendition, as the node says it."""

    time: str
    old: Pin
    new: Pin
    equal: bool
    columns: tuple[str, ...] | None

    @classmethod
    def of(cls, transport: Transport, dataset: str) -> Ending:
        """Raises NotFound: it has not ended, or its data is gone; Bug."""
        said = transport.get(f"/dataset/v1alpha1/datasets/{part(dataset)}/handover")
        try:
            columns = said.get("columns")
            return cls(
                str(said["time"]), Pin.of(said["old"]), Pin.of(said["new"]), said.get("equal") is True,
                None if columns is None else tuple(map(str, columns)),
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError, Invalid) as error:
            raise Bug(f"the end of a rendition is not understood: {error}", rule="answer") from error


def switched(
    transport: Transport, selection: Selection, demand: Demand, ending: Ending, position: Position
) -> Generator[Switched, None, Position]:
    """Yields the handover while both histories are held. Returns the position behind it.

    ``position``: up to where the former rendition was read, which may be beyond its end.
    """
    read = Pin(position.id, position.id, position.block, position.sequence_number)
    with ExitStack() as held:
        for dataset in (read.id, ending.new.id):
            held.enter_context(take(transport, dataset, None, SECONDS, "a listener that crosses a handover"))
        log = Dataset(transport, Selection(ending.new.id), (ending.new,), demand)
        after = Position(ending.new.id, log.last_offset(), ending.new.block, ending.new.sequence_number)
        changes = None
        if not ending.equal or read.sequence_number != ending.old.sequence_number:
            changes = Query(transport, _changes(selection, read, ending), (read, ending.new), demand)
        yield Switched(ending.time, read.id, ending.new.id, changes, after)
    return after


def _changes(selection: Selection, read: Pin, ending: Ending) -> tuple[str, Parameters]:
    """SQL for rows that one of both has more often, as many times; equal rows are counted."""
    parameters: Parameters = {}
    where = "" if selection.where is None else f" WHERE {selection.where.sql(parameters)}"
    named = selection.columns or ending.columns
    wanted = None if named is None else [name for name in named if name not in _SYSTEM]
    if wanted is None or (selection.columns and ending.columns is None):
        chosen = ", ".join(map(quoted, wanted)) if wanted else "* EXCLUDE (" + ", ".join(map(quoted, _SYSTEM)) + ")"
        old, new = (f"{chosen} FROM current.{quoted(each.id)}{where}" for each in (read, ending.new))
        return f"SELECT 1 AS op, {old} UNION ALL BY NAME SELECT 0 AS op, {new}", parameters
    columns = ", ".join(map(quoted, wanted))
    old, new = (f"FROM current.{quoted(each.id)}{where}" for each in (read, ending.new))
    both = f'SELECT {columns}, -1 AS "odfd w" {old} UNION ALL SELECT {columns}, 1 {new}'
    # Names are quoted, and values are parameters.
    sums = f'SELECT {columns}, sum("odfd w") AS "odfd s" FROM ({both}) GROUP BY ALL HAVING sum("odfd w") <> 0'  # noqa: S608
    each = f'SELECT *, unnest(range(abs("odfd s")::BIGINT)) AS "odfd r" FROM ({sums})'  # noqa: S608
    text = f'SELECT if("odfd s" < 0, 1, 0) AS op, {columns} FROM ({each}) ORDER BY op DESC'  # noqa: S608
    return text, parameters


def cross(
    log: Callable[[str], Source],
    asked: tuple[Selection, Demand],
    position: Position | None,
    *,
    follow: bool,
    seconds: float,
) -> Generator[Update | Switched, None, None]:
    """Implements ``Dataset.cross``. ``log``: a source of the dataset with an id, or of the name that was asked for."""
    dataset = str(log(asked[0].name).describe()["id"]) if position is None else position.id
    while True:
        source = log(dataset)
        if source.has_ended(dataset):
            position = yield from _to_the_end(source, dataset, position, asked)
            dataset = position.id
            continue
        try:
            for update in listen(source, position, follow=follow, seconds=seconds):
                position = update.position
                yield update
        except HandedOver:
            continue
        return


def _to_the_end(
    source: Source, dataset: str, position: Position | None, asked: tuple[Selection, Demand]
) -> Generator[Update | Switched, None, Position]:
    """Yields what a rendition has before its end, and the handover."""
    ending = Ending.of(source.transport, dataset)
    if position is None or position.sequence_number < ending.old.sequence_number:
        done = False
        while not done:
            done, position = yield from delivered(source, dataset, position, ending.old)
        offset = -1 if position is None else position.offset
        position = Position(dataset, offset, ending.old.block, ending.old.sequence_number)
    else:
        source.stands_on(position)
    return (yield from switched(source.transport, *asked, ending, position))
