"""Chooses the files of a log that a reader gets: all of a cut, or those after the rows that it has.

Work for news does not grow with the log: slices are listed from a cache, and only chosen ones are hashed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from chain.errors import Conflict, NotFound, Refused
from engines.query.requests import TableNamed
from odfd.control import wire
from odfd.queries.planning import PlannedView, QueryPlan
from odfd.queries.sharded_cuts import pin_at
from odfd.queries.slices import PlacedSlice
from odfd.store import collections
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory

MOST_SLICES: Final = 512
"""Files given to one reader at a time, which may have a thousand open."""
MOST_LISTED: Final = 100_000
"""Files whose offsets one answer lists without giving them."""
_RENAMES: Final = 8
"""Handovers in a row, between a look at a name and the plan for it, after which a request is refused."""
MakePlan = Callable[[Sequence[TableNamed], wire.QueryRequest], QueryPlan]


class LogFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a log that one answer gives."""

    head: wire.QueryHead
    view: PlannedView
    more: bool = False
    """Whether more files come after these."""
    ended: bool = False
    """Whether another rendition has replaced the log's."""


def files_of_log(home: StateDirectory, plan: MakePlan, request: wire.SlicesRequest) -> LogFiles:
    """Chooses files. Raises as ``plan`` does, NotFound for a position that is no longer in the chain, and Refused for
    a log that its slices do not hold as it is read.
    """
    times = tuple((time.kind, time.value) for time in request.times)
    for _ in range(_RENAMES):
        entry, ref, pins, ended = _asked_for(home, request)
        cut = wire.QueryRequest(sql="", pins=pins, require=request.require, cut=request.cut)
        found = plan((TableNamed(path=(ref,), place="", clauses=times),), cut)
        (view,) = found.views
        if times or entry is None or view.dataset == entry.id:
            break
    else:
        raise Conflict(f"{ref} hands over again and again", rule="listen-handover", hint="try again")
    if request.explain:
        return LogFiles(head=found.head, view=msgspec.structs.replace(view, slices=(), shards=()), ended=ended)
    if view.shards:
        raise _not_plain()
    chosen, more = view.slices, False
    if request.after is not None:
        first = bisect_right(chosen, request.after.offset, key=_last_offset)
        chosen, more = chosen[first : first + MOST_SLICES], len(chosen) > first + MOST_SLICES
    if request.offsets is not None:
        low, high = request.offsets
        chosen = chosen[bisect_left(chosen, low, key=_last_offset) : bisect_right(chosen, high, key=_first_offset)]
    if len(chosen) > (most := MOST_LISTED if request.listed else MOST_SLICES):
        text = f"the number of slices with these rows is above {most:,}"
        raise Refused(text, rule="query-slices", hint="ask for its rows")
    if view.view.is_computed and not _are_plain(home, view, chosen):
        raise _not_plain()
    return LogFiles(head=found.head, view=msgspec.structs.replace(view, slices=chosen), more=more, ended=ended)


def _asked_for(
    home: StateDirectory, request: wire.SlicesRequest
) -> tuple[DatasetEntry | None, str, tuple[wire.Pin, ...], bool]:
    """Returns the dataset of a listener, if one asks; what its rows are planned by, and whether it was replaced.

    A handover may give the name to another rendition right afterwards. Raises NotFound.
    """
    if request.after is None and not request.explain:
        return None, request.dataset, request.pins, False
    entry, pins = home.resolve(request.dataset), request.pins
    with home.database.read() as connection:  # before the rows are: then those from before the end are all listed
        end = collections.ended_at(connection, entry.id)
    if end is not None and request.together and not pins and len(home.shards_of(entry.id)) == 1:
        pins = (pin_at(home, entry.name, entry.id, end),)  # later blocks are copies, for a way back
    if request.after is not None:
        _check_position(home, entry, request.after)
    return entry, entry.name if request.together else request.dataset, pins, end is not None


def _check_position(home: StateDirectory, entry: DatasetEntry, after: wire.LogPosition) -> None:
    """Raises NotFound if the block of a position is no longer in the chain."""
    if not after.block:
        return
    chain, number = home.chains.chain(entry.id), after.sequence_number
    head = chain.head()
    if head is None or not 0 <= number < head.size or str(chain.block_at(number).hash) != after.block:
        raise NotFound(
            f"block #{number} of {entry.name} is not the one that was listened to: its history was rewritten",
            rule="listen-rewritten",
            hint="start again without a position, and replace the results of the former rows",
        )


def _are_plain(home: StateDirectory, view: PlannedView, chosen: Sequence[PlacedSlice]) -> bool:
    """Whether the rows of these slices are read as they are: all have the columns of the newest schema."""
    if msgspec.structs.replace(view.view, mixed=False).is_computed:
        return False
    newest = home.chains.chain(view.dataset).last_of(("SetDataSchema",), view.cut.size)
    return newest is not None and all(each.sequence > newest.sequence_number for each in chosen[:1])


def _first_offset(placed: PlacedSlice) -> int:
    return placed.slice.offset_interval.start


def _last_offset(placed: PlacedSlice) -> int:
    return placed.slice.offset_interval.end


def _not_plain() -> Refused:
    return Refused("this is not a plain log that can be read from slices", rule="query-slices", hint="ask for its rows")
