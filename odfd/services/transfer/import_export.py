"""Imports and exports whole datasets: from and to directories and remote places in the ODF layout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
import trio

from chain.errors import Conflict, Environment, Fault, Invalid, Refused, Remote
from chain.ids import DatasetId
from chain.model.block import SealedBlock
from chain.model.events import Seed
from chain.statements import envelope, statement
from chain.statements.statement import Authority, HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import BlockDamaged, ChainReader, ChainStore, Head
from chain.store.former_epochs import SET_ASIDE
from chain.store.layout import DirectoryChain, DirectoryObjects
from odfd.control import wire
from odfd.datasets.local_data import need_data
from odfd.errors import sole_faults
from odfd.ingest.file_writer import staged_folder
from odfd.ipfs.publishing import ShelfPlace
from odfd.mirrors.mirror_state import MirrorProgress
from odfd.mirrors.object_fetcher import ObjectFetcher
from odfd.published.packs import write_packs
from odfd.published.signed import SignedState, read_statements, signed_state, write_statements
from odfd.published.source import PublishedPlace
from odfd.repositories.catalog import Target
from odfd.repositories.push import push_dataset
from odfd.runtime.clock import Clock
from odfd.runtime.extensions import ExportFormats
from odfd.runtime.hanging_calls import Stepped, end_if_unwanted, invoke
from odfd.runtime.systemd import check_shared
from odfd.runtime.tasks import Report, outside
from odfd.services.transfer.remotes import Remotes, name_in, place_of
from odfd.services.views.pull_remarks import failed_pull
from odfd.store import unmanaged, visibility
from odfd.store.catalog import Catalog, DatasetEntry, default_name
from odfd.store.directory import STAGING, StateDirectory
from odfd.store.holdings import Holdings
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.history_rewrite import kept_tree
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.references import keep_references
from odfd.transfer.folders import (
    Copy,
    Missing,
    OnProgress,
    Transfer,
    blocks_here,
    export_dataset,
    import_copy,
    whole_or_gone,
)
from odfd.transfer.former_chain import find_former, load_former_format
from odfd.transfer.object_list import note_links
from odfd.trust.admission.rules import epoch_of
from odfd.verify.terms import ChainTerms, pages_of
from p2p.ports import Judgement, PeerId, StatementStore, Topic


def new_pages(
    source: DirectoryChain, chains: ChainStore, blocks: int
) -> Iterator[tuple[ChainTerms, list[SealedBlock]]]:
    """Yields the blocks that a store lacks, ``blocks`` at a time, with the terms before each page. Blocking."""
    head = source.head()
    if head is not None:
        yield from pages_of(source, blocks_here(source, chains), head.size, blocks)


BATCH: Final = 4096
"""Blocks that are settled in one transaction; bounds memory."""
SHOW_SECONDS: Final = 0.2
"""Seconds between two updates of the shown progress."""
_PLACES: Final = "name a folder; odfctl import also reads https://, ipfs:// and ipns://"
TABLES: Final = ExportFormats("table")
Work = Callable[[Report], wire.TransferResult | Awaitable[wire.TransferResult]]


class TableFormat(Protocol):
    """A format of tables, whose metadata stands beside the slices of an exported folder."""

    def check_types(self, chain: ChainReader) -> None:
        """Raises Invalid, before anything is written, if the format lacks the type of a column."""

    def write_log(self, directory: Path, dataset: DatasetId, name: str, chain: ChainReader, head: Head) -> int | None:
        """Adds a version for the slices up to ``head``. Returns the newest; ``None`` without rows."""


class AttendingStore(StatementStore, Protocol):
    """A statement store that keeps the statements about a dataset while a person imports it."""

    def attend(self, dataset: DatasetId) -> AbstractContextManager[None]: ...


class ImportExport:
    """Imports and exports datasets for one node, and settles imports that a crash cut off."""

    def __init__(
        self,
        home: StateDirectory,
        remotes: Remotes,
        object_fetcher: ObjectFetcher,
        clock: Clock,
        changed: Callable[[DatasetId], None],
        board: AttendingStore,
    ) -> None:
        """``board`` judges and keeps the statements that come with an imported copy."""
        self._board = board
        self._home = home
        self._remotes = remotes
        self.repositories = remotes.repositories
        self._object_fetcher = object_fetcher
        self._clock = clock
        self._changed = changed

    def export(self, entry: DatasetEntry, request: wire.ExportRequest) -> Work:
        """Returns the work that exports a dataset. Raises Refused for a place that is not a folder."""
        folder = local_folder(request.to)

        def work(report: Report) -> wire.TransferResult:
            check_shared(folder)
            return self._export_chain(entry, folder, request, report)

        return work

    def _export_chain(
        self, entry: DatasetEntry, folder: Path, request: wire.ExportRequest, report: Report, head: Head | None = None
    ) -> wire.TransferResult:
        """Exports one chain up to ``head``; ``None``: all of it."""
        need_data(self._home, entry.id, entry.name, whole=True)
        table: TableFormat | None = None if request.table is None else TABLES.load(request.table)
        if table is not None:
            table.check_types(self._home.chains.chain(entry.id))
        report.begin(f"writing {folder}", None, "blocks")
        done = self._export(entry.id, folder, partial(_show, report), head)
        result = _result(entry.name, str(folder), done)
        if table is None:
            return result
        # The export stays if this fails.
        chain = DirectoryChain(folder)
        head = chain.head()
        assert head is not None, "it was exported"
        return msgspec.structs.replace(result, table_version=table.write_log(folder, entry.id, entry.name, chain, head))

    async def push(self, entry: DatasetEntry, target: Target, report: Report) -> Transfer:
        """Pushes a dataset to a repository. Raises Conflict if that has another history, or gets one meanwhile."""
        chains, has_files = self._home.chains, target.place.kind in ("bucket", "sftp")

        def show(so_far: Transfer) -> None:
            end_if_unwanted()
            if not has_files:
                report.done = so_far.bytes

        def give() -> tuple[Missing, SignedState] | Transfer:
            """Writes the files; for a node and IPFS, which are asked from the event loop, returns what to push."""
            need_data(self._home, entry.id, entry.name, whole=True)
            report.begin(f"pushing {entry.name} to {target}", None, "bytes")
            if not has_files and target.place.kind not in ("node", "ipfs"):
                check_shared(Path(target.at))
                return self._export(entry.id, Path(target.at), show)
            missing, signed = self._whole(entry.id), signed_state(self._home.database, chains, entry.id)
            if not has_files:
                return missing, signed
            files = self.repositories.files(target.repository)
            return push_dataset(missing, files, target.dataset, signed, show, report.advance)

        done = await trio.to_thread.run_sync(give)
        if isinstance(done, Transfer):
            return done
        missing, signed = done
        if target.place.kind == "node":
            return await self._remotes.pusher.push(str(target), missing, report.advance)
        return await self._remotes.shelves.push(missing, signed, shelf_of(target), self._clock.now(), report.advance)

    def _whole(self, dataset: DatasetId) -> Missing:
        """Returns all of a dataset, as the difference to an empty copy."""
        chain = self._home.chains.chain(dataset)
        head = chain.head()
        assert head is not None, "what is in the catalogue has a head"
        return Missing(chain, self._home.objects, dataset, 0, head, None)

    def _export(self, dataset: DatasetId, folder: Path, show: OnProgress, head: Head | None = None) -> Transfer:
        with whole_or_gone(folder):
            done = export_dataset(self._home.chains, self._home.objects, dataset, folder, show, head=head)
            # Packs and signed statements, so that others can mirror it with few requests.
            size = 0 if (end := DirectoryChain(folder).head()) is None else end.size
            write_packs(folder, self._home.chains.chain(dataset), size)
            signed = signed_state(self._home.database, self._home.chains, dataset)
            if signed.is_here:
                write_statements(folder, signed)
        return done

    async def pull(self, target: Target, as_name: str | None, report: Report) -> wire.PullItem:
        """Pulls a dataset from a repository; an older copy brings nothing new.

        Faults become part of the returned item.
        """
        try:
            with sole_faults():
                done = await invoke(self._pulling(target, as_name), report)
        except Conflict as fault:
            if fault.rule == "import-behind":
                return wire.PullItem(ref=str(target), outcome="up-to-date", message=fault.message)
            return failed_pull(target, fault)
        except Fault as fault:
            return failed_pull(target, fault)
        outcome: Final = "updated" if done.blocks else "up-to-date"
        return wire.PullItem(ref=done.ref, outcome=outcome, message=f"from {target}", blocks=done.blocks)

    def _pulling(self, target: Target, as_name: str | None) -> Work:
        if target.place.kind == "ipfs":
            return self._import_published(target.at, wire.ImportRequest(source=str(target), as_name=as_name))
        if target.place.kind in ("bucket", "sftp", "node"):
            return self._import_published(str(target), wire.ImportRequest(source=str(target), as_name=as_name))
        return self.import_(wire.ImportRequest(source=target.at, as_name=as_name))

    def import_(self, request: wire.ImportRequest) -> Work:
        place = place_of(request.source)
        if place is not None:
            return self._import_published(place, request)
        folder = local_folder(request.source)

        def look() -> tuple[Copy, str, Sequence[bytes]] | None:
            """Returns a copy in the folder, its name, and its statements; ``None``: it is a dataset of ODF 0.18."""
            check_shared(folder)
            if find_former(folder) is not None:
                return None
            copy = Copy(str(folder), DirectoryChain(folder), DirectoryObjects(folder))
            return copy, self._name_for(copy.chain, request.as_name, folder.name), read_statements(folder)

        async def work(report: Report) -> wire.TransferResult:
            found = await trio.to_thread.run_sync(look)
            if found is None:
                return await self._import_former(folder, request, report)
            copy, name, statements = found
            return await self._take_in(copy, statements, name, request, report)

        return work

    async def _import_former(self, folder: Path, request: wire.ImportRequest, report: Report) -> wire.TransferResult:
        """Converts a dataset of ODF 0.18 into a new dataset of this node; compares both before either is kept."""

        def prepare(target: Path, dataset: DatasetId) -> tuple[Copy, str, str]:
            former = load_former_format()
            former.convert(folder, target, dataset)
            copy = Copy(str(folder), DirectoryChain(target), DirectoryObjects(target))
            compared = former.compare(copy.chain, copy.files).told()
            return copy, compared, self._name_for(copy.chain, request.as_name, folder.name)

        report.begin(f"converting {folder} from ODF 0.18", None, "blocks")
        async with staged_folder(self._home.folder(STAGING)) as target:
            with self._home.newborn() as dataset:
                copy, compared, name = await trio.to_thread.run_sync(prepare, target, dataset)
                done = await self._take_in(copy, (), name, request, report)
        return msgspec.structs.replace(done, compared=compared)

    def _import_published(self, place: str, request: wire.ImportRequest) -> Work:
        """Returns the work that imports a published copy: fetches it, verifies all of it, and only then takes it in."""
        self._remotes.check(place)

        async def work(report: Report) -> wire.TransferResult:
            report.begin(f"fetching {request.source}", None, "bytes")
            async with self._remotes.replication.reading(place) as shown:
                async with outside(request.source):
                    newest = await shown.source.head_of(shown.root)
                    chain = await shown.source.stage(shown.root, shown.root, newest, is_mirrored=False)
                name, head = await trio.to_thread.run_sync(
                    lambda: (self._name_for(chain, request.as_name, name_in(place)), chain.head())
                )
                async with outside(request.source):
                    await self._fetch_objects(shown.peer, chain, report)
                hint = "no part of it was stored: its publisher has to repair it"
                copy = Copy(request.source, chain, self._home.objects, hint, head)
                done = await self._take_in(copy, await _statements(shown), name, request, report)
                # Only now: after an import that was cut off, the blocks fetched so far need not be fetched again.
                await shown.source.forget(shown.root)
                return done

        return work

    def check_pushed(self, chain: DirectoryChain, name: str, account: str | None) -> DatasetId:
        """Checks that a pushed chain may have this name in an account, before its objects are fetched; returns its id.

        Blocking.

        Raises Invalid; Refused for a dataset that this node writes itself.
        """
        seed = chain.block_at(0).event
        if not isinstance(seed, Seed):
            raise Invalid("the first block of a chain is its Seed", rule="first-block-seed")
        check_not_own(self._home, seed.dataset_id, name)
        with self._home.catalog() as catalog:
            catalog.check(name, seed.dataset_id, account)
        return seed.dataset_id

    async def take_pushed(self, folder: Path, name: str, account: str | None) -> Transfer:
        """Verifies a chain that was pushed into a folder, and takes it in as a private dataset of an account.

        Its objects are here.
        Raises NotVerified, Invalid, Environment; Conflict if the dataset is ahead of it by now, or has another history.
        """
        place = f"what was pushed to {name}"
        copy = Copy(place, DirectoryChain(folder), self._home.objects, "nothing of it was taken")
        request = wire.ImportRequest(source=place, as_name=name)
        return (await self._take_in_as(copy, (), (name, account), request, Report()))[0]

    async def _fetch_objects(self, peer: PeerId, chain: DirectoryChain, report: Report) -> None:
        """Fetches the objects that new blocks name and rows link to; those fetched stay if the import is cut off."""
        pages = new_pages(chain, self._home.chains, BATCH)
        done = 0
        async for terms, blocks in Stepped(pages):
            tally = MirrorProgress()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_show_bytes, tally, done, report)
                await self._object_fetcher.bring(None, [peer], terms, blocks, tally)
                nursery.cancel_scope.cancel()
            report.done = done = done + tally.bytes

    async def _take_in(
        self, copy: Copy, statements: Sequence[bytes], name: str, request: wire.ImportRequest, report: Report
    ) -> wire.TransferResult:
        done, known_as = await self._take_in_as(copy, statements, (name, None), request, report)
        return _result(known_as, request.source, done)

    async def _take_in_as(
        self, copy: Copy, statements: Sequence[bytes], named: tuple[str, str | None], request: wire.ImportRequest,
        report: Report,
    ) -> tuple[Transfer, str]:  # fmt: skip
        """Verifies a copy and takes it in, or takes nothing unless its history is known to be one that goes on.

        ``named``: a name, and the account that it is of; ``None`` for the node's owner.
        """
        name, _ = named

        def take() -> tuple[Transfer, str]:
            report.begin(f"verifying {request.source}", None, "blocks")
            if not isinstance(seed, Seed):
                return bring(0)
            with self._board.attend(seed.dataset_id):
                self._show_statements(copy, seed.dataset_id, statements)
                self._take_back(copy.chain, seed.dataset_id, named)
                is_here = self._home.chains.chain(seed.dataset_id).head() == copy.chain.head()
                return bring(0 if is_here else self._epoch(seed.dataset_id, copy.chain))

        def bring(epoch: int) -> tuple[Transfer, str]:
            done = import_copy(copy, self._home.chains, self._home.objects, lambda so_far: _show(report, so_far))
            return done, self._settle(done.dataset, named, epoch)

        seed = (await trio.to_thread.run_sync(copy.chain.block_at, 0)).event
        written = seed.dataset_id if isinstance(seed, Seed) else copy.place
        done, known_as = await self._home.turns.perform(written, take, report.waits_to_write(name))
        self._changed(done.dataset)
        return done, known_as

    def _take_back(self, chain: ChainReader, dataset: DatasetId, named: tuple[str, str | None]) -> None:
        """Takes back the kept data of a deleted dataset. Raises Refused if the copy does not go on from that data."""
        kept, come = self._home.chains.former(dataset, SET_ASIDE), chain.head()
        head = kept.head()
        if head is None or come is None:
            return
        last = head.sequence_number
        if come.size < head.size or chain.block_at(last).hash != head.hash:
            with self._home.database.read() as connection:
                unmanaged.check_managed(connection, dataset, ", and the copy does not continue from it")
        self._adopt(dataset, *named)

    def _show_statements(self, copy: Copy, dataset: DatasetId, statements: Sequence[bytes]) -> None:
        """Passes the statements of a copy to the board.

        Raises Invalid if one does not hold, or is of another dataset.
        """
        for raw in statements:
            said = statement.decode_any(envelope.unseal(raw, statement.MAX_ANY).payload)
            # A copy could otherwise bring statements about any dataset, past the budgets of gossip.
            if not isinstance(said, HeadStatement | Authority) or said.dataset != dataset:
                raise Invalid(f"a statement in {copy.place} is of another dataset", rule="graft")
            if self._board.judge(Topic.HEADS, raw, PeerId(copy.place)) is Judgement.REJECT:
                raise Invalid(f"a statement in {copy.place} does not hold", rule="published-statement")

    def _epoch(self, dataset: DatasetId, chain: ChainReader) -> int:
        """Returns the epoch of an imported chain, by the signed statements known of it. Raises Conflict."""
        with self._home.database.read() as connection:
            walk = Authorities(connection).walk(dataset)
            heads = Ledger(connection).heads(dataset)
        head = chain.head()
        if head is None or not walk[-1].epoch:
            return 0
        return epoch_of(head.size, lambda size: kept_tree(chain, size).root, walk, heads)

    def _name_for(self, chain: DirectoryChain, asked: str | None, suggested: str) -> str:
        """Returns the local name of an import; a dataset that is here keeps its own by default. Raises Invalid."""
        seed = chain.block_at(0).event
        if not isinstance(seed, Seed):
            return suggested  # it will not be verified
        with self._home.catalog() as catalog:
            known = catalog.find(seed.dataset_id)
            if asked is None and known is not None:
                return known.name
            name = asked or suggested or default_name(seed.dataset_id)
            return catalog.check(name, seed.dataset_id)

    def _settle(self, dataset: DatasetId, named: tuple[str, str | None], epoch: int) -> str:
        """Names an imported dataset, and records how much of it is checked, never of an earlier epoch than before.

        References are written first, so a named dataset is whole; one that was deleted is as whole as it was then.
        """
        database, chain, (name, account) = self._home.database, self._home.chains.chain(dataset), named
        with database.read() as connection:
            checked = Ledger(connection).chain(dataset)
        head = chain.head()
        assert head is not None
        frontier: Frontier = checked.frontier
        groups: list[bytes] = []
        for terms, blocks in pages_of(chain, frontier.size, head.size, BATCH):
            frontier = frontier.extend((block.hash.digest for block in blocks), groups)
            with database.write() as connection:
                keep_references(connection, dataset, blocks)
            note_links(database, self._home.objects, dataset, terms, blocks)
        was_whole = checked.data >= checked.frontier.size
        with database.write() as connection:
            catalog = Catalog(connection)
            known = catalog.find(dataset)
            if known is None:
                catalog.add(name, dataset, self._clock.now(), account)
            visibility.mark_imported(connection, dataset)
            data = frontier.size if was_whole else checked.data
            remains = unmanaged.pop(connection, dataset)
            if remains is not None:
                data = remains.data
                Holdings(connection).keep_extent(dataset, remains.extent)
            Ledger(connection).grow(
                dataset, checked.frontier, CheckedChain(frontier, data, max(epoch, checked.epoch)), groups
            )
        return known.name if known else name

    def adopt(self, dataset: DatasetId, name: str | None) -> str:
        """Takes back, as private, a deleted dataset whose data is kept. Returns its name: ``name``, or the former one.

        Blocking.
        Raises NotFound; Invalid for a name that is taken; Conflict for a dataset that is here.
        """
        known_as = self._adopt(dataset, name)
        self._changed(dataset)
        return known_as

    def _adopt(self, dataset: DatasetId, name: str | None, account: str | None = None) -> str:
        database, now = self._home.database, self._clock.now()
        with database.write() as connection:
            kept = unmanaged.find(connection, dataset)
            if self._home.chains.chain(dataset).head() is not None:
                raise Conflict(f"{dataset.short} is here already", rule="dataset-exists", hint="odfctl get datasets")
            catalog = Catalog(connection)
            known_as = catalog.check(name or kept.name or default_name(dataset), dataset)
            unmanaged.take_back(connection, dataset)
            catalog.add(known_as, dataset, now, account)
            visibility.mark_imported(connection, dataset)
        return self._settle(dataset, (known_as, account), kept.remains.epoch)

    def mend(self) -> tuple[list[str], list[str]]:
        """Settles imports that were cut off, which had verified everything before. Returns names, and troubles.

        A dataset that cannot be settled, or not even read, is one of the troubles; the others are served all the same.
        """
        mended, troubles = [], []
        for dataset in _suspects(self._home):
            try:
                if _is_unsettled(self._home, dataset):
                    epoch = 0
                    # Conflict: a later epoch that gave this history up is known by now; then it stands as any such
                    # chain here.
                    with suppress(Conflict):
                        epoch = self._epoch(dataset, self._home.chains.chain(dataset))
                    mended.append(self._settle(dataset, (default_name(dataset), None), epoch))
            except Fault as fault:
                troubles.append(f"{dataset.short}: {fault.message}")
        return mended, troubles


def local_folder(place: str) -> Path:
    """Returns the folder that a path or a ``file://`` URL names. Raises Refused for other schemes."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        raise Refused(f"{parts.scheme}:// is not understood here", rule="transfer-place", hint=_PLACES)
    return Path(parts.path)


def _suspects(home: StateDirectory) -> list[DatasetId]:
    """Lists datasets that may be unsettled, with a few queries for all; all of them if the names are damaged."""
    heads = home.chains.heads()
    with home.database.read() as connection:
        settled = Ledger(connection).sizes()
        try:
            named = {entry.id for entry in Catalog(connection).chains()}
        except Environment:
            named = set()
    whole = {each for each, head in heads.items() if head is not None and settled.get(each) == head.size}
    return [head for head in heads if head not in named or head not in whole]


def _is_unsettled(home: StateDirectory, dataset: DatasetId) -> bool:
    """Whether an import of the dataset was cut off before it was named and recorded as checked.

    Raises Environment for a chain that is damaged, or stored under another id than its own.
    """
    chain = home.chains.chain(dataset)
    head = chain.head()
    with home.database.read() as connection:
        settled = Ledger(connection).chain(dataset).frontier.size
        is_named = Catalog(connection).find(dataset) is not None
    if head is None or (settled >= head.size and is_named):
        return False
    seed = chain.block_at(0).event
    if not isinstance(seed, Seed) or seed.dataset_id != dataset:
        raise BlockDamaged(dataset, 0, "the chain is stored under an id that its Seed does not name")
    return True


async def _statements(shown: PublishedPlace) -> Sequence[bytes]:
    """Returns the signed statements of a published copy, or none. Raises Remote, Invalid."""
    try:
        return (await shown.source.edition(shown.root)).statements
    except Remote as fault:
        if fault.rule != "published-unsigned":
            raise
        return ()


def check_not_own(home: StateDirectory, dataset: DatasetId, name: str) -> None:
    """Raises Refused for a dataset that this node writes itself."""
    if home.keys.has_dataset_key(dataset):
        hint = "its blocks are made where its key is: ingest there"
        raise Refused(f"{name} is written by this node, and takes no blocks of others", rule="push-own", hint=hint)


def shelf_of(target: Target) -> ShelfPlace:
    return ShelfPlace(target.place.root, target.dataset, target.repository)


def _show(report: Report, so_far: Transfer) -> None:
    report.done = so_far.blocks


async def _show_bytes(tally: MirrorProgress, before: int, report: Report) -> None:
    while True:
        report.done = before + tally.bytes
        await trio.sleep(SHOW_SECONDS)


def _result(name: str, place: str, done: Transfer) -> wire.TransferResult:
    return wire.TransferResult(ref=name, place=place, blocks=done.blocks, objects=done.objects, bytes=done.bytes)
