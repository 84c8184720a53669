"""Committing as an owner: events become blocks, the rules bind us as authors, and the new head is signed.

Blocks, objects and the chain's tree are one transaction; the head is signed right after, journalled first, and only
then told to others. A crash in between leaves a chain whose last blocks are unsigned, which nobody else can see;
``sign_unsigned`` mends that. What could not be signed is not committed either: a state that is older than the key's
journal takes no new blocks. Spec: trust.md section 1; design section 4.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Final

import trio

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.rules import check_block
from chain.state import ChainState, load_state
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import Append, ChainStore, Head
from chain.store.database import Database
from odfd.datasets.references import keep_references
from odfd.trust.journal import Order
from odfd.trust.keystore import KeyStore
from odfd.trust.ledger import Checked, Ledger

LIFETIME: Final = 7 * 86400 * instant.SECOND
"""How long a head counts as fresh; it is signed anew at a third of this."""

_TOPIC: Final = "head"
_EPOCH: Final = 0
"""Until authorities are read, every chain is in its first epoch."""

Announce = Callable[[DatasetId, Signed], None]
Also = Callable[[sqlite3.Connection], None]


class OwnerCommitter:
    """Appends to chains whose key this node holds. Safe to use from any task and thread; one commit at a time."""

    def __init__(
        self, database: Database, chains: ChainStore, keys: KeyStore, clock: Callable[[], Instant], announce: Announce
    ) -> None:
        self._database = database
        self._chains = chains
        self._keys = keys
        self._clock = clock
        self._announce = announce
        self._turn = trio.Lock()
        """Tasks wait here, and not each in a worker thread."""
        self._writing = threading.Lock()
        """From reading the head to its signature: heads are signed in the order of the chain."""

    async def commit(
        self,
        dataset: DatasetId,
        expected_head: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
    ) -> Head:
        """Append ``events``, one block each, and sign. Raises Conflict, Invalid (a rule), NotFound (no key)."""
        async with self._turn:
            return await trio.to_thread.run_sync(self.commit_now, dataset, expected_head, events, objects, system_time)

    def commit_now(
        self,
        dataset: DatasetId,
        expected_head: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
        also: Also = lambda _: None,
    ) -> Head:
        """The same, from a worker thread. ``also`` adds rows to the transaction."""
        with self._writing:
            return self._commit(dataset, expected_head, events, objects, system_time, also)

    def _commit(
        self,
        dataset: DatasetId,
        expected_head: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
        also: Also,
    ) -> Head:
        key = self._keys.dataset_key(dataset)
        state = load_state(self._chains.chain(dataset))
        if state.head != (expected_head.hash if expected_head else None):
            raise Conflict(f"the head of {dataset.short} moved", rule="head-moved", hint="read again and plan again")
        blocks = author_blocks(state, events, max(system_time, state.system_time or system_time))
        with self._database.read() as connection:
            checked = Ledger(connection).chain(dataset)
        frontier = checked.frontier.extend(block.hash.digest for block in blocks)
        self._keys.may_sign(key, _TOPIC, _order(frontier), frontier.root.hex())

        def together(connection: sqlite3.Connection) -> None:
            Ledger(connection).keep_chain(dataset, Checked(frontier, data=frontier.size))
            keep_references(connection, dataset, blocks)
            also(connection)

        self._chains.commit([Append(dataset=dataset, expected=expected_head, blocks=blocks, objects=objects)], together)
        self._sign(dataset, blocks[-1].hash, frontier)
        return Head(blocks[-1].hash, blocks[-1].sequence_number)

    def sign_unsigned(self, dataset: DatasetId) -> bool:
        """Sign the head that is there, if no live statement covers it or the last one ages. Whether it signed.

        Raises Refused (``trust.behind``) when this key has signed more than is here.
        """
        with self._writing:
            return self._sign_unsigned(dataset)

    def _sign_unsigned(self, dataset: DatasetId) -> bool:
        head = self._chains.chain(dataset).head()
        if head is None or not self._keys.has_dataset_key(dataset):
            return False
        with self._database.read() as connection:
            ledger = Ledger(connection)
            newest, frontier = ledger.newest_head(dataset), ledger.chain(dataset).frontier
        if newest is not None and newest[0].size >= head.size and self._clock() < newest[0].issued + LIFETIME // 3:
            return False
        self._sign(dataset, head.hash, frontier)
        return True

    def _sign(self, dataset: DatasetId, head: Multihash, frontier: Frontier) -> None:
        now = self._clock()
        said = HeadStatement(
            dataset=dataset,
            epoch=_EPOCH,
            size=frontier.size,
            root_hash=frontier.root,
            authority=0,
            issued_at=statement.when(now),
            expires_at=statement.when(Instant(now + LIFETIME)),
            head=head,
        )
        key = self._keys.dataset_key(dataset)
        sealed = self._keys.sign(key, _TOPIC, _order(frontier), frontier.root.hex(), statement.encode(said))
        signed = envelope.unseal(sealed, statement.limit_of(said))
        with self._database.write() as connection:
            Ledger(connection).record(signed, key.did, "signed", "", now, live=True)
        self._announce(dataset, signed)


def _order(frontier: Frontier) -> Order:
    """Of heads in the journal: a longer tree comes later."""
    return (_EPOCH, frontier.size)


def author_blocks(state: ChainState, events: Sequence[MetadataEvent], system_time: Instant) -> list[Block]:
    """Blocks that carry ``events`` after ``state``, all of one system time. Raises Invalid naming the rule broken."""
    blocks: list[Block] = []
    for event in events:
        content = MetadataBlock(
            system_time=system_time, prev_block_hash=state.head, sequence_number=state.size, event=event
        )
        block = encode_block(content)
        for broken in check_block(state, block, as_author=True):
            raise Invalid(broken.message, rule=broken.rule, hint=broken.hint, place=f"block #{block.sequence_number}")
        blocks.append(block)
        state = state.advance(block)
    return blocks
