"""Holds the drafts of a commit: each chain's blocks, how its tree grows, and the records that are stored with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.model.block import Block
from chain.multihash import Multihash
from chain.statements.authority import Rights
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import Append, Head
from chain.wording import plural
from engines.contract import RowCounts
from odfd.datasets.commit import CommitPart
from odfd.store import captures, pushes, row_counts
from odfd.store.captures import Capture, CapturedPart
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.pushes import Push
from odfd.store.references import keep_links, keep_references


class TreeGrowth(NamedTuple):
    """How the tree of a chain grows by its new blocks."""

    before: Frontier
    after: Frontier
    groups: list[bytes]
    epoch: int
    rights: Rights
    linked: list[Multihash]
    """Objects that rows of the blocks link to."""


class ChainDraft(NamedTuple):
    """One chain's part of a transaction; without growth, its frontier (upper) moves alone."""

    append: Append
    growth: TreeGrowth | None

    @property
    def head(self) -> Head:
        if not self.append.blocks:
            assert self.append.expected is not None
            return self.append.expected
        last = self.append.blocks[-1]
        return Head(last.hash, last.sequence_number)


def keep_growth(connection: sqlite3.Connection, draft: ChainDraft) -> None:
    """Stores the tree of a chain with its new blocks, and what they name."""
    dataset, blocks, growth = draft.append.dataset, draft.append.blocks, draft.growth
    if growth is None:
        return
    # If objects were found damaged before, the objects of new blocks do not change how far data is verified.
    data = Ledger(connection).chain(dataset).data
    whole = growth.after.size if data >= growth.before.size else data
    checked = CheckedChain(growth.after, data=whole, epoch=growth.epoch)
    Ledger(connection).grow(dataset, growth.before, checked, growth.groups)
    keep_references(connection, dataset, blocks)
    keep_links(connection, dataset, blocks[-1].sequence_number, growth.linked)


def keep_records(connection: sqlite3.Connection, part: CommitPart, drafts: Sequence[ChainDraft]) -> None:
    """Stores the records of a part, whose blocks may be in several shards."""
    head = drafts[0].head if drafts else part.expected
    for record in part.records:
        assert head is not None
        match record:
            case RowCounts():
                row_counts.keep(connection, part.dataset, head.sequence_number, record, idle=not drafts)
            case Push():
                if drafts:
                    answer = msgspec.structs.replace(record.answer, block=str(end_of(part, drafts).hash))
                    record = msgspec.structs.replace(record, answer=answer)
                pushes.keep(connection, part.dataset, record, head.sequence_number)
            case Capture():
                _keep_capture(connection, part.dataset, record, [each.append for each in drafts if each.growth])


def _keep_capture(
    connection: sqlite3.Connection, dataset: DatasetId, capture: Capture, written: Sequence[Append]
) -> None:
    parts = []
    for append in written:
        first, last = append.blocks[0], append.blocks[-1]
        assert isinstance(first, Block)
        parts.append(CapturedPart(append.dataset, last.hash, first.sequence_number, last.sequence_number))
        time = to_millis(first.system_time)
    if parts:
        captures.keep(connection, dataset, capture, parts, time)


def end_of(part: CommitPart, drafts: Sequence[ChainDraft]) -> Head:
    """Returns the last block of a part, in the first of its shards that got one."""
    if not drafts:
        assert part.expected is not None, "there is a chain, or it begins"
        return part.expected
    return next((each for each in drafts if each.growth), drafts[0]).head


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
