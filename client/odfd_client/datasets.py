"""Selects, reads and follows a dataset of a node."""

from __future__ import annotations

import datetime
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from odfd_client.errors import Invalid, Refused
from odfd_client.expressions import Predicate, instant
from odfd_client.handovers import HandoversOfNode, Switched, cross
from odfd_client.leases import SECONDS, Lease
from odfd_client.relations import CLAUSES, Demand, Log, Query, RemoteLog, Selection, last_offset, name_once, reading_of
from odfd_client.slice_files import SliceFiles, slice_files
from odfd_client.subscription import Progress, Source, Update, listen
from odfd_client.transport import Transport
from odfd_client.values import NodeMetadata, Pin, Position

_AS_OF, _AT_BLOCK, _AS_AT = CLAUSES


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The current rows at a position; the updates after it are the changes to them."""

    rows: Dataset
    """Read them before the next update: until then the history is held."""
    position: Position


class Dataset(Query):
    """A dataset. Methods return a narrower selection; this one stays unchanged."""

    def __init__(
        self, transport: Transport, selection: Selection, pins: Sequence[Pin] = (), demand: Demand | None = None
    ) -> None:
        super().__init__(transport, selection.sql(), pins, demand)
        self._selection, self._columns = selection, selection.columns

    def files(self, *, keep: bool = False, offsets: tuple[int, int] | None = None) -> SliceFiles | None:
        return self._slices({} if offsets is None else {"offsets": offsets}, keep=keep)

    def listed(self) -> SliceFiles | None:
        return self._slices({"listed": True})

    def _slices(self, wanted: dict[str, object], *, keep: bool = False) -> SliceFiles | None:
        asked = self._selection
        is_whole = not asked.current and asked.where is None and asked.limit is None and name_once(asked.columns)
        if self._transport.is_remote or not is_whole or len(self._pins) > 1:
            return None
        times = [{"kind": CLAUSES[words], "value": said} for words, said in asked.clauses]
        body = {"dataset": asked.name, "times": times} | reading_of(self._pins, self._demand) | wanted
        try:
            files = slice_files(self._transport, body, keep=keep)
        except Refused as refusal:
            if refusal.rule != "query-slices":
                raise
            return None
        except Invalid as error:
            if not wanted or error.rule != "request":
                raise
            return self._slices({}, keep=keep)  # the node is older, and gives whole logs
        if files is None:
            return None
        if not {*asked.columns} <= {*files.schema.names}:
            files.close()
            return None
        self._told, self._pins = files.told, files.told.pins
        return files

    def _ask_metadata(self) -> NodeMetadata:
        if self._told is None:
            self.listed()
        return super()._ask_metadata()

    def at(self, when: str | datetime.date) -> Dataset:
        """Selects the state known at ``when``, by the times of the blocks. A time without a zone is in UTC."""
        return self._at(_AS_OF, instant(when))

    def at_block(self, block: int | str) -> Dataset:
        """Selects the blocks up to this one, included: a number or a hash."""
        return self._at(_AT_BLOCK, f"#{block}" if isinstance(block, int) else block)

    def as_at(self, when: str | datetime.date) -> Dataset:
        """Selects rows whose event time is not later than ``when``."""
        return self._at(_AS_AT, instant(when))

    def current(self) -> Dataset:
        """Selects the current rows of the log."""
        return self._with(current=True)

    def select(self, *columns: str) -> Dataset:
        """Selects only these columns, in this order."""
        if not columns:
            raise Invalid("no column is named", rule="columns", hint='select("city", "celsius")')
        return self._with(columns=columns)

    def where(self, predicate: Predicate) -> Dataset:
        """Selects only rows that satisfy this and earlier predicates."""
        if not isinstance(predicate, Predicate):
            raise Invalid("where takes a predicate", rule="predicate", hint='where(col("celsius") > 30), or c.sql(…)')
        known = self._selection.where
        return self._with(where=predicate if known is None else known & predicate)

    def limit(self, rows: int) -> Dataset:
        """Selects at most so many rows, after all other conditions."""
        if type(rows) is not int or rows < 0:
            raise Invalid(f"not a number of rows: {rows!r}", rule="limit")
        return self._with(limit=rows)

    def require(self, facts: str, *, cut: bool = False) -> Dataset:
        """Refuses data that does not satisfy ``facts`` (``attested:2``); ``cut``: reads only the part that does."""
        return self._make(self._selection, (), Demand(facts, cut))

    def pinned(self, *pins: Pin) -> Dataset:
        """Selects the cut of an earlier answer, or of each shard: the same rows, or an error with the reason."""
        return self._make(self._selection, pins, self._demand)

    def chains(self) -> list[Dataset]:
        """Returns the shards of the dataset at this cut: each is a chain with offsets of its own."""
        return [
            self._make(replace(self._selection, name=pin.id), (replace(pin, name=pin.id),), self._demand)
            for pin in self.pins
        ]

    def duckdb(self, connection: Any, name: str | None = None) -> Any:
        """Fills the temporary table ``name``, that of the dataset by default, of a DuckDB connection; atomic."""
        return super().duckdb(connection, name or self._selection.name)

    def last_offset(self) -> int:
        """Returns the offset of the last row of the log of one chain at this cut; -1: there is none."""
        if (files := self.listed()) is not None:
            return files.last_offset
        return last_offset(self._transport, self._selection, self.pins, self._demand)

    def cross(
        self, after: Position | str | None = None, *, follow: bool = True, seconds: float = 60.0, progress: bool = False
    ) -> Generator[Update | Switched | Progress, None, None]:
        """Yields the items of ``listen``, and continues after a handover: a ``Switched`` has the differing rows.

        Any number of handovers are crossed, also those before ``after`` was saved. Only a node at its own socket
        reports handovers, not one at a URL. With ``progress`` a ``Progress`` says that time passed, also without rows.
        Everything else is as for ``listen``.
        """
        self._check_whole(progress=progress)
        position = Position.parse(after) if isinstance(after, str) else after

        def log(dataset: str) -> Source:
            kind = RemoteLog if self._transport.is_remote else Log
            found = kind(self._transport, replace(self._selection, name=dataset), self._demand)
            found.together = not self._selection.name.startswith("did:")
            return found

        switching = HandoversOfNode(self._transport, self._selection, self._demand)
        return cross(log, self._selection.name, switching, position, follow=follow, seconds=seconds, progress=progress)

    def listen(
        self, after: Position | str | None = None, *, follow: bool = True, seconds: float = 60.0
    ) -> Generator[Update, None, None]:
        """Yields rows of the log as they appear, each exactly once after a saved position; ``None``: from the first.

        ``follow=False`` ends after all existing rows. ``seconds``: the longest pause until the node is asked without
        news, which it sends only over its socket.
        """
        self._check_whole()
        position = Position.parse(after) if isinstance(after, str) else after
        log = RemoteLog if self._transport.is_remote else Log
        return listen(log(self._transport, self._selection, self._demand), position, follow=follow, seconds=seconds)

    def subscribe(
        self, after: Position | str | None = None, *, follow: bool = True, seconds: float = 60.0
    ) -> Generator[Snapshot | Update, None, None]:
        """Yields a ``Snapshot`` of the current rows, then as ``Update`` each later row of the log, once.

        With a saved position it continues after that, without a snapshot. Everything else is as for ``listen``.
        """
        self._check_whole()
        if after is not None:
            return self.listen(after, follow=follow, seconds=seconds)
        return self._subscribe(follow=follow, seconds=seconds)

    def _subscribe(self, *, follow: bool, seconds: float) -> Generator[Snapshot | Update, None, None]:
        """Yields a snapshot and what follows it.

        A node at a URL gives no holds: a history that is rewritten while its snapshot is read is an error.
        """
        name, note = self._selection.name, "the snapshot of a subscription"
        remote = self._transport.is_remote
        held = nullcontext() if remote else Lease.take(self._transport, name, None, SECONDS, note)
        with held as lease:
            log = self._make(Selection(name), () if lease is None else lease.pins, self._demand)
            parts = [(chain.last_offset(), chain.pin) for chain in log.chains()]
            position = Position.of([Position(pin.id, last, pin.block, pin.sequence_number) for last, pin in parts])
            yield Snapshot(self._make(replace(self._selection, current=True), log.pins, self._demand), position)
        yield from self._make(self._selection, (), self._demand).listen(position, follow=follow, seconds=seconds)

    def _check_whole(self, *, progress: bool = False) -> None:
        """Raises Invalid for a selection that cannot be followed."""
        if progress and self._demand.require is not None:
            raise Invalid("rows that do not satisfy a requirement may come later, at any time", rule="listen")
        if self._selection.current or self._selection.clauses or self._selection.limit is not None:
            hint = "leave out current(), at(), at_block(), as_at() and limit(); select() and where() are understood"
            raise Invalid("a listener follows the whole log", rule="listen", hint=hint)

    def _at(self, words: str, said: str) -> Dataset:
        others = tuple(clause for clause in self._selection.clauses if clause[0] != words)
        return self._make(replace(self._selection, clauses=(*others, (words, said))), (), self._demand)

    def _with(self, **changes: Any) -> Dataset:
        return self._make(replace(self._selection, **changes), self._pins, self._demand)

    def _make(self, selection: Selection, pins: Sequence[Pin], demand: Demand) -> Dataset:
        """Makes another dataset of the same origin."""
        return Dataset(self._transport, selection, pins, demand)
