"""Repairs datasets: verifies every block and object, and fetches damaged ones from peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.model.block import NamedObject, objects_of
from chain.multihash import Multihash
from chain.statements.tree import Frontier
from chain.wording import agree, plural
from odfd.datasets.local_data import held_from
from odfd.mirrors.chain_repair import ChainRepair
from odfd.mirrors.progress import MirrorProgress
from odfd.mirrors.sync import MirrorSync, Synced
from odfd.portals.rule import PORTAL
from odfd.store import mirror_specs
from odfd.store.catalog import DatasetEntry
from odfd.store.damage import Damage
from odfd.store.directory import StateDirectory
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.mirror_specs import MirrorSpec
from odfd.transfer.object_list import note_links
from odfd.verify.objects import LINKED
from odfd.verify.report import Level
from odfd.verify.terms import pages_of
from odfd.verify.verify import VerificationRequest, verify_chain

BATCH: Final = 4096
"""Blocks recorded at a time, which bounds memory."""


class _Damaged(msgspec.Struct, frozen=True):
    """Damaged or missing objects: those that blocks name, and those that rows link to."""

    named: tuple[NamedObject, ...]
    linked: tuple[Multihash, ...]

    @property
    def count(self) -> int:
        return len(self.named) + len(self.linked)


class Repaired(NamedTuple):
    """Counts damaged or missing parts that were repaired."""

    blocks: int
    rows: int
    objects: int

    def __str__(self) -> str:
        counted = zip(self, ("block", "conclusion", "object"), strict=True)
        return ", ".join(plural(count, f"damaged {what}") for count, what in counted if count)


class Repair:
    """Repairs datasets of one node."""

    def __init__(
        self, home: StateDirectory, sync: MirrorSync, mender: ChainRepair, caught_up: Callable[[DatasetId], None]
    ) -> None:
        """``caught_up`` is called with a dataset that is complete again, or got its signed blocks back."""
        self._home = home
        self._caught_up = caught_up
        self._sync = sync
        self._mender = mender

    async def repair(self, entry: DatasetEntry) -> Repaired:
        """Checks every block and object; fetches damaged and missing ones from peers. Returns their number.

        Raises NotFound if no peer has a part, Environment if the database is damaged beyond its rows.
        """
        mended = await self._mender.mend(entry.id)
        tree = await trio.to_thread.run_sync(self._tree, entry.id)
        damaged = await trio.to_thread.run_sync(self._find_damage, entry)
        if damaged.count:
            await self._sync.repair(entry.id, damaged.named, damaged.linked)
            left = await trio.to_thread.run_sync(self._find_damage, entry)
            if left.count:
                are = agree(left.count, "is", "are")
                raise NotFound(f"{plural(left.count, 'object')} of {entry.name} {are} still damaged", rule="repair")
        await trio.to_thread.run_sync(self._note_whole, entry.id, tree)
        self._caught_up(entry.id)
        return Repaired(mended.blocks, mended.rows, damaged.count)

    async def catch_up(self, entry: DatasetEntry) -> int:
        """Fetches missing signed blocks of an own dataset, as after a restore; returns their number.

        Mirrors of others do so by themselves. Raises NotFound if nobody serves it, Remote, and what syncing raises.
        """
        if not await trio.to_thread.run_sync(self._is_ours, entry.id):
            return 0
        await self._sync.ask_around(entry.id)
        lacking = await trio.to_thread.run_sync(self._lacking, entry.id)
        if not lacking:
            return 0
        spec = MirrorSpec(dataset=str(entry.id), name=entry.name)
        outcome = await self._sync.sync(spec, MirrorProgress(), is_stored=False)
        if not isinstance(outcome, Synced):
            are = agree(lacking, "is signed and is", "are signed and are")
            raise NotFound(
                f"{plural(lacking, 'block')} of {entry.name} {are} not here, nor served by a connected peer",
                rule="repair",
                hint="try again when a peer that mirrors it is connected: odfctl peer list",
            )
        self._caught_up(entry.id)
        return outcome.blocks

    def _is_ours(self, dataset: DatasetId) -> bool:
        with self._home.database.read() as connection:
            return self._home.keys.has_dataset_key(dataset) and mirror_specs.of(connection, dataset) is None

    def _lacking(self, dataset: DatasetId) -> int:
        with self._home.database.read() as connection:
            ledger = Ledger(connection)
            newest = ledger.newest_head(dataset)
            return max(0, newest[0].size - ledger.chain(dataset).frontier.size) if newest else 0

    def _find_damage(self, entry: DatasetEntry) -> _Damaged:
        chain = self._home.chains.chain(entry.id)
        # Nobody writes the dataset meanwhile, and objects on their way are fetched too.
        request = VerificationRequest(ref=entry.name, level=Level.DATA, held_from=held_from(self._home, entry.id))
        report = verify_chain(chain, self._home.objects, request)
        named: dict[Multihash, int] = {}
        linked: dict[Multihash, None] = {}
        for failure in report.failures:
            if failure.rule.startswith(PORTAL):
                continue  # what its publisher wrote so, no peer has otherwise
            if failure.rule.startswith(LINKED):
                linked[Multihash.parse(failure.expected)] = None
            else:
                named |= objects_of(chain.block_at(failure.block.sequence_number))
        return _Damaged(tuple(named.items()), tuple(linked))

    def _tree(self, dataset: DatasetId) -> Frontier:
        with self._home.database.read() as connection:
            return Ledger(connection).chain(dataset).frontier

    def _note_whole(self, dataset: DatasetId, tree: Frontier) -> None:
        """Records that the dataset is undamaged, unless its chain moved or was replaced during the check."""
        database, chain = self._home.database, self._home.chains.chain(dataset)
        with database.read() as connection:
            checked = Ledger(connection).chain(dataset)
        if checked.frontier != tree:
            return
        for terms, blocks in pages_of(chain, held_from(self._home, dataset), tree.size, BATCH):
            note_links(database, self._home.objects, dataset, terms, blocks)
        with database.write() as connection:
            ledger = Ledger(connection)
            checked = ledger.chain(dataset)
            if checked.frontier == tree:
                ledger.keep_chain(dataset, CheckedChain(tree, tree.size, checked.epoch))
                Damage(connection).forget(dataset)
