"""Datasets carried whole: to and from folders in the ODF layout, and damaged objects fetched anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import trio

from chain.errors import Fault, NotFound, Refused
from chain.ids import DatasetId
from chain.model.block import NamedObject, objects_of
from chain.model.events import Seed
from chain.multihash import Multihash
from chain.statements.tree import Frontier
from chain.store.base import BlockDamaged
from chain.store.layout import DirectoryChain, is_dataset
from odfd.control import wire
from odfd.datasets.catalog import Catalog, Entry, default_name
from odfd.datasets.references import keep_references
from odfd.ipfs.source import Source, no_ipfs, place_of
from odfd.kit.clock import Clock
from odfd.kit.tasks import Report
from odfd.mirrors.mending import ChainMender
from odfd.mirrors.sync import MirrorSync
from odfd.resources.store import Resources
from odfd.services.home import STAGING, Home
from odfd.transfer.folders import Transfer, export_dataset, import_dataset
from odfd.transfer.linked import note_links
from odfd.transform.driver import fresh_folder
from odfd.trust.ledger import Checked, Ledger
from odfd.verify.damage import Damage
from odfd.verify.objects import LINKED
from odfd.verify.report import Level
from odfd.verify.terms import pages_of
from odfd.verify.verify import Request, verify_chain

BATCH: Final = 4096
"""Blocks settled at a time: bounds memory."""
Work = Callable[[Report], Awaitable[wire.TransferResult]]


class _Damaged(msgspec.Struct, frozen=True):
    """Objects that are not as they should be: those that blocks name, and those that rows link to."""

    named: tuple[NamedObject, ...]
    linked: tuple[Multihash, ...]

    @property
    def count(self) -> int:
        return len(self.named) + len(self.linked)


class Repaired(NamedTuple):
    """What was spoilt or missing and is whole again."""

    blocks: int
    rows: int
    objects: int

    def __str__(self) -> str:
        counted = zip(self, ("block", "conclusion", "object"), strict=True)
        return ", ".join(f"{count} damaged {what}{'s' * (count > 1)}" for count, what in counted if count)


class Carrying:
    """See the module."""

    def __init__(
        self,
        home: Home,
        sync: MirrorSync,
        mender: ChainMender,
        clock: Clock,
        changed: Callable[[DatasetId], None],
        ipfs: Source | None = None,
    ) -> None:
        """``ipfs``: where datasets on IPFS are read from; ``None``: nowhere."""
        self._ipfs = ipfs
        self._home = home
        self._sync = sync
        self._mender = mender
        self._clock = clock
        self._changed = changed

    def export(self, entry: Entry, to: str) -> Work:
        """Raises Refused for a place that is not a folder."""
        folder = local_folder(to)

        async def work(report: Report) -> wire.TransferResult:
            await trio.to_thread.run_sync(partial(self._home.need_data, entry.id, entry.name, whole=True))
            report.begin(f"writing {folder}", None, "blocks")
            done = await trio.to_thread.run_sync(
                partial(
                    export_dataset,
                    self._home.chains,
                    self._home.objects,
                    entry.id,
                    folder,
                    lambda so_far: _show(report, so_far),
                )
            )
            return _result(entry.name, str(folder), done)

        return work

    def import_(self, request: wire.ImportRequest) -> Work:
        place = place_of(request.source)
        if place is not None:
            return self._import_from_ipfs(place, request)
        folder = local_folder(request.source)

        async def work(report: Report) -> wire.TransferResult:
            return await self._take_in(folder, request.as_name or folder.name, request, report)

        return work

    def _import_from_ipfs(self, place: str, request: wire.ImportRequest) -> Work:
        """A whole folder comes here first: nothing of it counts before all of it is verified."""
        source = self._ipfs
        if source is None:
            raise no_ipfs()

        async def work(report: Report) -> wire.TransferResult:
            root = await source.resolve(place, self._clock.now())
            async with fresh_folder(self._home.folder(STAGING)) as folder:
                report.begin(f"fetching {root}", None, "bytes")
                await source.take_all(root, folder, self._sync.object_bytes)
                return await self._take_in(folder, request.as_name, request, report)

        return work

    async def _take_in(
        self, folder: Path, name: str | None, request: wire.ImportRequest, report: Report
    ) -> wire.TransferResult:
        report.begin(f"verifying {request.source}", None, "blocks")
        await trio.to_thread.run_sync(self._check_name, folder, request.as_name)
        done = await trio.to_thread.run_sync(
            partial(import_dataset, folder, self._home.chains, self._home.objects, lambda so_far: _show(report, so_far))
        )
        taken = name or default_name(done.dataset)
        name = await trio.to_thread.run_sync(self._settle, done.dataset, taken)
        self._changed(done.dataset)
        return _result(name, request.source, done)

    def _check_name(self, folder: Path, name: str | None) -> None:
        """Before anything is copied. Without a wished name, a dataset that is here keeps its own. Raises Invalid."""
        if not is_dataset(folder):
            return
        seed = DirectoryChain(folder).block_at(0).event
        if isinstance(seed, Seed):
            with self._home.catalog() as catalog:
                if name is not None or catalog.find(seed.dataset_id) is None:
                    catalog.check(name or folder.name, seed.dataset_id)

    def _settle(self, dataset: DatasetId, name: str) -> str:
        """Name what came, and note what was checked of it. References go first: what is named here is whole."""
        database, chain = self._home.database, self._home.chains.chain(dataset)
        with database.read() as connection:
            checked = Ledger(connection).chain(dataset)
        head = chain.head()
        assert head is not None
        frontier: Frontier = checked.frontier
        for terms, blocks in pages_of(chain, frontier.size, head.size, BATCH):
            frontier = frontier.extend(block.hash.digest for block in blocks)
            with database.write() as connection:
                keep_references(connection, dataset, blocks)
            note_links(database, self._home.objects, dataset, terms, blocks)
        was_whole = checked.data >= checked.frontier.size
        with database.write() as connection:
            catalog = Catalog(Resources(connection))
            known = catalog.find(dataset)
            if known is None:
                catalog.add(name, dataset, self._clock.now())
            data = frontier.size if was_whole else checked.data
            Ledger(connection).keep_chain(dataset, Checked(frontier, data, checked.epoch))
        return known.name if known else name

    def mend(self) -> tuple[list[str], list[str]]:
        """Settle what an import that was cut off left behind; the names. Imports verify all before they keep any.

        Also tells of datasets that cannot be settled, or not even looked at: they keep no other from being served.
        """
        mended, troubles = [], []
        for dataset in self._home.chains.datasets():
            try:
                if self._is_unsettled(dataset):
                    mended.append(self._settle(dataset, default_name(dataset)))
            except Fault as fault:
                troubles.append(f"{dataset.short}: {fault.message}")
        return mended, troubles

    def _is_unsettled(self, dataset: DatasetId) -> bool:
        """Raises Environment for a chain that lies under another id than its own, or is damaged."""
        chain = self._home.chains.chain(dataset)
        head = chain.head()
        with self._home.database.read() as connection:
            settled = Ledger(connection).chain(dataset).frontier.size
            is_named = Catalog(Resources(connection)).find(dataset) is not None
        if head is None or (settled >= head.size and is_named):
            return False
        seed = chain.block_at(0).event
        if not isinstance(seed, Seed) or seed.dataset_id != dataset:
            raise BlockDamaged(dataset, 0, "the chain lies under an id that its Seed does not name")
        return True

    async def repair(self, entry: Entry) -> Repaired:
        """Look at every block and object again; fetch the damaged and the missing from peers. How many there were.

        Raises NotFound for what nobody has, Environment for a database that is damaged beyond rows.
        """
        mended = await self._mender.mend(entry.id)
        tree = await trio.to_thread.run_sync(self._tree, entry.id)
        damaged = await trio.to_thread.run_sync(self._damaged, entry)
        if damaged.count:
            await self._sync.repair(entry.id, damaged.named, damaged.linked)
            left = await trio.to_thread.run_sync(self._damaged, entry)
            if left.count:
                raise NotFound(f"{left.count} objects of {entry.name} are still damaged", rule="repair")
        await trio.to_thread.run_sync(self._note_whole, entry.id, tree)
        return Repaired(mended.blocks, mended.rows, damaged.count)

    def _damaged(self, entry: Entry) -> _Damaged:
        chain = self._home.chains.chain(entry.id)
        request = Request(ref=entry.name, level=Level.DATA, held_from=self._home.held_from(entry.id))
        report = verify_chain(chain, self._home.objects, request)
        named: dict[Multihash, int] = {}
        linked: dict[Multihash, None] = {}
        for failure in report.failures:
            if failure.rule.startswith(LINKED):
                linked[Multihash.parse(failure.expected)] = None
            else:
                named |= objects_of(chain.block_at(failure.block.sequence_number))
        return _Damaged(tuple(named.items()), tuple(linked))

    def _tree(self, dataset: DatasetId) -> Frontier:
        with self._home.database.read() as connection:
            return Ledger(connection).chain(dataset).frontier

    def _note_whole(self, dataset: DatasetId, tree: Frontier) -> None:
        """Unless the chain moved, or got another history, while it was looked at."""
        database, chain = self._home.database, self._home.chains.chain(dataset)
        with database.read() as connection:
            checked = Ledger(connection).chain(dataset)
        if checked.frontier != tree:
            return
        for terms, blocks in pages_of(chain, self._home.held_from(dataset), tree.size, BATCH):
            note_links(database, self._home.objects, dataset, terms, blocks)
        with database.write() as connection:
            ledger = Ledger(connection)
            checked = ledger.chain(dataset)
            if checked.frontier == tree:
                ledger.keep_chain(dataset, Checked(tree, tree.size, checked.epoch))
                Damage(connection).forget(dataset)


def local_folder(place: str) -> Path:
    """A path or ``file://`` URL. Raises Refused for other schemes."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        raise Refused(f"{parts.scheme}:// is not understood here", rule="transfer-place", hint="name a folder")
    return Path(parts.path)


def _show(report: Report, so_far: Transfer) -> None:
    report.done = so_far.blocks


def _result(name: str, place: str, done: Transfer) -> wire.TransferResult:
    return wire.TransferResult(ref=name, place=place, blocks=done.blocks, objects=done.objects, bytes=done.bytes)
