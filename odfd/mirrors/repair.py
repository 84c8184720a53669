"""Repairs datasets: verifies every block and object, and fetches damaged ones from peers.

``ChainRepair`` restores damaged blocks of a chain on disk, from the undamaged data and from peers that hold the
dataset. The chain's tree, which the ledger keeps, shows that the repaired blocks are the original ones: its root must
be the same again, or nothing is changed. Conclusions whose rows were damaged are deleted, or made again from the chain.
An owner can be repaired from a mirror as well as a mirror from its owner. The caller runs one repair at a time for each
dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from chain.codec.blocks import decode_block
from chain.errors import Environment, Invalid, NotFound, Remote
from chain.ids import DatasetId
from chain.model.block import Block, NamedObject, objects_of
from chain.multihash import SHA3_256, Multihash
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import BLOCK_DAMAGED, BlockDamaged, Head, Snapshot, StoredBlock, StoredPage
from chain.store.repair import BlockRepair
from chain.store.sqlite import Mark, SqliteChain
from chain.wording import agree, plural
from odfd.datasets.local_data import held_from
from odfd.mirrors.holders import Holders
from odfd.mirrors.mirror_state import MirrorProgress
from odfd.mirrors.sync import MirrorSync, Synced
from odfd.portals.rule import PORTAL
from odfd.published.replication import Replication
from odfd.store import mirror_specs
from odfd.store.catalog import DatasetEntry
from odfd.store.damage import Damage
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.live_set import restore_live
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.tables import CHAINS, LIVE, REMADE
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.references import references_hold, remake_references
from odfd.transfer.object_list import note_links
from odfd.verify.objects import LINKED
from odfd.verify.report import Level
from odfd.verify.terms import pages_of
from odfd.verify.verify import VerificationRequest, verify_chain
from p2p.ports import PeerId

MAX_BLOCKS: Final = 20_000
"""Damaged blocks that are repaired; with more, the dataset is better mirrored again."""
PART: Final = 1 << 20
"""Bytes of blocks requested at once."""


class RepairedChain(msgspec.Struct, frozen=True):
    """``blocks`` counts replaced damaged blocks, ``rows`` the conclusions that were dropped or made again."""

    blocks: int = 0
    rows: int = 0


class _Truth(msgspec.Struct, frozen=True):
    """The facts about the original chain that undamaged data gives."""

    size: int
    root: bytes | None
    """The root of its tree; ``None``: neither the ledger nor a signed head has it; then head and links are compared."""
    heads: tuple[Multihash, ...]
    """Possible hashes of the last block, the likeliest first."""
    checked: CheckedChain | None
    """The ledger's row about the chain; ``None``: it is damaged, or was never written."""
    signed: HeadStatement | None
    mark: Mark | None


class _Claimed:
    """A stored chain presented with the length and the head that it should have, for verification."""

    def __init__(self, chain: SqliteChain, truth: _Truth) -> None:
        self._chain = chain
        self._truth = truth

    def snapshot(self) -> Snapshot:
        name = self._truth.heads[0] if self._truth.heads else Multihash.from_digest(SHA3_256, bytes(32))
        return Snapshot(Head(name, self._truth.size - 1))

    def stored_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StoredBlock]:
        return self._chain.stored_blocks(start, self._truth.size if stop is None else min(stop, self._truth.size))

    def stored_pages(self, start: int = 0, stop: int | None = None) -> Iterator[StoredPage]:
        return self._chain.stored_pages(start, self._truth.size if stop is None else min(stop, self._truth.size))


class ChainRepair:
    """Repairs chains in one store."""

    def __init__(self, home: StateDirectory, replication: Replication, holders: Holders) -> None:
        self._database, self._chains, self._objects = home.database, home.chains, home.objects
        self._replication = replication
        self._holders = holders

    async def mend(self, dataset: DatasetId) -> RepairedChain:
        """Fetches and stores damaged blocks. Raises NotFound if no peer has one,
        Environment if the database is damaged."""
        rows = await trio.to_thread.run_sync(self._forget_rows)
        truth = await trio.to_thread.run_sync(self._truth, dataset)
        mending = await trio.to_thread.run_sync(self._inspect, dataset, truth)
        blocks = await trio.to_thread.run_sync(_fill, mending, truth)
        if blocks is None:
            blocks = await self._ask(dataset, mending, truth)
        rows += await trio.to_thread.run_sync(self._keep, dataset, mending, truth, blocks)
        return RepairedChain(len(blocks), rows)

    def _forget_rows(self) -> int:
        """Rebuilds indexes; deletes damaged rows that the log has or that come again;
        returns their number. Raises Environment."""
        self._database.reindex()
        if problems := self._database.damage():
            raise self._database.corrupt(problems[0])
        with self._database.write() as connection:
            forgotten = [table.forget_damaged(connection, "TRUE", ()) for table in REMADE]
            if forgotten[REMADE.index(LIVE)]:
                restore_live(connection)
            return sum(forgotten)

    def _truth(self, dataset: DatasetId) -> _Truth:
        mark, head = self._chains.mark(dataset), self._head(dataset)
        with self._database.read() as connection:
            row, whole = CHAINS.look(connection, "dataset = ?", (dataset,))
            ledger = Ledger(connection)
            checked = ledger.chain(dataset) if row is not None and whole else None
            newest = ledger.newest_head(dataset)
        signed = newest[0] if newest else None
        heads = [] if head is None else [head.hash]
        if checked is not None and checked.frontier.size:
            size, root = checked.frontier.size, checked.frontier.root
        elif signed is not None and head is not None and signed.size == head.size:
            size, root = signed.size, signed.root_hash
        elif head is not None:
            size, root = head.size, None
        else:
            raise NotFound(f"nothing of {dataset.short} is here", rule="chain-empty", hint="odfctl mirror add")
        if signed is not None and signed.size == size:
            heads.append(signed.head)
        return _Truth(size, root, tuple(heads), checked, signed, mark)

    def _head(self, dataset: DatasetId) -> Head | None:
        """Returns the stored head of the dataset; ``None`` also if it cannot be read."""
        try:
            return self._chains.chain(dataset).head()
        except BlockDamaged:
            return None

    def _inspect(self, dataset: DatasetId, truth: _Truth) -> BlockRepair:
        claimed = _Claimed(self._chains.chain(dataset), truth)
        report = verify_chain(claimed, self._objects, VerificationRequest(ref=dataset.short, level=Level.CHAIN))
        damaged = {failure.block.sequence_number for failure in report.failures}
        return BlockRepair(self._chains.chain(dataset), truth.size, damaged)

    async def _ask(self, dataset: DatasetId, mending: BlockRepair, truth: _Truth) -> list[Block]:
        if len(mending.lacking) > MAX_BLOCKS:
            raise Environment(
                f"{len(mending.lacking):,} blocks of {dataset.short} are damaged",
                rule=BLOCK_DAMAGED,
                hint="check the disk; then delete the dataset here and mirror it again",
            )
        for peer in await self._holders.of(dataset, truth.size):
            for stretch in list(mending.stretches()):
                mending.offer(await self._fetch(peer, dataset, stretch))
            blocks = await trio.to_thread.run_sync(_fill, mending, truth)
            if blocks is not None:
                return blocks
        raise NotFound(
            f"no connected peer has {plural(len(mending.lacking), 'block')} of {dataset.short},"
            f" damaged here, the first of them #{mending.lacking[0] if mending.lacking else truth.size - 1}",
            rule="repair",
            hint="try again when a peer that mirrors it is connected: odfctl peer list; or restore a backup",
        )

    async def _fetch(self, peer: PeerId, dataset: DatasetId, stretch: range) -> list[bytes]:
        """Fetches blocks as far as the peer serves them."""
        found: list[bytes] = []
        try:
            while len(found) < len(stretch):
                more = await self._replication.fetch_blocks(peer, dataset, stretch.start + len(found), PART)
                if not more:
                    break
                found += more
        except Remote:
            pass  # another may do better
        return found[: len(stretch)]

    def _keep(self, dataset: DatasetId, mending: BlockRepair, truth: _Truth, blocks: Sequence[Block]) -> int:
        """Stores the repaired blocks and the conclusions from the chain; returns how many conclusions were damaged."""
        chain = self._chains.chain(dataset)
        head = Head(mending.last() or blocks[-1].hash, truth.size - 1)
        spoilt = int(self._head(dataset) != head)
        if blocks or spoilt:
            self._chains.mend(dataset, truth.mark, head, blocks)
        if truth.checked is None:
            spoilt += 1
            concluded = self._conclude(dataset, mending.tree(blocks), truth)
            with self._database.write() as connection:
                Ledger(connection).keep_chain(dataset, concluded)
        with self._database.read() as connection:
            named = references_hold(connection, dataset, map(decode_block, chain.raw_blocks(0, truth.size)))
        if not named:
            spoilt += 1
            with self._database.write() as connection:
                remake_references(connection, dataset, map(decode_block, chain.raw_blocks(0, truth.size)))
        return spoilt

    def _conclude(self, dataset: DatasetId, tree: Frontier, truth: _Truth) -> CheckedChain:
        """Makes the ledger's row about the chain again; its objects will be checked again. Raises Invalid."""
        signed = truth.signed
        if signed is not None and (signed.size, signed.root_hash) == (tree.size, tree.root):
            return CheckedChain(tree, data=0, epoch=signed.epoch)
        with self._database.read() as connection:
            epoch = Authorities(connection).rights(dataset).epoch
        if epoch:
            raise Invalid(
                f"it is not known any more in which epoch the blocks of {dataset.short} were written",
                rule="repair",
                hint="delete the dataset here and mirror it again, or restore a backup",
            )
        return CheckedChain(tree, data=0)


def _fill(mending: BlockRepair, truth: _Truth) -> list[Block] | None:
    for head in (*truth.heads, *mending.candidates()):
        blocks = mending.fill(head)
        if blocks is None or (mending.last() or blocks[-1].hash) != head:
            continue
        if truth.root is None or mending.tree(blocks).root == truth.root:
            return blocks
    return None


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
