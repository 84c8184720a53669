"""Crosses handovers of a collection in a repository, by the notices in which each rendition names the next one."""

from __future__ import annotations

import datetime
from collections.abc import Generator, Sequence

import pyarrow as pa

from odfd_client.answer_stream import Answer
from odfd_client.chain_blocks import SET_INFO, Block
from odfd_client.errors import NotFound, Refused
from odfd_client.folding import difference
from odfd_client.handovers import Ending, Switched
from odfd_client.relations import Demand, Query, Selection
from odfd_client.stored_chains import Cut, StoredChain
from odfd_client.stored_rows import Chains, NoNode, StoredAnswer, describe_answer, refusal, rows_of
from odfd_client.stored_slices import StoredSlices
from odfd_client.subscription import Source
from odfd_client.values import NodeMetadata, Pin, Position

_MILLI = 1_000_000
_SYSTEM = 3
"""Columns of the vocabulary that describe a statement: offset, operation and system time."""


class StoredHandovers:
    """The handovers of a collection, as ``cross`` asks for them."""

    def __init__(self, chains: Chains, selection: Selection) -> None:
        self._chains, self._selection = chains, selection

    def ending(self, source: Source, dataset: str) -> Ending:
        """Returns the end of a rendition. Raises NotFound if the next one is not in the repository."""
        if source.together and self._chains.collection(dataset) is not None:
            raise refusal("crossing from several shards", "cross at a node, or start again with the next rendition")
        found = self._chains.succession(dataset)[0]
        time, successor, block = found.time, found.to, found.block
        if not found.is_plain:
            raise Refused(
                f"{dataset} handed over to {successor}, {found.shards} shards after {found.ended}, and nothing in"
                f" {self._chains.shown} says which chains they are",
                rule="repository-node",
                hint="connect() to a node that has it: nodes follow shards",
            )
        old = self._chains.chain(dataset)
        try:
            new = self._chains.chain(successor)
        except NotFound as error:
            raise NotFound(
                f"{dataset} handed over to {successor}, which is not in {self._chains.shown}",
                rule="listen-handover",
                hint="copy that dataset into the repository too, or listen to it by its id",
            ) from error
        notice = old.last_of(SET_INFO, old.head())
        assert notice is not None
        end = notice if notice.prev is None else old.block(notice.prev, notice.number - 1)
        pins = [
            describe_answer([cut], cut.dataset, "").pins for cut in (Cut(old, end), Cut(new, _at(new, block, time)))
        ]
        at = datetime.datetime.fromtimestamp(time / 1000, datetime.UTC).isoformat(
            timespec="milliseconds" if time % 1000 else "seconds"
        )
        return Ending(at.replace("+00:00", "Z"), pins[0], pins[1], equal=False, columns=None)

    def switch(self, ending: Ending, position: Position) -> Generator[Switched, None, Position]:
        """Yields the handover. Returns the position after it."""
        (new,) = ending.new
        cut = self._cut(new)
        after = Position(new.id, cut.last_offset(), new.block, new.sequence_number)
        read = Pin(position.id, position.id, position.block, position.sequence_number)
        rows = self._changes(self._cut(read), cut)
        changes = None if rows.num_rows == 0 else _Rows(self._chains, rows, (read, new))
        yield Switched(ending.time, read.id, new.id, changes, after)
        return after

    def _cut(self, pin: Pin) -> Cut:
        chain = self._chains.chain(pin.id)
        return Cut(chain, chain.block(pin.block))

    def _changes(self, old: Cut, new: Cut) -> pa.Table:
        before, now = (self._current(cut) for cut in (old, new))
        system = {*old.vocabulary()[:_SYSTEM], *new.vocabulary()[:_SYSTEM]}
        names = self._selection.columns or [*dict.fromkeys([*now.column_names, *before.column_names])]
        return difference(before, now, [name for name in names if name not in system])

    def _current(self, cut: Cut) -> pa.Table:
        if cut.last_offset() < 0:
            return pa.table({})
        slices = StoredSlices(self._chains.objects, cut, describe_answer([cut], cut.chain.id(), ""))
        schema, rows = rows_of(cut, slices, Selection("", current=True, where=self._selection.where))
        return pa.Table.from_batches(rows, schema)


def _at(chain: StoredChain, block: str, time: int) -> Block:
    """Returns the last block of a handover's time, in milliseconds; ``block`` was the head right before it."""
    found, head = chain.block(block), chain.head()
    while (after := chain.at(found.number + 1, head)) is not None and after.time // _MILLI <= time:
        found = after
    return found


class _Rows(Query):
    """Rows that were computed, as a query."""

    def __init__(self, chains: Chains, rows: pa.Table, pins: Sequence[Pin]) -> None:
        super().__init__(NoNode(chains.shown), ("", None), pins, Demand())
        self._rows = rows
        self._told = NodeMetadata(tuple(pins), "unsigned", (), ())

    def _ask(self, *, explain: bool = False, prove: bool = False) -> Answer:  # noqa: ARG002  nothing is asked
        assert self._told is not None
        return StoredAnswer(self._told, self._rows.schema, iter(self._rows.to_batches()))
