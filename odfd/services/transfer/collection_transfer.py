"""Pushes collections of several shards to repositories, and takes them in from there, all shards as one.

A push writes each shard as a dataset of its own, in a folder of its id, and last, on condition, the file that says
which shards belong together and how far (``trust/collection``). So whoever reads meanwhile sees the cut before or the
one after. A pull checks what that file says of every shard before it takes one in. ADR 42.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.codec.blocks import MAX_BLOCK
from chain.errors import Conflict, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.statements import envelope, statement
from chain.statements.card import Card
from chain.statements.envelope import Signed
from chain.statements.statement import HeadStatement
from chain.store.base import Append, Head, UpperMove
from chain.store.layout import BLOCKS, HEAD
from odfd.control import wire
from odfd.errors import sole_faults
from odfd.mirrors.mirror_handover import unite
from odfd.published.signed import (
    CARD,
    COLLECTION,
    MAX_COLLECTION,
    MAX_STATEMENT,
    SHARD_MISSING,
    PublishedCollection,
    beside,
    collection_in,
    collection_state,
)
from odfd.queries.sharded_cuts import heads_of
from odfd.repositories.catalog import Target
from odfd.repositories.files import ConditionalFiles, Folder
from odfd.repositories.manifest import RepositoryPlace
from odfd.runtime.slots import KeyedLocks
from odfd.runtime.systemd import check_shared
from odfd.runtime.tasks import Report, outside
from odfd.services.transfer.import_export import ImportExport, Work, local_folder, shelf_of
from odfd.services.views.pull_remarks import failed_pull
from odfd.store.catalog import Catalog, DatasetEntry, inner_name
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger
from odfd.transfer.folders import Transfer
from p2p.ports import Judgement, PeerId, Topic

TRIES: Final = 4
"""Attempts to write a collection's file that others write too; each failure is progress of another writer."""


class CollectionTransfer(ImportExport):
    """Imports and exports, also of collections of several shards."""

    _pushing = KeyedLocks()

    def export_collection(self, entries: Sequence[DatasetEntry], request: wire.ExportRequest) -> Work:
        """Returns the work that exports all shards to one folder, as a repository has them: each in a folder of its id.

        What says which belong together is written if it is signed. Raises Refused for a place that is not a folder.
        """
        folder, ids = local_folder(request.to), [entry.id for entry in entries]
        target = Target(str(folder), RepositoryPlace("folder", str(folder)), str(entries[0].name))

        def begin() -> tuple[PublishedCollection | None, Sequence[Head | None]]:
            check_shared(folder)
            if (folder / HEAD).exists():
                text, hint = f"{folder} is a dataset of one chain", "name a new or an empty folder"
                raise Conflict(text, rule="export-target", hint=hint)
            try:  # read first: the blocks of these heads are written by the time that the file names them
                found, _ = collection_state(self._home.database, self._home.chains, ids)
                return found, [None] * len(ids)
            except Refused:
                # Nothing signed will say how far the shards belong together, so all are of one time.
                return None, heads_of(self._home, ids)

        def work(report: Report) -> wire.TransferResult:
            found, heads = begin()
            done: list[wire.TransferResult] = []
            for each, head in zip(entries, heads, strict=True):
                done.append(self._export_chain(each, folder / beside("", each.id), request, report, head))
            if found is not None:
                self._name_together(self._files_of(target), target, found)
            return msgspec.structs.replace(done[0], place=str(folder), **_totals(done))

        return work

    async def push(self, entry: DatasetEntry, target: Target, report: Report) -> Transfer:
        # A node tells by itself who may push what to a name.
        if target.place.kind != "node" and await self._read_pushed(target, COLLECTION, MAX_COLLECTION) is not None:
            raise Conflict(f"{target} is a collection of several shards", rule="export-diverged")
        return await super().push(entry, target, report)

    async def push_collection(
        self, entry: DatasetEntry, shards: Sequence[DatasetId], target: Target, report: Report
    ) -> Transfer:
        """Pushes all shards, and then what says that they belong together. Raises as ``push``; Refused."""
        async with self._pushing.of(str(target), report.waits_to_write(entry.name)):
            # At a node a name of several shards has the head of the first, so it tells by itself.
            if target.place.kind != "node" and await self._read_pushed(target, HEAD, MAX_STATEMENT) is not None:
                raise Conflict(f"{target} is one chain, and {entry.name} has several", rule="export-diverged")
            chains = self._home.chains
            # Read first: the blocks of these heads are written by the time that the file names them.
            found, _ = await trio.to_thread.run_sync(collection_state, self._home.database, chains, shards)
            if target.place.kind == "node":  # asked first, so that one that takes no collections gets no shard
                await self._remotes.pusher.unite(str(target), found.content)
            done = []
            for shard in shards:
                one = DatasetEntry(name=entry.name, id=shard, created_at=entry.created_at)
                part = target._replace(dataset=beside(target.dataset, shard))
                done.append(await super().push(one, part, report))
            await self._name_there(target, found)
        return msgspec.structs.replace(done[0], **_totals(done))

    async def _name_there(self, target: Target, found: PublishedCollection) -> None:
        """Says in a repository which shards belong together. Raises Conflict, Refused, Remote."""
        match target.place.kind:
            case "node":
                if not await self._remotes.pusher.unite(str(target), found.content):
                    raise Conflict(f"a shard of {target} was lost meanwhile", rule="compare-and-append")
            case "ipfs":
                await self._remotes.shelves.write(
                    shelf_of(target), self._clock.now(), lambda files: self._name_together(files, target, found)
                )
            case _:
                await trio.to_thread.run_sync(lambda: self._name_together(self._files_of(target), target, found))

    def _files_of(self, target: Target) -> ConditionalFiles:
        if target.place.kind == "folder":
            return Folder(target.repository, Path(target.place.root))
        return self.repositories.files(target.repository)

    @staticmethod
    def _name_together(files: ConditionalFiles, target: Target, found: PublishedCollection) -> None:
        """Writes which shards belong together, over the version that was read."""
        path, is_tested = f"{target.dataset}/{COLLECTION}", False
        for _ in range(TRIES):
            there = files.get(path, MAX_COLLECTION)
            try:
                said = found if there is None else found.newer(collection_in(there.content, str(target)))
            except Invalid as fault:
                raise Conflict(f"{target}: {fault.message}", rule="export-diverged") from None
            _list_shards(files, target, said)
            if there is not None and there.content == said.content:
                return
            if not is_tested:
                files.check_conditions()
                is_tested = True
            if files.put_if(path, said.content, None if there is None else there.tag):
                return
        raise Conflict("what says which shards belong together is written by others too", rule="compare-and-append")

    async def pull(self, target: Target, as_name: str | None, report: Report) -> wire.PullItem:
        try:
            with sole_faults():
                is_node = target.place.kind == "node"  # there the name of a collection is no chain, so that comes first
                if is_node and not _is_missing(item := await super().pull(target, as_name, report)):
                    return item
                raw = await self._read(target, COLLECTION, MAX_COLLECTION)
                if raw is not None:
                    return await self._pull_all(target, collection_in(raw, str(target)), as_name, report)
        except Fault as fault:
            return failed_pull(target, fault)
        return item if is_node else await super().pull(target, as_name, report)

    async def _pull_all(
        self, target: Target, found: PublishedCollection, as_name: str | None, report: Report
    ) -> wire.PullItem:
        parts = [target._replace(dataset=beside(target.dataset, id_)) for id_ in found.ids]
        for head, part in zip(found.heads, parts, strict=True):
            await self._check_there(part, head.dataset, f"{BLOCKS}/{head.head}")
        with ExitStack() as attended:

            def prepare() -> str:
                name = self._choose_name(found, as_name or target.dataset.rpartition("/")[2])
                self._judge(str(target), found, attended)
                return name

            name, blocks = await trio.to_thread.run_sync(prepare), 0
            for place, part in enumerate(parts):
                item = await super().pull(part, inner_name(name, 0, place) if place else name, report)
                if item.fault is not None:
                    return msgspec.structs.replace(item, ref=str(target), message=f"{part}: {item.message}")
                blocks += item.blocks
            await trio.to_thread.run_sync(self._unite, found)
        self._changed(found.ids[0])
        outcome: Final = "updated" if blocks else "up-to-date"
        return wire.PullItem(ref=name, outcome=outcome, message=f"from {target}", blocks=blocks)

    async def _check_there(self, part: Target, dataset: DatasetId, block: str) -> None:
        """Raises NotFound for a shard that is not there, or not as far as its signed head says."""
        if await self._read(part, block, MAX_BLOCK) is not None:
            return
        is_there = await self._read(part, HEAD, MAX_STATEMENT) is not None
        why = "is stale: it does not hold the block of its signed head" if is_there else "is missing"
        raise NotFound(
            f"shard {dataset} {why}: {part}", rule=SHARD_MISSING, hint="its publisher pushes the collection again"
        )

    def _choose_name(self, found: PublishedCollection, wished: str) -> str:
        """Returns the local name of a collection. Raises Invalid if it is taken, or a shard is in another one."""
        first = found.ids[0]
        together = self._home.shards_of(first)
        if len(together) > 1 and together != found.ids:
            raise Invalid(f"{first} has other shards here", rule="shard-here", hint="odfctl get renditions NAME")
        with self._home.catalog() as catalog:
            known = catalog.find(first)
            name = catalog.check(wished, first) if known is None else known.name
            for place, each in enumerate(found.ids[1:], start=1):
                catalog.check(inner_name(name, 0, place), each)
        return name

    def take_united(self, found: PublishedCollection, name: str) -> None:
        """Makes one collection of shards that were pushed here by their ids. Blocking. Raises Invalid, NotFound."""
        with ExitStack() as attended:
            self._judge(name, found, attended)
            self._unite(found, name)
        self._changed(found.ids[0])

    def _judge(self, place: str, found: PublishedCollection, attended: ExitStack) -> None:
        """Passes the statements to the board, which keeps them while they are attended.

        Raises Invalid if one does not hold.
        """
        for id_ in found.ids:
            attended.enter_context(self._board.attend(id_))
        for raw in found.raws:
            if self._board.judge(Topic.HEADS, raw, PeerId(place)) is Judgement.REJECT:
                raise Invalid(f"a statement in {COLLECTION} of {place} does not hold", rule="published-statement")

    def _unite(self, found: PublishedCollection, name: str | None = None) -> None:
        """Moves the frontiers to what is signed, and makes the name mean all shards. Raises Invalid, NotFound.

        ``name``: a new one for the first shard.
        """
        home = self._home
        for head, raw in zip(found.heads, found.raws[1:], strict=True):
            if not home.keys.has_dataset_key(head.dataset):
                self._keep_upper(head, envelope.unseal(raw, statement.MAX_ANY))
        if home.shards_of(found.ids[0]) == found.ids:
            return
        assert found.card.shards is not None, "checked when it was read"
        with home.database.write() as connection:
            if name is not None:
                Catalog(connection).rename(found.ids[0], name, home.clock.now())
            waits = unite(connection, found.card.shards, home.clock.now())
        if waits is not None:
            raise NotFound(waits, rule=SHARD_MISSING, hint="pull it again; each shard is read by its id")

    def _keep_upper(self, head: HeadStatement, signed: Signed) -> None:
        """Moves the frontier of a shard to what its newest head states whose blocks are here: ``head``, or a later one.

        A newer one may have been heard of than what was taken in. Raises Invalid if a block here breaks it.
        """
        chains, dataset = self._home.chains, head.dataset
        with self._home.database.read() as connection:
            newest = Ledger(connection).newest_head(dataset)
            rights = Authorities(connection).rights(dataset)
        chain = chains.chain(dataset)
        here = chain.head()
        known = [] if newest is None else [newest[0]]
        if any(rights.may_write(key, head.issued) for key in signed.signers):
            known.append(head)
        whole = [
            each for each in sorted(known, key=lambda each: each.order)
            if here is not None and each.size <= here.size and chain.block_at(each.size - 1).hash == each.head
        ]  # fmt: skip
        if here is None or not whole or (upper := whole[-1].upper) is None:
            return
        said = whole[-1]
        if here.size > said.size and to_millis(chain.block_at(said.size).system_time) < upper:
            text = f"block #{said.size} of {dataset} has a time that its signed head says is complete"
            raise Invalid(text, rule="trust.upper", hint="ask its publisher")
        if upper > (reached := chains.upper(dataset)):
            move = UpperMove(reached, upper)
            chains.commit([Append(dataset=dataset, expected=here, blocks=(), upper=move)])

    async def _read_pushed(self, target: Target, file: str, limit: int) -> bytes | None:
        """Reads as ``_read``, in a repository to which this node pushes."""
        if target.place.kind == "ipfs":
            return await self._remotes.shelves.read(shelf_of(target), file, limit)
        return await self._read(target, file, limit)

    async def _read(self, target: Target, file: str, limit: int) -> bytes | None:
        """Reads a small file of a dataset in a repository; ``None``: there is none. Raises Remote, Refused."""
        kind = target.place.kind
        if kind == "folder":
            folder = Folder(target.repository, Path(target.place.root))
            found = await trio.to_thread.run_sync(partial(folder.get, f"{target.dataset}/{file}", limit))
            return None if found is None else found.content
        place = target.at if kind in ("web", "ipfs") else str(target)
        async with outside(place):
            return await self._remotes.file_at(place, file, limit)


def _is_missing(item: wire.PullItem) -> bool:
    return item.fault is not None and item.fault.rule == "repository-dataset"


def _totals(done: Sequence[Transfer | wire.TransferResult]) -> dict[str, int]:
    return {field: sum(getattr(each, field) for each in done) for field in ("blocks", "objects", "bytes")}


def _list_shards(files: ConditionalFiles, target: Target, said: PublishedCollection) -> None:
    """Writes the card to the folder of the first shard, for mirrors of it that know its id, and not the name."""
    path = f"{beside(target.dataset, said.ids[0])}/{CARD}"
    there = files.get(path, Card.MAX_ENVELOPE)
    if there is None or there.content != said.raws[0]:
        files.check_conditions()
        files.put_if(path, said.raws[0], None if there is None else there.tag)  # who came first wrote one as new
