"""Holds the parts of a commit: the additions to each chain, their blocks, and what the transaction stores with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import Instant, to_millis
from chain.model.block import Block
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.statements.authority import Rights
from chain.statements.statement import HeadStatement
from chain.store.base import Append, Head, UpperMove
from chain.wording import plural
from odfd.datasets.commit import SideCommit
from odfd.ingest.sharded_writes import ShardedTransaction
from odfd.store import captures, row_counts
from odfd.store.captures import Capture, CapturedPart
from odfd.store.ledger.log import CheckedChain


class Addition(NamedTuple):
    """An addition to one chain. ``own`` writes its records, given the number of the chain's last block and the last
    block of the transaction, which may be in another shard."""

    dataset: DatasetId
    expected: Head | None
    events: Sequence[MetadataEvent]
    objects: Sequence[Multihash]
    upper: int | None = None
    """The frontier (upper) for which it was planned; ``None``: any."""
    until: int | None = None
    """The frontier (upper) after it; ``None``: it stays, or follows the last block."""
    own: Callable[[sqlite3.Connection, int, Multihash], None] = lambda *_: None
    at: Instant | None = None
    """The system time of its blocks; ``None``: that of the commit."""
    capture: Capture | None = None
    """The bytes that its blocks, or those of all shards written with it, were made from."""


class ChainDraft(NamedTuple):
    """One chain's part of a commit: its blocks, what the transaction stores with them,
    and how they are signed afterwards."""

    append: Append
    keep: Callable[[sqlite3.Connection], None]
    sign: Callable[[], None]


def keep_all(connection: sqlite3.Connection, addition: Addition, drafts: Sequence[ChainDraft]) -> None:
    """Stores what belongs to the blocks of an addition: the records of each chain, and the bytes it was made from."""
    for each in drafts:
        each.keep(connection)
    addition.own(connection, after(drafts[0].append).sequence_number, end_of(drafts).hash)
    written = [each.append for each in drafts if each.append.blocks]
    if addition.capture is None or not written:
        return
    parts = []
    for append in written:
        first, last = append.blocks[0], append.blocks[-1]
        assert isinstance(first, Block)
        parts.append(CapturedPart(append.dataset, last.hash, first.sequence_number, last.sequence_number))
        time = to_millis(first.system_time)
    captures.keep(connection, addition.dataset, addition.capture, parts, time)


def beside_of(side: SideCommit | None) -> tuple[Addition, ...]:
    if side is None:
        return ()

    def own(connection: sqlite3.Connection, last: int, _: Multihash) -> None:
        row_counts.keep(connection, side.dataset, last, side.rows)

    return (Addition(side.dataset, side.expected, side.events, side.objects, own=own),)


def check_head(dataset: DatasetId, expected: Head | None, head: Multihash | None, number: int) -> None:
    """Raises Conflict if the head is not the expected one."""
    if head == (expected.hash if expected else None):
        return
    first = "nothing is there" if head is None else f"block #{number} {head.short} is"
    raise Conflict(f"the head of {dataset.short} moved: {first} its end now", rule="head-moved", hint="plan again")


def spread_over(addition: Addition, spread: ShardedTransaction) -> list[Addition]:
    """Returns the additions to shards that are written together. Raises Conflict if the head of the named one moved."""
    found = []
    for part in spread.parts:
        if part.dataset != addition.dataset:
            planned = Addition(part.dataset, part.head, part.events, part.objects, part.upper)
        else:
            check_head(part.dataset, addition.expected, part.head.hash, part.head.sequence_number)
            planned = addition._replace(events=part.events, objects=part.objects, upper=addition.upper or part.upper)
        found.append(planned._replace(until=to_millis(spread.time) + 1))
    return found


def after(append: Append) -> Head:
    """Returns the head after an append, which may have no blocks."""
    if append.blocks:
        last = append.blocks[-1]
        return Head(last.hash, last.sequence_number)
    assert append.expected is not None
    return append.expected


def end_of(drafts: Sequence[ChainDraft]) -> Head:
    """Returns the last block of a transaction, in the first of its shards that got one."""
    return after(next((each.append for each in drafts if each.append.blocks), drafts[0].append))


def moved(addition: Addition) -> ChainDraft:
    """Returns a shard's part without blocks: its frontier moves, and nothing is signed."""
    head, planned_at = addition.expected, addition.upper
    assert head is not None
    assert planned_at is not None
    upper = UpperMove(planned_at, addition.until)
    return ChainDraft(
        Append(dataset=addition.dataset, expected=head, blocks=(), upper=upper), lambda _: None, lambda: None
    )


def epoch_of(dataset: DatasetId, checked: CheckedChain, rights: Rights) -> int:
    """Returns the epoch to write in. Raises Refused if a later epoch gave up blocks that are here."""
    opened = rights.opened(checked.epoch + 1)
    while opened is not None:
        tree = checked.frontier
        if (opened.base.size, opened.base.root_hash) != (tree.size, tree.root):
            kept = plural(opened.base.size, "block")
            raise Refused(
                f"epoch {opened.number} of {dataset.short} keeps {kept}, and here are {tree.size}",
                rule="trust.epoch",
                hint="bring the chain to where the epoch begins before writing in it",
            )
        checked = CheckedChain(tree, checked.data, opened.number)
        opened = rights.opened(checked.epoch + 1)
    return checked.epoch


def check_newest(newest: HeadStatement | None, epoch: int, size: int) -> None:
    """Raises Refused if a writer of this dataset signed a later head: adding to older blocks would make a fork."""
    if newest is not None and newest.epoch == epoch and newest.size > size:
        raise Refused(
            f"a head of {plural(newest.size, 'block')} is signed already, and only {size} are here",
            rule="trust.behind",
            hint="odfctl pull REF --repair fetches them; if a key was stolen: odfctl trust authority rotate REF",
        )
